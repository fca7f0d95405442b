"""One simulated rank: a coroutine per stream, one for the host that launches, and the record of times.

Note [Going on]
    Coroutines of ranks wait for millions of events.  What one waits for calls its ``send`` (``wake``), so
    that nothing has to run between them, as it would in a process of SimPy's.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol

from simpy.events import Event, Timeout

from simcore.clock import Clock, Coroutine, Signal
from simcore.collectives.plan import launch_channels
from simcore.engine.items import Call, Communication, Item, Items
from simcore.engine.sequence import KernelSequence
from simcore.engine.tape import Tape

if TYPE_CHECKING:
    from simcore.collectives.plan import CollectivePlan
    from simcore.engine.gpu import Gpu
    from simcore.engine.layout import Completion
    from simcore.engine.rendezvous import Communicator, Communicators

Wake = Callable[[Any], Any]  # has who waits go on
ItemByNumber = Mapping[int, Item] | Sequence[Item]
UNSET: Final = array("q", [-1])


class Player(Protocol):
    """Somebody who may answer for a stretch of a rank's stream with one event.

    ``streams``: those that it may answer for, the one that is asked first.
    """

    streams: tuple[int, ...]

    def play(self, item: int) -> Event | None:
        """What happens when the stream goes on, the items up to there done; None: the stream plays ``item``
        itself.
        """
        ...

    @property
    def outcome(self) -> object:
        """What :meth:`record` depends on: players of equal ones on one tape add the same."""
        ...

    def record(self) -> int:
        """The rank's record is laid out: add the times of what was answered for; returns of how many ops."""
        ...


