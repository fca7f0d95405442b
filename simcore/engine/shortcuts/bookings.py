"""What was answered for: cells that ranks went through, and from it their records and what flows did.

Cells are booked one stretch after the other as a few numbers.  Everything that follows from them is worked
out at the end, for a whole rank, and for all flows, at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from simcore.engine.record import joined
from simcore.engine.shortcuts.chain_times import FIRST_OF_OPS, NUM_COLUMNS, ChainTimes

if TYPE_CHECKING:
    import numpy.typing as npt

    from simcore.engine.rank import Rank
    from simcore.engine.result import Int32Array
    from simcore.engine.shortcuts.cells import Cells
    from simcore.graph.ops import IntArray


@dataclass(frozen=True, eq=False, slots=True)
class Stretch:
    """Cells ``first`` to ``stop`` of a chain.  ``plans`` by call: their number in the network's log."""

    times: ChainTimes
    first: int
    stop: int
    plans: tuple[int, ...]


@dataclass(eq=False, slots=True)
class Bookings:
    """Stretches that one rank went through: the how-manieth of ``stretches``, the place where it began, when
    its chain would have begun, and the how-manieth booking of the job it was.
    """

    stretches: list[Stretch] = field(default_factory=list)
    stretch: array[int] = field(default_factory=lambda: array("i"))
    place: array[int] = field(default_factory=lambda: array("i"))
    begin_ps: array[int] = field(default_factory=lambda: array("q"))
    number: array[int] = field(default_factory=lambda: array("q"))
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
        self.stretch.append(which)
        self.place.append(place)
        self.begin_ps.append(begin_ps)
        self.number.append(number)

    def record(self, rank: Rank, cells: Cells) -> int:
        """Add the times of what is booked to the rank's record; returns of how many ops."""
        if not self.stretches:
            return 0
        tape = rank.tape
        records = [
            np.frombuffer(column, dtype=np.int64) if len(column) else np.zeros(0, dtype=np.int64)
            for column in (rank.item_ready, rank.item_start, rank.item_end, rank.op_start, rank.op_end)
        ]
        chains, chain_of = _numbered([stretch.times for stretch in self.stretches])
        bounds = np.array(
            [(one.times.first[one.first], one.times.first[one.stop]) for one in self.stretches]
        )  # [stretch][begin, end][stream][item, op]
        stretch, begin_ps = np.array(self.stretch), np.array(self.begin_ps)
        places = np.array(cells.places, dtype=np.int64).reshape(-1, len(cells.streams))[np.array(self.place)]
        num_ops = 0
        for s, stream in enumerate(cells.streams):
            item = tape.first_item[stream] + places[:, s]
            some = np.flatnonzero((bounds[:, 1, s, 0] > bounds[:, 0, s, 0])[stretch])
            item, which = item[some], stretch[some]
            since, size = bounds[which, 0, s], bounds[which, 1, s] - bounds[which, 0, s]
            num_ops += int(size[:, 1].sum())
            for column in range(NUM_COLUMNS):
                of_ops = int(column >= FIRST_OF_OPS)
                values, base = _columns(chains, s, column)
                base = base[chain_of[which]]
                kept = np.flatnonzero(base >= 0)
                if not len(kept):
                    continue
                sizes = size[kept, of_ops]
                first = tape.first_op[item[kept]] if of_ops else item[kept]
                value = values[_ranges(base[kept] + since[kept, of_ops], sizes)]
                moved = value + np.repeat(begin_ps[some[kept]], sizes)
                records[column][_ranges(first, sizes)] = np.where(value >= 0, moved, -1)
        return num_ops

    def log(self) -> tuple[IntArray, Int32Array, npt.NDArray[np.float64], IntArray]:
        """(time, number of the plan, change of its rate) of all flows; the booking that each belongs to."""
        chains, chain_of = _numbered([one.times for one in self.stretches])
        bounds = np.array(
            [(one.times.first_change[one.first], one.times.first_change[one.stop]) for one in self.stretches]
        )
        base = np.cumsum([0, *(len(one.change) for one in chains)])[:-1]
        plans = np.array([plan for one in self.stretches for plan in one.plans], dtype=np.int32)
        first_plan = np.cumsum([0, *(len(one.plans) for one in self.stretches)])[:-1]
        which = np.array(self.stretch)
        size = (bounds[:, 1] - bounds[:, 0])[which]
        change = _ranges((base[chain_of] + bounds[:, 0])[which], size)
        time = np.concatenate([one.change_ps for one in chains])[change]
        call = np.concatenate([one.change_call for one in chains])[change]
        return (
            time + np.repeat(np.array(self.begin_ps), size),
            plans[np.repeat(first_plan[which], size) + call],
            np.concatenate([one.change for one in chains])[change],
            np.repeat(np.array(self.number), size),
        )


def log_of(bookings: Sequence[Bookings]) -> tuple[IntArray, Int32Array, npt.NDArray[np.float64]]:
    """(time, number of the plan, change of its rate) of all flows of some ranks, in the order of bookings."""
    parts = [one.log() for one in bookings if one.stretches]
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0)
    times, plans, changes, numbers = (list(column) for column in zip(*parts, strict=True))
    parts.clear()
    order = np.argsort(joined(numbers), kind="stable")
    return joined(times)[order], joined(plans)[order], joined(changes)[order]


def _numbered(times: Sequence[ChainTimes]) -> tuple[list[ChainTimes], IntArray]:
    """Different ones, and the number of each."""
    number = {one: n for n, one in enumerate(dict.fromkeys(times))}
    return list(number), np.array([number[one] for one in times], dtype=np.int64)


def _columns(chains: Sequence[ChainTimes], stream: int, column: int) -> tuple[IntArray, IntArray]:
    """A column of several chains, one behind the other, and where each begins; -1: nothing is recorded."""
    found = [one.streams[stream][column] for one in chains]
    values = [one for one in found if one is not None]
    begin = np.cumsum([0, *(0 if one is None else len(one) for one in found)])[:-1]
    begin[[one is None for one in found]] = -1
    return np.concatenate(values) if values else np.zeros(0, np.int64), begin


def _ranges(first: IntArray, size: IntArray) -> IntArray:
    """``size`` numbers from each ``first`` on."""
    before = np.cumsum(size) - size
    numbers: IntArray = np.arange(int(size.sum())) + np.repeat(first - before, size)
    return numbers
