"""A rank's cells as one event: which ranks have them, when a span may begin, what is recorded of it.

Note [Catching up]
    While a span is under way its rank's streams sleep.  When a flow or a kernel of others touches the GPU or
    the links of the span, cells that are over are booked, and the one that is under way is played from its
    start, event by event, up to now (:meth:`simcore.clock.Clock.catching_up`): its events concern nobody
    else.  From there on the rank goes on as if it had never slept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from simcore.clock import Movable
from simcore.engine.record import joined
from simcore.engine.shortcuts.cell_times import CellBook, OwnCalls, Share, Signature
from simcore.engine.shortcuts.cells import Cells, Chain, Pattern, Patterns
from simcore.engine.shortcuts.chain_times import FIRST_OF_OPS, ChainTimes, strung
from simcore.engine.shortcuts.find_cells import find_cells

if TYPE_CHECKING:
    import numpy.typing as npt

    from simcore.engine.items import Call
    from simcore.engine.rank import Rank
    from simcore.engine.result import Int32Array
    from simcore.engine.tape import Tape
    from simcore.graph import Graph
    from simcore.graph.kinds import BoolArray
    from simcore.graph.ops import IntArray
    from simcore.network.fluid import FluidNetwork
    from simcore.network.link import Link


#: Finding the cells of a template and timing them costs about as much as playing so many ops.
WORTH_OPS: Final = 150
#: A rank whose spans, after so many of them, have mostly been taken apart in their first cell goes without.
_TRIALS: Final = 50


def are_worthwhile(graph: Graph) -> bool:
    """Whether programs play their templates long and often enough for spans to save time."""
    size = np.diff(graph.template_start)
    played = sum(int(size[program.template].sum()) for program in graph.programs)
    templates = sum(len(np.unique(program.template)) for program in graph.programs)
    return played >= WORTH_OPS * templates


@dataclass(frozen=True, eq=False, slots=True)
class Booked:
    """Cells ``first`` to ``stop`` of a chain, as often as one rank went through them.

    Each time: the place where it began, when the chain would have begun, and the how-manieth booking of the
    job it was.  ``plans`` by call: their number in the network's log.
    """

    times: ChainTimes
    first: int
    stop: int
    plans: tuple[int, ...]
    places: array[int] = field(default_factory=lambda: array("q"))
    begin_ps: array[int] = field(default_factory=lambda: array("q"))
    numbers: array[int] = field(default_factory=lambda: array("q"))


@dataclass
class Solos:
    """What the ranks of a job share: times of cells, patterns, the record."""

    network: FluidNetwork
    book: CellBook
    num_ops: int = 0
    num_booked: int = 0
    booked: list[Booked] = field(default_factory=list)
    patterns: Patterns = field(default_factory=Patterns)
    cells: dict[tuple[object, ...], Cells] = field(default_factory=dict)
    chains: dict[tuple[Pattern, Signature, Share], ChainTimes] = field(default_factory=dict)

    def times(self, own: OwnCalls, pattern: Pattern, share: Share) -> ChainTimes:
        """Times of a chain as a rank carries out its calls."""
        key = (pattern, own.signature(pattern), share)
        found = self.chains.get(key)
        if found is None:
            found = self.chains[key] = strung(self.book.cells(own, pattern, share), pattern)
        return found

    def of(self, rank: Rank) -> Solo | None:
        """The rank's cells; None where it communicates with others only."""
        tape = rank.tape
        main = _main_stream(tape)
        if main < 0:
            return None
        by_stream = [_calls_of(tape, stream) for stream in range(len(tape.streams))]
        calls = dict.fromkeys(call for of in by_stream for call in of)
        alone = frozenset(call for call in calls if rank.communicators.is_alone(rank.number, call))
        if not alone:
            return None
        streams = [
            stream
            for stream in range(len(tape.streams))
            if stream != main
            and alone.issuperset(by_stream[stream])
            and _of_stream(tape, stream, tape.table.communicates).all()
            and _is_joined(tape, main, stream)
        ]
        key = (tape, main, *streams, alone)
        cells = self.cells.get(key)
        if cells is None:
            foreign = [call.rows for call in calls if call not in alone]
            rows = np.concatenate(foreign) if foreign else np.zeros(0, dtype=np.int64)
            is_local = ~np.isin(tape.flat.row[tape.order[tape.first_op]], rows)
            sizes = np.diff(np.append(tape.first_op, len(tape.order)))
            if foreign and (sizes[tape.table.communicates] > 1).any():
                ops_local = ~np.isin(tape.flat.row[tape.order], rows)
                is_local = np.logical_and.reduceat(ops_local, tape.first_op)
            cells = self.cells[key] = find_cells(tape, (main, *streams), is_local, self.patterns)
        if not cells.chains:
            return None
        local = [call for stream in cells.streams for call in by_stream[stream] if call in alone]
        return Solo(self, rank, main, cells, local)