class Rank:
    """A rank playing its tape on its GPU.

    Recorded by stream and item: ``ready``, ``start``, ``end``; for items whose ops did not simply follow one
    another, ``op_start`` and ``op_end`` of the ops, in the tape's order; -1 elsewhere.  Those of ops are most
    of a record and few are set: they are there from :meth:`lay_out` on, as are those of items in one column
    over all streams (``item_ready``, ``item_start``, ``item_end``).
    ``begin_ps`` is when the host begins, ``host_base`` when each host segment began launching, ``awaited``
    when all that it waits for was over.  ``stops``: the item of each stream before which :attr:`at_stop` is
    asked how the tape goes on (:mod:`.going_on`); the number of its items where nobody is asked.
    """

    __slots__ = (
        "_bound", "_clock", "_followers", "_host_waiters", "_noted", "_waiters", "at_stop", "awaited",
        "begin_ps", "communicators", "done", "gpu", "host_base", "item_end", "item_ready", "item_start",
        "number", "op_end", "op_start", "player", "records", "stops", "tape",
    )  # fmt: skip

    def __init__(self, number: int, tape: Tape, gpu: Gpu, communicators: Communicators, clock: Clock) -> None:
        self.number = number
        self.tape = tape
        self.gpu = gpu
        self.communicators = communicators
        self.done = [0] * len(tape.streams)  # items completed per stream
        # Arrays, for eight bytes a time: thousands of ranks may be simulated.
        self.records = [[UNSET * len(items) for _ in range(3)] for items in tape.streams]
        self.item_ready = self.item_start = self.item_end = self.op_start = self.op_end = array("q")
        self._noted = array("q")  # stream, item, number of ops, their starts, their ends, and so on
        self.stops = [len(items) for items in tape.streams]
        self.at_stop: Callable[[], None] | None = None
        self.host_base: list[int] = []
        self.awaited: list[int] = []
        self._clock = clock
        self._bound: dict[Call, tuple[Communicator, CollectivePlan]] = {}
        self._waiters: dict[Completion, list[Wake]] = defaultdict(list)  # for items, by stream and number
        self._followers: dict[int, tuple[int, Wake]] = {}
        self._host_waiters: dict[int, list[Wake]] = defaultdict(list)  # for segments
        self.player: Player | None = None
        self.begin_ps = 0

    @property
    def calls(self) -> dict[Call, CollectivePlan]:
        """How each call that the rank has made was carried out."""
        return {call: plan for call, (_, plan) in self._bound.items()}

    def bound(self, call: Call) -> tuple[Communicator, CollectivePlan]:
        """The communicator that a call of this rank runs on, and how it is carried out."""
        found = self._bound.get(call)
        if found is None:
            communicator = self.communicators.of(self.number, call)
            found = self._bound[call] = communicator, communicator.plan(call)
        return found

    @property
    def is_stuck(self) -> bool:
        """Whether something of the rank's tape has not been done."""
        tape = self.tape
        return sum(self.done) < tape.num_items or len(self.host_base) < len(tape.segments)

    def coroutines(self) -> list[Coroutine]:
        """The host's and the streams' coroutines, to be started in this order."""
        return [self._host(), *(self._stream(s) for s in range(len(self.tape.streams)))]

    # -- waiting for each other ------------------------------------------------------------------

    def _follow(self, stream: int, main: int, number: int, wake: Wake) -> None:
        """Wake a stream that a player answers for when an item of the main stream completes, which it answers
        for, too: as long as it does, the stream sleeps.
        """

        def follow(_: object) -> None:
            del self._followers[stream]
            wake(None)

        self._followers[stream] = number, follow
        self._waiters[main, number].append(follow)

    # -- the host --------------------------------------------------------------------------------

    def _host(self) -> Coroutine:
        wake = yield
        base, done = self.host_base, self.done
        while (number := len(base)) < len(self.tape.segments):
            waits = [one for one in self.tape.segments[number].waits if done[one[0]] <= one[1]]
            if waits:
                self._waiters[waits[0]].append(wake)
                yield
                continue  # there may be another tape by now
            self.awaited.append(self._clock.now)
            base.append(max(self.host_free_ps(), self._clock.now))
            for waiter in self._host_waiters.pop(number, ()):
                waiter(None)
        del wake  # by which it would keep itself
        yield

    def host_free_ps(self) -> int:
        """When the host has launched what it has begun to."""
        base = self.host_base
        return base[-1] + self.tape.segments[len(base) - 1].cost_ps if base else self.begin_ps

    @property
    def host_begin(self) -> list[int]:
        """When the host first wanted to begin each segment (a blocked SYNC lies before it did)."""
        segments = self.tape.segments
        free = [base + segment.cost_ps for base, segment in zip(self.host_base, segments, strict=True)]
        return [self.begin_ps, *free][: len(free)]

    # -- a stream --------------------------------------------------------------------------------

    def _stream(self, stream: int) -> Coroutine:
        wake = yield
        done, base, gpu, clock, bound = self.done, self.host_base, self.gpu, self._clock, self._bound
        sms = gpu.sms
        ready, start, end = self.records[stream]
        answered = self.player.streams if self.player is not None else (-1,)
        play = self.player.play if self.player is not None and answered[0] == stream else None
        main = answered[0] if stream in answered[1:] else -1
        waiters = self._waiters
        tape, stop = self.tape, self.stops[stream]
        items = _made(tape, stream)
        while True:
            here = done[stream]
            if here >= stop or self.tape is not tape:
                if self.tape is tape and stop == self.stops[stream]:
                    if stop == len(ready):
                        break
                    assert self.at_stop is not None
                    self.at_stop()
                tape, stop = self.tape, self.stops[stream]
                items = _made(tape, stream)
                continue
            segment, launch, waits, watched, work, on_copy_engine = items[here]
            for other, item in waits:
                if done[other] <= item:
                    if other != main:
                        waiters[other, item].append(wake)
                    else:
                        self._follow(stream, main, item, wake)
                    yield
                    if done[stream] != here or self.tape is not tape:  # a player took it further meanwhile
                        break
            if done[stream] != here or self.tape is not tape:
                continue
            if segment >= len(base):
                self._host_waiters[segment].append(wake)
                yield
                if self.tape is not tape:
                    continue
            if play is not None:
                stretch = play(here)
                if stretch is not None:
                    stretch.callbacks.append(wake)
                    yield
                    continue
            launch += base[segment]
            if isinstance(work, KernelSequence):
                if not on_copy_engine:
                    execution = gpu.execute(work, launch, stream)
                    if execution.callbacks is not None:
                        execution.callbacks.append(wake)
                        yield
                else:
                    with gpu.copy_engines.request() as engine:
                        engine.callbacks.append(wake)
                        yield
                        execution = gpu.execute(work, launch, stream)
                        if execution.callbacks is not None:
                            execution.callbacks.append(wake)
                            yield
                if execution.origin_ps is not None:
                    start[here] = execution.origin_ps
                else:
                    self._note(stream, here, execution.starts, execution.ends)
            else:
                if launch > clock.now:
                    Timeout(clock, launch - clock.now).callbacks.append(wake)
                    yield
                ready[here] = clock.now
                if len(work.calls) == 1:
                    (call,), (sequence,) = work
                    communicator, plan = bound.get(call) or self.bound(call)
                    channels = 0 if on_copy_engine else min(gpu.num_sms, plan.channels)
                    held = sms.ask(channels, plan.collective)
                    if held is not None:
                        held.callbacks.append(wake)
                        yield
                    meeting = communicator.arrive(call, sequence, plan, self.number, gpu)
                    meeting.callbacks.append(wake)
                    yield
                    sms.release(channels, plan.collective)
                    start[here] = meeting.start_ps
                    end[here] = meeting.end_ps
                else:
                    yield from self._fused(work, stream, here, wake)
            done[stream] += 1
            if waiters and (watched or self.tape is not tape):
                for waiter in waiters.pop((stream, here), ()):
                    waiter(None)
        del wake, items  # by which it would keep itself, and what items are made of
        yield

    def to_come(self, stream: int, number: int) -> Signal | None:
        """Fires when an item completes; None: it has."""
        if self.done[stream] > number:
            return None
        signal = Signal(self._clock)
        self._waiters[stream, number].append(lambda _: signal.fire())
        return signal

    def release(self, stream: int, number: int) -> None:
        """An item has ended, though its stream sleeps: wake who waits for it, other than who sleeps, too."""
        self.done[stream] = number + 1
        woken = self._waiters.pop((stream, number), ())
        asleep = [wake for _, wake in self._followers.values()] if woken else []
        kept = [wake for wake in woken if wake in asleep]
        if kept:
            self._waiters[stream, number] = kept
        for wake in woken:
            if wake not in kept:
                wake(None)

    def pass_by(self, streams: Sequence[int], place: Sequence[int], needed: Sequence[int]) -> None:
        """Items of ``streams`` before ``place`` are done, without their coroutines: wake who waits.

        ``needed``: what the next item of each stream but the first one, which leads, waits for there.  A
        stream that sleeps until an item before that is done sleeps on until then.
        """
        done, waiters, followers, lead = self.done, self._waiters, self._followers, streams[0]
        last, asking = len(self.records[lead][0]), []
        for which, stream in enumerate(streams):
            done[stream] = place[which]
            if stream not in followers:  # nor does the first one follow
                continue
            (before, wake), number = followers[stream], needed[which - 1]
            if done[stream] == self.stops[stream]:  # it has to ask now
                waiters[lead, before].remove(wake)
                asking.append(wake)
            elif before < done[lead] and number < last:
                with_it = waiters[lead, before]
                if len(with_it) == 1 and (lead, number) not in waiters:
                    waiters[lead, number] = waiters.pop((lead, before))
                else:
                    with_it.remove(wake)
                    waiters[lead, number].append(wake)
                followers[stream] = number, wake
        if waiters:
            woken = [key for key in waiters if key[1] < done[key[0]] and key[0] in streams]
            for key in woken:
                for wake in waiters.pop(key):
                    wake(None)
        for wake in asking:
            wake(None)

    def _fused(self, work: Communication, stream: int, item: int, wake: Wake) -> Coroutine:
        """Several calls as one launch: all meet at once, and the launch ends with the last."""
        gpu = self.gpu
        bound = [self.bound(call) for call in work.calls]
        channels = min(gpu.num_sms, launch_channels(plan for _, plan in bound))
        purpose = bound[0][1].collective
        held = gpu.sms.ask(channels, purpose)
        if held is not None:
            held.callbacks.append(wake)
            yield
        meetings = [
            communicator.arrive(call, sequence, plan, self.number, gpu)
            for call, sequence, (communicator, plan) in zip(*work, bound, strict=True)
        ]
        for meeting in meetings:
            if meeting.callbacks is not None:
                meeting.callbacks.append(wake)
                yield
        gpu.sms.release(channels, purpose)
        self._note(stream, item, [m.start_ps for m in meetings], [m.end_ps for m in meetings])

    def _note(self, stream: int, item: int, starts: list[int], ends: list[int]) -> None:
        """Times of the ops of an item of their own."""
        self._noted.extend((stream, item, len(starts), *starts, *ends))

    def outcome(self) -> tuple[bytes, object]:
        """What times of ops are made of, as a digest: equal ones of one tape are equal times.

        Where several things happened to a rank at once, equal times may have different ones.
        """
        told = sha256()
        for values in (self.host_begin, self.host_base):
            told.update(array("q", values))
        for column in (*(column for columns in self.records for column in columns), self._noted):
            told.update(column)
        return told.digest(), None if self.player is None else self.player.outcome

    def lay_out(self) -> None:
        """Everything has been played: times of ops in columns of their own."""
        tape = self.tape
        self.item_ready, self.item_start, self.item_end = (
            array("q", b"".join(columns[kind] for columns in self.records)) for kind in range(3)
        )
        self.records = []
        columns = [UNSET * len(tape.order) for _ in range(2)]
        noted, at = self._noted, 0
        while at < len(noted):
            stream, item, count = noted[at : at + 3]
            first = int(tape.first_op[tape.first_item[stream] + item])
            at += 3
            for column in columns:
                column[first : first + count] = noted[at : at + count]
                at += count
        self.op_start, self.op_end = columns
        self._noted = array("q")

    def forget(self) -> None:
        """The record is used up."""
        self.item_ready = self.item_start = self.item_end = self.op_start = self.op_end = array("q")
        self.records, self._noted = [], array("q")


def _made(tape: Tape, stream: int) -> ItemByNumber:
    """Where a stream's items are looked up."""
    items = tape.streams[stream]
    return items.made if isinstance(items, Items) else items
