"""What stages say to each other: which messages follow an action, and when receives are posted.

Note [Messages]
    A receive is posted after the last action that ends no later than the message is sent, if every action
    took the same time and messages none.  For 1F1B that is right after the action before the one that needs
    it, for interleaved 1F1B what Megatron-LM's lockstep does (``p2p_communication.py`` of Megatron-Core), and
    for any other schedule it never blocks: whatever waits, waits for something earlier in that imagined time.
    Without overlap the next action waits for what was sent, too, and interleaved 1F1B exchanges once for a
    forward and the backward behind it.  With overlap only those who need a message wait for it.

Note [One stream a peer]
    Under ``torch.distributed.pipelining`` each pair of stages has a communicator, and that one stream:
    what two stages send and receive runs in the order of issue, and a receive that waits for its sender
    holds up what comes after it. (Its schedules of one chunk exchange in groups, which hold up nothing.)
    The order is made by playing the schedule round by round: every stage in turn takes its next action if
    it has what that needs, sends what it made, and the receiver posts the receive behind what it has
    taken so far (``_add_send_recv`` of ``pipelining/schedules.py``).

Note [Exchanges in turn]
    Megatron-Core without interleaving sends what an action made and receives what the next one needs between
    the two, activations and gradients in one launch, and the host waits until all is done (``batch_p2p_comm``
    and ``batch_p2p_sync``, ``p2p_communication.py``).  Interleaved, with ``overlap_p2p_comm``, it posts the
    receive for a forward behind the forward before and that for a backward behind the backward before, the
    first one's behind the warm-up; only who needs a message waits for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cache, partial
from typing import NamedTuple

from simcore.errors import InputError
from simcore.graph.schedules import Action, Placement, Schedule, needs, neighbour, virtual_stage
from simcore.graph.schedules.play import num_chunks
from simcore.records import dataclass


class Direction(NamedTuple):
    """Messages of one kind from one stage to another: activations or gradients, ``delta`` stages further."""

    gradients: bool
    delta: int


class StageMessage(NamedTuple):
    """One message: its direction and what it carries."""

    direction: Direction
    num_bytes: int


class ActionMessages(NamedTuple):
    """Messages around one action.

    ``own``: the message that it needs and how many messages its stream has taken since; ``awaits``:
    directions whose last send must have ended before it; ``sends`` and ``posts``: sends issued and receives
    posted after it, in order.
    """

    own: tuple[StageMessage, int] | None = None
    awaits: tuple[Direction, ...] = ()
    sends: tuple[StageMessage, ...] = ()
    posts: tuple[StageMessage, ...] = ()


@dataclass
class _Pass:
    """What actions of one kind on one chunk of a stage have in common, whatever their microbatch.

    ``message``: what they make and another stage, ``to``, gets; None where nobody else needs it.
    ``source``: the direction of the message that they need; None where they need none.
    ``done``: by microbatch, when it was done in some imagined time, -1 while it is not; ``needed``: the same
    of all that must be done first; ``made``: messages of those that come from other stages.
    """

    done: list[int]
    to: int = -1
    message: StageMessage | None = None
    source: Direction | None = None
    needed: tuple[list[int], ...] = ()
    made: tuple[StageMessage | None, ...] = ()


@dataclass
class _StageMessages:
    """One stage's actions while messages are planned; ``passes`` by kind and chunk, ``own`` by action."""

    actions: Sequence[Action]
    passes: defaultdict[tuple[str, int], _Pass]
    own: list[_Pass] = field(init=False)
    slots: list[list[int]] = field(default_factory=list)
    slot_end: list[int] = field(default_factory=list)
    sends: dict[int, list[StageMessage]] = field(default_factory=dict)
    posts: dict[int, list[tuple[int, StageMessage]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.own = [self.of(action) for action in self.actions]

    def of(self, action: Action) -> _Pass:
        """What the action has in common with others."""
        return self.passes[action.kind, action.chunk]

    def end(self, position: int, time: int) -> None:
        """The action is done; other stages wait for an input gradient under the name of a whole backward."""
        action = self.actions[position]
        self.own[position].done[action.microbatch] = time
        if action.kind == "I":
            self.passes["B", action.chunk].done[action.microbatch] = time

    def last_ended_by(self, time: int) -> int:
        """Position of the last action whose slot ends no later than ``time``; -1: none."""
        number = bisect_right(self.slot_end, time)
        return self.slots[number - 1][-1] if number else -1


def p2p_stream(what: str, direction: Direction, num_stages: int, *, per_peer: bool) -> str:
    """The stream on which "send" or "recv" of a direction runs.

    One for each neighbour, direction and kind: no order of actions blocks on communication alone.
    ``per_peer``: one for each neighbour.
    """
    if per_peer:
        return f"pp.pair.{(direction.delta if what == 'send' else -direction.delta) % num_stages}"
    usual = direction.delta == (-1 if direction.gradients else 1)
    return f"pp.{what}.{'bwd' if direction.gradients else 'fwd'}" + ("" if usual else ".up")


def plan_messages(
    schedule: Schedule,
    boundary_bytes: Sequence[int],
    placement: Placement = "loop",
    *,
    overlap: bool,
    per_peer: bool = False,
    in_turn: bool = False,
) -> tuple[list[tuple[StageMessage, ...]], list[list[ActionMessages]]]:
    """Per stage the receives posted before its first action, and an :class:`ActionMessages` for each action.

    ``boundary_bytes[v]`` goes from virtual stage v to the next, and comes back as gradients.  ``per_peer``:
    see Note [One stream a peer]; nobody waits for what was sent.  ``in_turn``: see Note [Exchanges in turn].
    """
    stages = _stages(schedule, boundary_bytes, placement)
    if in_turn:
        _in_turn(stages, one_chunk=num_chunks(schedule) == 1)
    elif per_peer:
        _in_rounds(stages)
    else:
        _in_time(stages, joint=not overlap and num_chunks(schedule) > 1 and placement == "loop")
    first = [tuple(message for _, message in stage.posts.get(-1, [])) for stage in stages]
    stream = cache(partial(p2p_stream, num_stages=len(schedule), per_peer=per_peer))
    exchanges = [_exchanges(stage, stream, overlap or per_peer) for stage in stages]
    return first, exchanges


def _stages(schedule: Schedule, boundary_bytes: Sequence[int], placement: Placement) -> list[_StageMessages]:
    """Stages with what their actions need and make, which is worked out once for each kind and chunk."""
    count, chunks = len(schedule), num_chunks(schedule)
    microbatches = 1 + max((action.microbatch for actions in schedule for action in actions), default=0)
    stages = [
        _StageMessages(actions, defaultdict(lambda: _Pass([-1] * microbatches))) for actions in schedule
    ]
    kinds = [sorted({(action.kind, action.chunk) for action in actions}) for actions in schedule]
    for number, stage in enumerate(stages):
        for kind, chunk in kinds[number]:
            to = _receiver(Action(kind, 0, chunk), number, count, chunks, placement)
            if to is not None:
                where, direction, boundary = to
                message = StageMessage(direction, boundary_bytes[boundary])
                for name in {kind, "B" if kind == "I" else kind}:
                    one = stage.passes[name, chunk]
                    one.to, one.message = where, message
    for number, stage in enumerate(stages):
        for kind, chunk in kinds[number]:
            action, own = Action(kind, 0, chunk), stage.passes[kind, chunk]
            before = needs(action, number, count, chunks, placement)
            own.needed = tuple(stages[where].of(other).done for where, other in before)
            outside = [(where, stages[where].of(other)) for where, other in before if where != number]
            own.made = tuple(other.message for _, other in outside)
            own.source = _direction(action, outside[0][0], number, count) if outside else None
    return stages


def _in_turn(stages: list[_StageMessages], *, one_chunk: bool) -> None:
    """What an action made behind it, what it needs before it; see Note [Exchanges in turn]."""
    for stage in stages:
        latest = {"F": -1}
        for position, (action, own) in enumerate(zip(stage.actions, stage.own, strict=True)):
            if own.message is not None:
                stage.sends[position] = [own.message]
            behind = position - 1 if one_chunk else latest.get(action.kind, position - 2)
            latest[action.kind] = position
            for message in own.made:
                assert message is not None, "whoever is needed elsewhere sends"
                stage.posts.setdefault(behind, []).append((position, message))


def _in_rounds(stages: list[_StageMessages]) -> None:
    """Messages as stages that take turns make them; see Note [One stream a peer]."""
    taken = [0] * len(stages)
    order = 0
    while any(taken[number] < len(stage.actions) for number, stage in enumerate(stages)):
        for number, stage in enumerate(stages):
            if taken[number] == len(stage.actions):
                continue
            action = stage.actions[taken[number]]
            own = stage.own[taken[number]]
            if any(done[action.microbatch] < 0 for done in own.needed):
                continue
            stage.end(taken[number], order)
            taken[number] += 1
            if own.message is not None:
                order += 1
                stage.sends[taken[number] - 1] = [own.message]
                stages[own.to].posts.setdefault(taken[own.to] - 1, []).append((order, own.message))


def _in_time(stages: list[_StageMessages], *, joint: bool) -> None:
    """Messages where they are sent if every action takes the same time; see Note [Messages].

    ``joint``: one exchange for a forward and the backward behind it.
    """
    for stage in stages:
        stage.slots = _slots(stage.actions, joint)
    _play(stages)
    for stage in stages:
        for slot, end in zip(stage.slots, stage.slot_end, strict=True):
            for position in slot:
                own = stage.own[position]
                if own.message is None:
                    continue
                stage.sends.setdefault(slot[-1], []).append(own.message)
                other = stages[own.to]
                other.posts.setdefault(other.last_ended_by(end), []).append((end, own.message))
    for stage in stages:
        for posted in stage.posts.values():
            posted.sort()


def _slots(actions: Sequence[Action], joint: bool) -> list[list[int]]:
    """Positions of actions after which messages are exchanged together: pairs of F and B that alternate."""
    if not joint:
        return [[position] for position in range(len(actions))]
    slots: list[list[int]] = []
    kinds = ["B" if action.sends_back else action.kind for action in actions]
    position = 0
    while position < len(actions):
        alternate = "F" in kinds[position + 2 : position + 3] or "B" in kinds[max(0, position - 1) : position]
        pair = alternate and kinds[position : position + 2] == ["F", "B"]
        slots.append([position, position + 1] if pair else [position])
        position += len(slots[-1])
    return slots


def _play(stages: list[_StageMessages]) -> None:
    """End of every slot if each takes one unit.  InputError for pairs that wait for each other."""
    moved = True
    while moved:
        moved = False
        for stage in stages:
            for number in range(len(stage.slot_end), len(stage.slots)):
                slot = stage.slots[number]
                ready = _ready(stage, slot)
                if ready < 0:
                    break
                stage.slot_end.append(ready + 1)
                for position in slot:
                    stage.end(position, ready + 1)
                moved = True
    if any(len(stage.slot_end) < len(stage.slots) for stage in stages):
        raise InputError(
            "schedule: stages that exchange once for a forward and the backward behind it wait in a circle;"
            " training.overlap_p2p=true has a message for each"
        )


def _ready(stage: _StageMessages, slot: list[int]) -> int:
    """When the stage's next slot may begin, -1 while what it needs is not done."""
    # Of a pair, the backward may be that of its own forward.
    own, actions = stage.own, stage.actions
    within, same = (own[slot[0]].done, actions[slot[0]].microbatch) if len(slot) > 1 else (None, -1)
    ready = stage.slot_end[-1] if stage.slot_end else 0
    for position in slot:
        microbatch = actions[position].microbatch
        for done in own[position].needed:
            ended = done[microbatch]
            if ended < 0:
                if done is within and microbatch == same:
                    continue
                return -1
            if ended > ready:
                ready = ended
    return ready


def _receiver(
    action: Action, stage: int, count: int, chunks: int, placement: Placement
) -> tuple[int, Direction, int] | None:
    """Who gets what an action makes, and the boundary it crosses; None when nobody else needs it."""
    if action.kind == "W":
        return None
    own, step = virtual_stage(stage, action.chunk, count, placement), 1 if action.kind == "F" else -1
    other = neighbour(stage, action.chunk, step, count, chunks, placement)
    if other is None or other[0] == stage:
        return None
    return other[0], _direction(action, stage, other[0], count), min(own, own + step)


def _direction(action: Action, source: int, to: int, count: int) -> Direction:
    delta = to - source
    if abs(delta) == count - 1 and count > 2:  # round the ends
        delta = -1 if delta > 0 else 1
    elif count == 2:
        # Two stages: both ways round are one step; activations count as going on, gradients as going back.
        delta = -1 if action.sends_back else 1
    return Direction(action.sends_back, delta)


class _Lane(NamedTuple):
    """Messages of one direction at a stage: those posted and not yet needed, each with its place on the
    stream that receives it, and how many that stream has taken, as has the one that sends (the one element).
    """

    posted: deque[tuple[StageMessage, int]]
    received: list[int]
    sent: list[int]


def _exchanges(
    stage: _StageMessages, stream: Callable[[str, Direction], str], overlap: bool
) -> list[ActionMessages]:
    """Messages around each action; most are equal, and then the same object."""
    taken: defaultdict[str, list[int]] = defaultdict(lambda: [0])
    lanes: dict[Direction, _Lane] = {}
    lane_of: dict[int, _Lane] = {}  # by identity of messages and directions, which are hashed once

    def lane(key: int, direction: Direction) -> _Lane:
        if direction not in lanes:
            lanes[direction] = _Lane(deque(), *(taken[stream(what, direction)] for what in ("recv", "send")))
        found = lane_of[key] = lanes[direction]
        return found

    known: dict[tuple[int, ...], ActionMessages] = {}
    seen: dict[ActionMessages, ActionMessages] = {}
    out: list[ActionMessages] = []
    sent: Sequence[StageMessage] = ()
    nothing: list[tuple[int, StageMessage]] = []
    for position in range(-1, len(stage.actions)):
        sends, posts = stage.sends.get(position, ()), stage.posts.get(position, nothing)
        if position >= 0:
            source, first, back = stage.own[position].source, None, 0
            if source is not None:
                posted, received, _ = lane_of.get(id(source)) or lane(id(source), source)
                first, place = posted.popleft()
                back = received[0] - 1 - place
            awaited = () if overlap else sent
            key = (id(first), back, *map(id, awaited), 0, *map(id, sends), 0, *[id(one) for _, one in posts])
            exchange = known.get(key)
            if exchange is None:
                made = ActionMessages(
                    (first, back) if first is not None else None,
                    tuple(sorted({message.direction for message in awaited})),
                    tuple(sends),
                    tuple([message for _, message in posts]),
                )
                exchange = known[key] = seen.setdefault(made, made)
            out.append(exchange)
            sent = sends
        for message in sends:
            (lane_of.get(id(message)) or lane(id(message), message.direction)).sent[0] += 1
        for _, message in posts:
            posted, received, _ = lane_of.get(id(message)) or lane(id(message), message.direction)
            posted.append((message, received[0]))
            received[0] += 1
    return out