class Solo:
    """Cells of one rank: who answers for stretches of its main stream.

    ``by_itself``: item of that stream from which a cell is played event by event, -1: none.
    """

    def __init__(self, shared: Solos, rank: Rank, main: int, cells: Cells, calls: Sequence[Call]) -> None:
        self.rank = rank
        self.stream = main
        self.cells = cells
        self.by_itself = -1
        self._own = OwnCalls(shared.book, rank)
        self._shared = shared
        self._spans = self._cells_played = 0
        self._used: dict[Pattern, tuple[tuple[int, ...], tuple[Link, ...]]] = {}
        self._known: dict[tuple[Pattern, Share], tuple[ChainTimes, tuple[Link, ...]]] = {}
        self._booked: dict[tuple[ChainTimes, int, int], Booked] = {}
        for call in calls:
            for link, _, _ in shared.network.route(rank.bound(call)[1]).uses:
                link.observer = rank.gpu  # they are its own: what happens on them it has to know

    def play(self, item: int) -> Span | None:
        """The chain from an item of the stream on, where a cell begins, as one event, as far as nothing is in
        the way.
        """
        cells = self.cells
        number = cells.chain[item]
        if number < 0 or item == self.by_itself:
            return None
        if self._spans >= _TRIALS and self._cells_played < self._spans:
            return None
        rank = self.rank
        share = rank.gpu.taken()
        if share is None:
            return None
        chain, cell = cells.chains[number], cells.cell[item]
        pattern = chain.pattern
        known = self._known.get((pattern, share))
        if known is None:
            times = self._shared.times(self._own, pattern, share)
            known = self._known[pattern, share] = times, self._plans_and_links(pattern)[1]
        times, links = known
        stop, now = times.usable[cell], rank.gpu.clock.now
        base = rank.host_base[chain.segment]
        if base + chain.all_launched_ps > now:  # the host is not far ahead
            begin = now - times.begin_ps[cell]
            for number in range(cell, stop):
                launched = base + chain.launched_ps[number]
                if launched > now and launched > begin + times.begin_ps[number]:
                    stop = number
                    break
        if pattern.first_item[stop] - pattern.first_item[cell] < 2:
            return None
        for link in links:
            if link.flows:
                return None
        self._spans += 1
        return Span(self, chain, times, cell, stop)

    def book(self, chain: Chain, times: ChainTimes, first: int, stop: int, begin_ps: int) -> None:
        """Cells ``first`` to ``stop`` of a chain that began at ``begin_ps`` are over."""
        self._cells_played += stop - first
        key = (times, first, stop)
        booked = self._booked.get(key)
        if booked is None:
            plans, _ = self._plans_and_links(chain.pattern)
            booked = self._booked[key] = Booked(times, first, stop, plans)
            self._shared.booked.append(booked)
        booked.places.append(chain.place + first)
        booked.begin_ps.append(begin_ps)
        booked.numbers.append(self._shared.num_booked)
        self._shared.num_booked += 1
        self.rank.pass_by(self.cells.streams, self.cells.at(chain.place + stop))

    def record(self) -> None:
        """See :class:`simcore.engine.rank.Player`."""
        rank = self.rank
        tape = rank.tape
        record = [
            np.frombuffer(column, dtype=np.int64) if len(column) else np.zeros(0, dtype=np.int64)
            for column in (rank.item_ready, rank.item_start, rank.item_end, rank.op_start, rank.op_end)
        ]
        every = np.array(self.cells.places, dtype=np.int64).reshape(-1, len(self.cells.streams))
        for booked in self._booked.values():
            times, begin = booked.times, np.array(booked.begin_ps)[:, None]
            places = every[np.array(booked.places)]
            for s, stream in enumerate(self.cells.streams):
                (item_lo, op_lo), (item_hi, op_hi) = times.first[booked.first][s], times.first[booked.stop][s]
                if item_lo == item_hi:
                    continue
                self._shared.num_ops += (op_hi - op_lo) * len(places)
                item = tape.first_item[stream] + places[:, s]
                items = item[:, None] + np.arange(item_hi - item_lo)
                ops = tape.first_op[item][:, None] + np.arange(op_hi - op_lo)
                for number, column, is_complete in times.streams[s]:
                    at, lo, hi = (ops, op_lo, op_hi) if number >= FIRST_OF_OPS else (items, item_lo, item_hi)
                    part, is_set = column[lo:hi], is_complete or column[lo:hi] >= 0
                    record[number][at] = np.where(is_set, part + begin, -1)

    def _plans_and_links(self, pattern: Pattern) -> tuple[tuple[int, ...], tuple[Link, ...]]:
        """Numbers in the network's log of the plans of a pattern's calls, and the links that they use."""
        found = self._used.get(pattern)
        if found is None:
            routes = [self._shared.network.route(self.rank.bound(call)[1]) for call in pattern.calls]
            links = dict.fromkeys(link for route in routes for link, _, _ in route.uses)
            found = self._used[pattern] = tuple(route.number for route in routes), tuple(links)
        return found


