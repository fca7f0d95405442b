"""Items of a cell, one after the other, and when each is under way and over: the times of a cell."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from simcore.engine.sequence import KernelSequence
from simcore.engine.shortcuts.cells import num_ops

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from simcore.engine.items import Item
    from simcore.engine.shortcuts.cells import Cell

    Columns = tuple[array[int], ...]
    LinkChanges = tuple[tuple[int, int, float], ...]


class LaidItem(NamedTuple):
    """An item of a cell: numbers of those that it follows, of its first op and of the one behind its last."""

    item: Item
    after: tuple[int, ...]
    first: int
    stop: int
    is_run: bool  # of kernels


class Laid(NamedTuple):
    """A cell's items, its streams in turn, and the numbers of those that others wait for."""

    items: tuple[LaidItem, ...]
    watched: tuple[int, ...]

    @classmethod
    def of(cls, cell: Cell) -> Laid:
        """Those of a cell."""
        found: list[LaidItem] = []
        first_of = list(accumulate([len(stream) for stream in cell.items], initial=0))
        op = 0
        for s, stream in enumerate(cell.items):
            for k, item in enumerate(stream):
                after = [first_of[other] + awaited for other, awaited in item.waits]
                if k:
                    after.append(first_of[s] + k - 1)
                stop = op + num_ops(item)
                found.append(LaidItem(item, tuple(after), op, stop, isinstance(item.work, KernelSequence)))
                op = stop
        return cls(tuple(found), tuple([first_of[stream] + item for stream, item in cell.watched]))


class CellTimes:
    """What happens in a cell: how long it lasts, its records, and what its flows did to links.

    ``columns`` are (ready, start, end) of items and (start, end) of ops, its streams in turn, ps from the
    cell's start; -1 where a rank keeps none.
    ``changes`` are (time, call, change of the call's rate in bytes/ps).  ``released`` are (end, number) of
    its watched items, in that order.

    ``begins`` and ``ends`` are when items are with the GPU: kernels from when their stream has come to them,
    communication from when it asks for SMs.
    """

    __slots__ = ("_columns", "begins", "changes", "ends", "lasts_ps", "released")

    def __init__(
        self,
        laid: Laid,
        begins: Sequence[int],
        ends: Sequence[int],
        changes: LinkChanges,
        columns: Columns | None = None,
    ) -> None:
        self.begins, self.ends, self.changes = begins, ends, changes
        self.lasts_ps = max(ends, default=0)
        watched = laid.watched
        released = [(ends[item], number) for number, item in enumerate(watched)]
        self.released = tuple(sorted(released) if len(released) > 1 else released)
        self._columns = columns

    @property
    def columns(self) -> Columns:
        """See the class."""
        assert self._columns is not None, "a subclass that has none yet makes them"
        return self._columns

    @classmethod
    def of(cls, cell: Cell, columns: Columns, changes: LinkChanges) -> CellTimes:
        """From records of a cell, and from what its flows did."""
        laid = Laid.of(cell)
        ready, start, end, _, op_end = columns
        ends = []
        for n, one in enumerate(laid.items):
            if end[n] >= 0:
                ends.append(end[n])
            elif op_end[one.stop - 1] >= 0:
                ends.append(max(op_end[one.first : one.stop]))
            else:
                work = one.item.work
                assert isinstance(work, KernelSequence)
                ends.append(start[n] + work.alone.after[-1])
        begins = [
            max([ends[other] for other in one.after], default=0) if one.is_run else ready[n]
            for n, one in enumerate(laid.items)
        ]
        return cls(laid, begins, ends, changes, columns)
