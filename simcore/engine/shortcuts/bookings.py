"""What was answered for: cells that ranks went through, and from it their records and what flows did.

Cells are booked one stretch after the other as a few numbers.  Everything that follows from them is worked
out at the end, for a whole rank, and for all flows, at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final

import numpy as np

from simcore.engine.record import joined
from simcore.records import dataclass

if TYPE_CHECKING:
    import numpy.typing as npt

    from simcore.engine.rank import Rank
    from simcore.engine.result import Int32Array
    from simcore.engine.shortcuts.cells import Cells
    from simcore.engine.shortcuts.chain_times import ChainTimes
    from simcore.engine.shortcuts.laid import CellTimes
    from simcore.graph.ops import IntArray

#: Columns of a rank's record: (ready, start, end) by item, and from this one on (start, end) by op.
FIRST_OF_OPS: Final = 3
NUM_COLUMNS: Final = 5
#: Stands for the plan of a call whose flow another rank notes.
UNTOLD: Final = -1


@dataclass(frozen=True, eq=False, slots=True)
class Stretch:
    """Cells ``first`` to ``stop`` of a chain.  ``plans`` by call: their number in the network's log, or
    :data:`UNTOLD`.
    """

    times: ChainTimes
    first: int
    stop: int
    plans: tuple[int, ...]


@dataclass(eq=False, slots=True)
class Bookings:
    """Stretches that one rank went through, ``booked`` one after the other: the how-manieth of ``stretches``,
    the place where it began, when its chain would have begun, and the how-manieth booking of the job it was.
    """

    stretches: list[Stretch] = field(default_factory=list)
    booked: array[int] = field(default_factory=lambda: array("q"))
    _known: dict[tuple[ChainTimes, int, int], int] = field(default_factory=dict)

    def add(
        self,
        times: ChainTimes,
        first: int,
        stop: int,
        plans: tuple[int, ...],
        place: int,
        begin_ps: int,
        number: int,
    ) -> None:
        """Book a stretch that began at ``place``."""
        key = (times, first, stop)
        which = self._known.get(key)
        if which is None:
            which = self._known[key] = len(self.stretches)
            self.stretches.append(Stretch(times, first, stop, plans))
        self.booked.extend((which, place, begin_ps, number))

    @property
    def columns(self) -> IntArray:
        """What is booked, by column."""
        return np.array(self.booked, dtype=np.int64).reshape(-1, 4).T

    @property
    def outcome(self) -> object:
        """What :meth:`record` depends on."""
        stretches = tuple((one.times, one.first, one.stop) for one in self.stretches)
        return stretches, self.columns[:3].tobytes()

    def begun(self, cells: Cells) -> tuple[IntArray, IntArray]:
        """Items of the main stream at which stretches began, and when, ps."""
        since = np.array([one.times.begin_ps[one.first] for one in self.stretches], dtype=np.int64)
        main = np.array(cells.places, dtype=np.int64)[:: len(cells.streams)]
        stretch, place, begin_ps, _ = self.columns
        return main[place], begin_ps + since[stretch]

    def record(self, rank: Rank, cells: Cells) -> int:
        """Add the times of what is booked to the rank's record; returns of how many ops."""
        if not self.stretches:
            return 0
        tape, booked = rank.tape, _Booked.of(self)
        records = [
            np.frombuffer(column, dtype=np.int64) if len(column) else np.zeros(0, dtype=np.int64)
            for column in (rank.item_ready, rank.item_start, rank.item_end, rank.op_start, rank.op_end)
        ]
        places = np.array(cells.places, dtype=np.int64).reshape(-1, len(cells.streams))
        place = places[self.columns[1]][booked.booking]
        columns = [
            np.concatenate([np.frombuffer(cell.columns[column], dtype=np.int64) for cell in booked.cells])
            for column in range(NUM_COLUMNS)
        ]
        num_ops = 0
        for s, stream in enumerate(cells.streams):
            size = booked.sizes[booked.cell, s]
            num_ops += int(size[:, 1].sum())
            item = tape.first_item[stream] + place[:, s] + booked.items_before[:, s]
            for column, values in enumerate(columns):
                kind = int(column >= FIRST_OF_OPS)
                number_set = np.concatenate([[0], np.cumsum(values >= 0)])
                begin = booked.first[:, s, kind]
                is_set = number_set[begin + booked.sizes[:, s, kind]] > number_set[begin]
                kept = np.flatnonzero(is_set[booked.cell])
                if not len(kept):
                    continue
                sizes = size[kept, kind]
                first = tape.first_op[item[kept]] if kind else item[kept]
                value = values[ranges(begin[booked.cell[kept]], sizes)]
                moved = value + np.repeat(booked.begin_ps[kept], sizes)
                records[column][ranges(first, sizes)] = np.where(value >= 0, moved, -1)
        return num_ops

    def log(self) -> tuple[IntArray, Int32Array, npt.NDArray[np.float64], IntArray]:
        """(time, number of the plan, change of its rate) of all flows; the booking that each belongs to."""
        booked = _Booked.of(self)
        changes = [change for cell in booked.cells for change in cell.changes]
        time, call, change = zip(*changes, strict=True) if changes else ((), (), ())
        count = np.array([len(cell.changes) for cell in booked.cells], dtype=np.int64)
        plans = np.array([plan for one in self.stretches for plan in one.plans], dtype=np.int32)
        first_plan = np.cumsum([0, *(len(one.plans) for one in self.stretches)])[:-1]
        size = count[booked.cell]
        of = ranges((np.cumsum(count) - count)[booked.cell], size)
        stretch, _, _, number = self.columns
        first_call = first_plan[stretch][booked.booking] + booked.first_call
        plan = plans[np.array(call, dtype=np.int64)[of] + np.repeat(first_call, size)]
        told = plan != UNTOLD
        return (
            (np.array(time, dtype=np.int64)[of] + np.repeat(booked.begin_ps, size))[told],
            plan[told],
            np.array(change, dtype=np.float64)[of[told]],
            np.repeat(number[booked.booking], size)[told],
        )