class Span(Movable):
    """Cells ``first`` to ``stop`` of a chain on a rank's GPU; fires when the main stream goes on."""

    def __init__(self, solo: Solo, chain: Chain, times: ChainTimes, first: int, stop: int) -> None:
        super().__init__(solo.rank.gpu.clock)
        self._solo = solo
        self._chain = chain
        self._times = times
        self._first = first
        self._stop = stop
        self._begin_ps = self.env.now - times.begin_ps[first]  # when the chain would have begun
        solo.rank.gpu.observer = self
        self.set(self._begin_ps + times.begin_ps[stop])

    def due(self) -> None:
        """All cells are over."""
        self._go_on(self._stop)

    def touched(self) -> None:
        """Somebody is about to use the GPU or the links: be where the rank is now."""
        self.unset()
        now, times = self.env.now, self._times
        over = bisect_right(times.begin_ps, now - self._begin_ps, self._first, self._stop + 1) - 1
        if over >= self._stop:
            self._go_on(self._stop)
        else:
            with self.env.catching_up(self._begin_ps + times.begin_ps[over]):
                self._go_on(over)

    def _go_on(self, cell: int) -> None:
        """Book what is over; the streams go on at the start of ``cell``."""
        solo = self._solo
        solo.rank.gpu.observer = None
        if cell > self._first:
            solo.book(self._chain, self._times, self._first, cell, self._begin_ps)
        solo.by_itself = solo.cells.at(self._chain.place + cell)[0] if cell < self._stop else -1
        self.fire()


def _of_stream(tape: Tape, stream: int, column: BoolArray) -> BoolArray:
    """The part of a column by item."""
    return column[tape.first_item[stream] : tape.first_item[stream + 1]]


def _main_stream(tape: Tape) -> int:
    """The stream with the most runs of kernels, -1 without any."""
    streams = range(len(tape.streams))
    runs = [int((~_of_stream(tape, stream, tape.table.communicates)).sum()) for stream in streams]
    most = max(runs, default=0)
    return runs.index(most) if most else -1


def _calls_of(tape: Tape, stream: int) -> list[Call]:
    """Different calls of a stream."""
    mine = np.zeros(tape.num_items, dtype=np.bool_)
    mine[tape.first_item[stream] : tape.first_item[stream + 1]] = True
    rows = tape.flat.row[tape.order[(mine & tape.table.communicates)[tape.item_of]]]
    return list(dict.fromkeys(tape.calls[row] for row in np.unique(rows).tolist()))


def _is_joined(tape: Tape, main: int, stream: int) -> bool:
    """Whether the main stream waits for most of what a stream does where it is launched, not much later."""
    table, first = tape.table, tape.first_item
    instance = tape.flat.instance[tape.order[tape.first_op]]
    joins = (first[main] <= table.wait_to) & (table.wait_to < first[main + 1])
    joins &= (first[stream] <= table.wait_from) & (table.wait_from < first[stream + 1])
    joins &= instance[table.wait_from] == instance[table.wait_to]
    return 2 * len(np.unique(table.wait_from[joins])) > len(tape.streams[stream])


def log_of(booked: Sequence[Booked]) -> tuple[IntArray, Int32Array, npt.NDArray[np.float64]]:
    """(time, number of the plan, change of its rate) of all flows in spans, in the order of bookings."""
    times, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    plans, changes = [np.zeros(0, np.int32)], [np.zeros(0)]
    for one in booked:
        part = slice(one.times.first_change[one.first], one.times.first_change[one.stop])
        if part.start < part.stop:
            count = len(one.begin_ps)
            times.append((np.array(one.begin_ps)[:, None] + one.times.change_ps[part]).ravel())
            plans.append(np.tile(np.array(one.plans, np.int32)[one.times.change_call[part]], count))
            changes.append(np.tile(one.times.change[part], count))
            numbers.append(np.repeat(one.numbers, part.stop - part.start))
    order = np.argsort(np.concatenate(numbers), kind="stable")
    numbers.clear()
    return joined(times)[order], joined(plans)[order], joined(changes)[order]
