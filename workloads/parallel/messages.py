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
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from simcore.errors import InputError
from simcore.graph.schedules import Action, Placement, Schedule, needs, neighbour, virtual_stage
from simcore.graph.schedules.play import num_chunks


class Direction(NamedTuple):
    """Messages of one kind from one stage to another: activations or gradients, ``delta`` stages further."""

    gradients: bool
    delta: int


class StageMessage(NamedTuple):
    """One message: its direction and what it carries."""

    direction: Direction
    num_bytes: int


@dataclass(frozen=True)
class ActionMessages:
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
class _StageMessages:
    """One stage's actions while messages are planned."""

    actions: Sequence[Action]
    slots: list[list[int]]
    slot_end: list[int] = field(default_factory=list)
    sends: dict[int, list[StageMessage]] = field(default_factory=dict)
    posts: dict[int, list[tuple[int, StageMessage]]] = field(default_factory=dict)

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
    count, chunks = len(schedule), num_chunks(schedule)
    if in_turn:
        stages = _in_turn(schedule, boundary_bytes, chunks, placement)
    elif per_peer:
        stages = _in_rounds(schedule, boundary_bytes, chunks, placement)
    else:
        stages = _in_time(schedule, boundary_bytes, chunks, placement, overlap=overlap)
    first = [tuple(message for _, message in stage.posts.get(-1, [])) for stage in stages]
    stream = partial(p2p_stream, num_stages=count, per_peer=per_peer)
    exchanges = []
    for number, stage in enumerate(stages):
        own = _own_messages(stage, number, count, chunks, placement, stream)
        exchanges.append(_exchanges(stage, own, overlap=overlap or per_peer))
    return first, exchanges


def _in_turn(
    schedule: Schedule, boundary_bytes: Sequence[int], chunks: int, placement: Placement
) -> list[_StageMessages]:
    """What an action made behind it, what it needs before it; see Note [Exchanges in turn]."""
    count = len(schedule)
    stages = [_StageMessages(actions, []) for actions in schedule]
    made: dict[tuple[int, Action], StageMessage] = {}
    for number, stage in enumerate(stages):
        for position, action in enumerate(stage.actions):
            to = _receiver(action, number, count, chunks, placement)
            if to is not None:
                made[number, _whole(action)] = message = StageMessage(to[1], boundary_bytes[to[2]])
                stage.sends[position] = [message]
    for number, stage in enumerate(stages):
        latest = {"F": -1}
        for position, action in enumerate(stage.actions):
            behind = position - 1 if chunks == 1 else latest.get(action.kind, position - 2)
            latest[action.kind] = position
            for source in needs(action, number, count, chunks, placement):
                if source[0] != number:
                    stage.posts.setdefault(behind, []).append((position, made[source]))
    return stages


def _in_rounds(
    schedule: Schedule, boundary_bytes: Sequence[int], chunks: int, placement: Placement
) -> list[_StageMessages]:
    """Messages as stages that take turns make them; see Note [One stream a peer]."""
    count = len(schedule)
    stages = [_StageMessages(actions, []) for actions in schedule]
    taken = [0] * count
    done: set[tuple[int, Action]] = set()
    order = 0
    while any(taken[number] < len(actions) for number, actions in enumerate(schedule)):
        for number, stage in enumerate(stages):
            if taken[number] == len(stage.actions):
                continue
            action = stage.actions[taken[number]]
            if not done.issuperset(needs(action, number, count, chunks, placement)):
                continue
            done |= {(number, action), (number, _whole(action))}
            taken[number] += 1
            to = _receiver(action, number, count, chunks, placement)
            if to is not None:
                where, direction, boundary = to
                message, order = StageMessage(direction, boundary_bytes[boundary]), order + 1
                stage.sends[taken[number] - 1] = [message]
                stages[where].posts.setdefault(taken[where] - 1, []).append((order, message))
    return stages


