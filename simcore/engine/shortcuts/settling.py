"""Whether a job has settled, seen while it is played; what it would only repeat is then left out.

Note [Settling]
    Ranks play a job with more repetitions than have to be looked at.  When a stream has come to the end of
    the first ``kept`` of these, all else is behind that, on all ranks, and the launches of what would come
    next have not mattered yet.  If by then everybody seems to repeat itself, ranks go on as if all further
    repetitions did not exist (:mod:`simcore.engine.going_on`), with the drain of the pipeline; else one more
    repetition is kept, and if what is played comes to its end, it gets more of them.  So nothing has been
    played in vain, and a job that does not settle has been played whole.

    That all *seem* to repeat themselves is a guess, from when items began; the proof follows when all has
    been played (Note [Steady state]).  Where replicas have paces of their own, this is as soon as these are
    known, and the job is played once more (:class:`OutOfStepError`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simcore.engine.going_on import follow, may_follow
from simcore.engine.shortcuts.repeats import FEW
from simcore.engine.shortcuts.span import Solo
from simcore.engine.shortcuts.ties import parts_of, ties_of
from simcore.network.fluid import FluidNetwork
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.engine.rank import Rank
    from simcore.engine.shortcuts.repeats import Repeating, Shortened
    from simcore.engine.shortcuts.solo import Solos
    from simcore.engine.simulate import Tapes
    from simcore.engine.tape import Tape
    from simcore.graph import Graph
    from simcore.graph.ops import IntArray

_NEVER = np.iinfo(np.int64).max


class OutOfStepError(Exception):
    """Classes come to paces of their own: ``found`` should be played with them beginning at ``begin_ps``.
    To see that took ``events``.
    """

    def __init__(self, begin_ps: IntArray, events: int) -> None:
        super().__init__()
        self.begin_ps = begin_ps
        self.events = events


class StuckError(Exception):
    """What is played cannot go on as the whole job does."""


@dataclass(frozen=True, slots=True)
class _Pace:
    """A rank repeats itself each ``period_ps`` since ``since_ps``; the oldest that it waits for began at
    ``oldest_ps``.
    """

    period_ps: int
    since_ps: int
    oldest_ps: int


class Settling:
    """A job that is played, ``graph``, until it has settled.  ``found`` is what is played of it in the end,
    each class repeating itself each ``period_ps``; None: all of it.
    """

    def __init__(self, repeating: Repeating) -> None:
        self._repeating = repeating
        self._kept = FEW
        self._begun = repeating.begun(FEW)
        self.found: Shortened | None = None
        self.graph: Graph = self._begun.graph
        self.period_ps = np.zeros(0, dtype=np.int64)
        self._ranks: Sequence[Rank] = ()
        self._tapes: Tapes | None = None
        self._solos: Solos | None = None

    def start(self, ranks: Sequence[Rank], tapes: Tapes, solos: Solos | None) -> None:
        """``ranks`` are about to play ``tapes``."""
        self._ranks, self._tapes, self._solos = ranks, tapes, solos
        for rank in ranks:
            rank.at_stop = self._ask
        self._stop()

    def _stop(self) -> None:
        """Ask again when a stream has played what is kept."""
        left_out = self._repeating.copies - self._kept
        known: dict[Tape, list[int]] = {}
        for rank in self._ranks:
            tape = rank.tape
            if tape not in known:
                program = int(self.graph.program_of_rank[rank.number])
                last, stop = (_items(tape, self._bound(program, more)) for more in (left_out + 1, left_out))
                known[tape] = [
                    here if here > before else len(items)
                    for before, here, items in zip(last, stop, tape.streams, strict=True)
                ]
            rank.stops = known[tape].copy()

    def _bound(self, program: int, left_out: int) -> int:
        """The first flat op of a program behind its repetitions, without the last of them."""
        repeats = self._repeating.repeats[program]
        instance = repeats.first + (repeats.copies - left_out) * repeats.size + repeats.rest
        return int(self._begun.first_ops(program)[instance])

    def _ask(self) -> None:
        """A stream has played what is kept: how do all go on?"""
        short = self._repeating.kept(self._kept)
        assert short is not None
        late = self._settled(short)
        if late is not None:
            if late.any():
                self.found, self.graph = short, short.graph
                events = self._ranks[0].gpu.clock.num_events
                self._leave()
                raise OutOfStepError(late, events)
            if self._go_on(short, self._kept):
                self.found = short
                self._leave()
                return
        self._kept = max(self._kept + 1, self._kept * 5 // 4)
        played = self._repeating.copies - self._begun.left_out
        if self._repeating.kept(self._kept) is None:
            self._extend(self._repeating.copies)
            self._leave()
            return
        needed = self._repeating.begun(self._kept)
        if needed.left_out < self._begun.left_out:
            self._extend(max(2 * played, self._repeating.copies - needed.left_out))
        self._stop()

    def _leave(self) -> None:
        """Nobody asks any more."""
        for rank in self._ranks:
            rank.stops, rank.at_stop = [len(items) for items in rank.tape.streams], None
        self._ranks, self._tapes, self._solos = (), None, None  # they end with the job

    def _extend(self, most: int) -> None:
        """Play up to ``most`` repetitions."""
        if not self._begun.left_out:
            return
        played = self._repeating.copies - self._begun.left_out
        longer = self._repeating.begun(most)
        if not self._go_on(longer, played):
            raise StuckError
        self._begun = longer

    def _go_on(self, short: Shortened, kept: int) -> bool:
        """Have all go on as in another job, which is the same up to the last of its first ``kept``
        repetitions; False where that cannot be.
        """
        assert self._tapes is not None
        left_out = self._repeating.copies - kept
        before = self.graph
        self._tapes.change(short.graph)
        alike: dict[tuple[Tape, Tape], list[int] | None] = {}
        going: list[tuple[Rank, Tape, list[int]]] = []
        for rank in self._ranks:
            tape = self._tapes.of_rank(rank.number)
            pair = (rank.tape, tape)
            if pair not in alike:
                program = int(before.program_of_rank[rank.number])
                alike[pair] = _alike(*pair, self._bound(program, left_out))
            same = alike[pair]
            if (
                same is None
                or not may_follow(rank, tape, same)
                or (self._solos is not None and not self._solos.may_follow(rank, tape))
            ):
                self._tapes.change(before)
                self._forget_other_tapes()
                return False
            going.append((rank, tape, same))
        self.graph = short.graph
        for rank, tape, _ in going:
            if self._solos is not None:
                self._solos.follow(rank, tape)
        for rank, tape, same in going:
            follow(rank, tape, same)
        self._forget_other_tapes()
        return True

    def _forget_other_tapes(self) -> None:
        if self._solos is not None:
            self._solos.keep({rank.tape for rank in self._ranks})

    def _settled(self, short: Shortened) -> IntArray | None:
        """By how much later classes should begin so that what is left out makes no difference to when they
        meet; None where they have not settled.
        """
        ranks, paces = self._ranks, []
        now = ranks[0].gpu.clock.now
        for rank in ranks:
            pace = self._pace(rank, short)
            if pace is None:
                return None
            paces.append(pace)
        network = ranks[0].gpu.network
        ties = ties_of(ranks, network if isinstance(network, FluidNetwork) else None)  # of calls so far
        part = parts_of(ties, lambda *_: True).of_class
        period = np.array([pace.period_ps for pace in paces], dtype=np.int64)
        since = np.zeros_like(period)
        np.maximum.at(since, part, [pace.since_ps for pace in paces])
        oldest = np.array([pace.oldest_ps for pace in paces])
        if (period != period[part]).any() or (since >= now).any() or (oldest < since[part]).any():
            return None
        self.period_ps = period
        late: IntArray = short.left_out * (period - period.min())
        return late

    def _pace(self, rank: Rank, short: Shortened) -> _Pace | None:
        """What is known of a rank by now, as far as it has been noted when things began."""
        tape = rank.tape
        begin, size, _ = short.repeated(int(self.graph.program_of_rank[rank.number]))
        start, end = (np.full(len(tape.flat), -1, dtype=np.int64) for _ in range(2))
        oldest = int(_NEVER)
        for stream, (ready, *columns) in enumerate(rank.records):
            first, here = _first_ops(tape, stream), rank.done[stream]
            for column, noted in zip((start, end), columns, strict=True):
                column[first] = noted
            if here < len(ready) and ready[here] >= 0:
                oldest = min(oldest, ready[here])
        if isinstance(rank.player, Solo):
            items, times = rank.player.begun()
            start[_first_ops(tape, rank.player.streams[0])[items]] = times
        ops = begin + size + np.flatnonzero((start[begin + size :] >= 0) & (start[begin:-size] >= 0))
        if not len(ops):
            return None
        shift = start[ops] - start[ops - size]
        period = int(shift[start[ops].argmax()])
        differs = ops[shift != period]
        since = max(
            int(start[ops].min()), int(start[differs].max(initial=0)), int(end[differs].max(initial=0))
        )
        return _Pace(period, since, oldest)


def _first_ops(tape: Tape, stream: int) -> IntArray:
    """The first flat op of each item of a stream."""
    lo, hi = tape.first_item[stream], tape.first_item[stream + 1]
    return tape.order[tape.first_op[lo:hi]].astype(np.int64)


def _items(tape: Tape, bound: int) -> list[int]:
    """How many items of each stream are before flat op ``bound``."""
    return [int(np.searchsorted(_first_ops(tape, s), bound)) for s in range(len(tape.streams))]


def _alike(one: Tape, other: Tape, bound: int) -> list[int] | None:
    """How many items of each stream are before flat op ``bound``; None where they are not the same on both
    tapes.
    """
    if one.stream_names != other.stream_names:
        return None
    items = _items(one, bound)
    if items != _items(other, bound):
        return None
    for stream, number in enumerate(items):
        lo, hi = one.first_item[stream], other.first_item[stream]
        for column in ("segment", "launched_ps"):
            ours, theirs = getattr(one.table, column), getattr(other.table, column)
            if not np.array_equal(ours[lo : lo + number], theirs[hi : hi + number]):
                return None
        if not np.array_equal(_first_ops(one, stream)[:number], _first_ops(other, stream)[:number]):
            return None
    return items if np.array_equal(_waits(one, items), _waits(other, items)) else None


def _waits(tape: Tape, items: Sequence[int]) -> IntArray:
    """What the first ``items`` of each stream wait for: pairs of flat ops."""
    first = tape.order[tape.first_op].astype(np.int64)
    is_before = np.zeros(len(first), dtype=np.bool_)
    for stream, number in enumerate(items):
        is_before[tape.first_item[stream] : tape.first_item[stream] + number] = True
    kept = is_before[tape.table.wait_to]
    pairs = np.stack([first[tape.table.wait_to[kept]], first[tape.table.wait_from[kept]]], axis=1)
    return pairs[np.lexsort(pairs.T)]