@dataclass(frozen=True, eq=False, slots=True)
class _Booked:
    """The cells of all bookings of a rank, one after the other.

    ``cells`` are the different ones, ``sizes[n, s]`` the (items, ops) of one on stream ``s`` and ``first[n,
    s]`` where these begin in the columns of all of them.  Of each that is booked: the ``cell``, its
    ``booking``, when it begins, the number of its first call in the chain, and ``items_before`` it on each
    stream since the booking's place.
    """

    cells: list[CellTimes]
    sizes: IntArray
    first: IntArray
    cell: IntArray
    booking: IntArray
    begin_ps: IntArray
    first_call: IntArray
    items_before: IntArray

    @classmethod
    def of(cls, bookings: Bookings) -> _Booked:
        number: dict[CellTimes, int] = {}
        shapes: list[tuple[tuple[int, int], ...]] = []
        cells: list[int] = []
        begins: list[int] = []
        calls: list[int] = []
        for one in bookings.stretches:
            times, pattern = one.times, one.times.pattern
            for place in range(one.first, one.stop):
                cell = times.cells[place]
                assert cell is not None
                if cell not in number:
                    number[cell] = len(number)
                    shapes.append(pattern.cells[place].shape)
                cells.append(number[cell])
            begins += times.begin_ps[one.first : one.stop]
            calls += pattern.first_call[one.first : one.stop]
        sizes = np.array(shapes, dtype=np.int64)
        whole = sizes.sum(axis=1)
        first = (np.cumsum(whole, axis=0) - whole)[:, None] + np.cumsum(sizes, axis=1) - sizes
        # Of each stretch: the cells in it, and what is before them.
        cell_of = np.array(cells, dtype=np.int64)
        counts = np.array([one.stop - one.first for one in bookings.stretches], dtype=np.int64)
        begin_of = np.cumsum(counts) - counts
        items = sizes[cell_of, :, 0]
        before = np.cumsum(items, axis=0) - items
        before -= np.repeat(before[begin_of], counts, axis=0)
        # Of each booking the cells of its stretch.
        stretch, _, chain_begin_ps, _ = bookings.columns
        count = counts[stretch]
        at = ranges(begin_of[stretch], count)
        booking = np.repeat(np.arange(len(stretch)), count)
        begin_ps = chain_begin_ps[booking] + np.array(begins, dtype=np.int64)[at]
        first_call = np.array(calls, dtype=np.int64)[at]
        return cls(list(number), sizes, first, cell_of[at], booking, begin_ps, first_call, before[at])


def log_of(bookings: Sequence[Bookings]) -> tuple[IntArray, Int32Array, npt.NDArray[np.float64]]:
    """(time, number of the plan, change of its rate) of all flows of some ranks, in the order of bookings."""
    parts = [one.log() for one in bookings if one.stretches]
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0)
    times, plans, changes, numbers = (list(column) for column in zip(*parts, strict=True))
    parts.clear()
    order = np.argsort(joined(numbers), kind="stable")
    return joined(times)[order], joined(plans)[order], joined(changes)[order]


def ranges(first: IntArray, size: IntArray) -> IntArray:
    """``size`` numbers from each ``first`` on."""
    before = np.cumsum(size) - size
    numbers: IntArray = np.arange(int(size.sum())) + np.repeat(first - before, size)
    return numbers