def _in_time(
    schedule: Schedule, boundary_bytes: Sequence[int], chunks: int, placement: Placement, *, overlap: bool
) -> list[_StageMessages]:
    """Messages where they are sent if every action takes the same time; see Note [Messages]."""
    count = len(schedule)
    joint = not overlap and chunks > 1 and placement == "loop"
    stages = [_StageMessages(actions, _slots(actions, joint)) for actions in schedule]
    _play(stages, chunks, placement)
    for number, stage in enumerate(stages):
        for slot, end in zip(stage.slots, stage.slot_end, strict=True):
            for position in slot:
                to = _receiver(stage.actions[position], number, count, chunks, placement)
                if to is None:
                    continue
                where, direction, boundary = to
                message = StageMessage(direction, boundary_bytes[boundary])
                stage.sends.setdefault(slot[-1], []).append(message)
                other = stages[where]
                other.posts.setdefault(other.last_ended_by(end), []).append((end, message))
    for stage in stages:
        for posted in stage.posts.values():
            posted.sort()
    return stages


def _slots(actions: Sequence[Action], joint: bool) -> list[list[int]]:
    """Positions of actions after which messages are exchanged together: pairs of F and B that alternate."""
    slots: list[list[int]] = []
    kinds = ["B" if action.sends_back else action.kind for action in actions]
    position = 0
    while position < len(actions):
        alternate = "F" in kinds[position + 2 : position + 3] or "B" in kinds[max(0, position - 1) : position]
        pair = joint and alternate and kinds[position : position + 2] == ["F", "B"]
        slots.append([position, position + 1] if pair else [position])
        position += len(slots[-1])
    return slots


def _play(stages: list[_StageMessages], chunks: int, placement: Placement) -> None:
    """End of every slot if each takes one unit.  InputError for pairs that wait for each other."""
    count = len(stages)
    ended: dict[tuple[int, Action], int] = {}
    moved = True
    while moved:
        moved = False
        for number, stage in enumerate(stages):
            while len(stage.slot_end) < len(stage.slots):
                slot = [stage.actions[position] for position in stage.slots[len(stage.slot_end)]]
                ready = [0, *stage.slot_end[-1:]]
                within = {(number, done) for action in slot for done in (action, _whole(action))}
                wanted = [n for action in slot for n in needs(action, number, count, chunks, placement)]
                outside = [key for key in wanted if key not in within]
                if not all(key in ended for key in outside):
                    break
                end = max(ready + [ended[key] for key in outside]) + 1
                stage.slot_end.append(end)
                for action in slot:
                    ended[number, action] = ended[number, _whole(action)] = end
                moved = True
    if any(len(stage.slot_end) < len(stage.slots) for stage in stages):
        raise InputError(
            "schedule: stages that exchange once for a forward and the backward behind it wait in a circle;"
            " training.overlap_p2p=true has a message for each"
        )


def _whole(action: Action) -> Action:
    """The name under which other stages wait for an input gradient."""
    return action._replace(kind="B") if action.kind == "I" else action


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


def _own_messages(
    stage: _StageMessages,
    number: int,
    count: int,
    chunks: int,
    placement: Placement,
    stream: Callable[[str, Direction], str],
) -> dict[int, tuple[StageMessage, int]]:
    """For each action that needs a message: that, and how many its stream has taken since."""
    posted: dict[Direction, deque[tuple[StageMessage, int]]] = defaultdict(
        deque
    )  # with its place on the stream
    issued: Counter[str] = Counter()
    found = {}
    for position, action in enumerate(stage.actions, start=-1):
        for message in stage.sends.get(position, ()):
            issued[stream("send", message.direction)] += 1
        for _, message in stage.posts.get(position, []):
            on = stream("recv", message.direction)
            posted[message.direction].append((message, issued[on]))
            issued[on] += 1
        source = _sender(action, number, count, chunks, placement)
        if source is not None:
            direction = _direction(action, source, number, count)
            message, place = posted[direction].popleft()
            found[position + 1] = message, issued[stream("recv", direction)] - 1 - place
    return found


def _sender(action: Action, stage: int, count: int, chunks: int, placement: Placement) -> int | None:
    for where, _ in needs(action, stage, count, chunks, placement):
        if where != stage:
            return where
    return None


def _exchanges(
    stage: _StageMessages, own: dict[int, tuple[StageMessage, int]], *, overlap: bool
) -> list[ActionMessages]:
    out = []
    sent: list[StageMessage] = []
    for position in range(len(stage.actions)):
        sends = tuple(stage.sends.get(position, ()))
        out.append(
            ActionMessages(
                own=own.get(position),
                awaits=() if overlap else tuple(sorted({message.direction for message in sent})),
                sends=sends,
                posts=tuple(message for _, message in stage.posts.get(position, [])),
            )
        )
        sent = list(sends)
    return out
