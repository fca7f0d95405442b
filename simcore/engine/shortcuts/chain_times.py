"""Times of cells strung together to a chain, as columns that a rank's record takes over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from simcore.engine.shortcuts.cell_times import CellTimes, StreamTimes
from simcore.graph.ops import IntArray

if TYPE_CHECKING:
    from simcore.engine.shortcuts.cells import Pattern

#: Columns from this one on are by op, those before by item.
FIRST_OF_OPS: Final = 3

#: A column of records: which of a rank's (ready, start, end, op start, op end), its values, and whether all
#: of them are set.
Column = tuple[int, IntArray, bool]


@dataclass(frozen=True, eq=False, slots=True)
class ChainTimes:
    """Cells of a chain one after the other; ``begin_ps[c]`` is when cell ``c`` begins, the last entry when
    all is over.  ``streams[s]`` hold what is recorded at all, those of cell ``c`` from ``first[c][s]`` (item,
    op) on.  ``change``s of flows' rates are in bytes/ps.

    ``usable[c]``: cells from ``c`` to this one (exclusive) can be played without looking.
    """

    begin_ps: tuple[int, ...]
    streams: tuple[tuple[Column, ...], ...]
    first: tuple[tuple[tuple[int, int], ...], ...]
    usable: tuple[int, ...]
    change_ps: IntArray
    change_call: IntArray
    change: npt.NDArray[np.float64]
    first_change: tuple[int, ...]


def strung(cells: Sequence[CellTimes | None], pattern: Pattern) -> ChainTimes:
    """Cells of a pattern one after the other; None: not to be played without looking."""
    lasts = np.array([cell.lasts_ps if cell else 0 for cell in cells], dtype=np.int64)
    begin = np.concatenate([[0], np.cumsum(lasts)])
    streams = tuple(
        _joined(
            [
                cell.streams[s] if cell else _unset(*one.shape[s])
                for cell, one in zip(cells, pattern.cells, strict=True)
            ],
            begin[:-1],
        )
        for s in range(len(pattern.cells[0].shape))
    )
    usable = [len(cells)] * len(cells)
    for number in reversed(range(len(cells))):
        cell = cells[number]
        if cell is None or not _ends_well(cell, pattern, number):
            usable[number] = number
        elif number + 1 < len(cells):
            usable[number] = max(number + 1, usable[number + 1])
    changes = [
        (start + time, first + call, change)
        for cell, start, first in zip(cells, begin.tolist(), pattern.first_call, strict=False)
        if cell
        for time, call, change in cell.changes
    ]
    time, call, change = zip(*changes, strict=True) if changes else ((), (), ())
    num_changes = np.cumsum([0, *(len(cell.changes) if cell else 0 for cell in cells)])
    return ChainTimes(
        tuple(begin.tolist()), streams, pattern.first, tuple(usable), np.array(time, dtype=np.int64),
        np.array(call, dtype=np.int64), np.array(change, dtype=np.float64), tuple(num_changes.tolist()),
    )  # fmt: skip


def _ends_well(cell: CellTimes, pattern: Pattern, number: int) -> bool:
    """Whether what others wait for ends with the cell, not before."""
    if number + 1 < len(pattern.cells):
        return True
    return all(cell.last[s] == cell.lasts_ps for s in pattern.watched)


def _unset(num_items: int, num_ops: int) -> StreamTimes:
    items, ops = np.full(num_items, -1, dtype=np.int64), np.full(num_ops, -1, dtype=np.int64)
    return StreamTimes((items, items, items, ops, ops), (False,) * 5, (False,) * 5)


def _joined(parts: Sequence[StreamTimes], begin: IntArray) -> tuple[Column, ...]:
    """Records of cells that begin at ``begin``, in one."""
    columns: list[Column] = []
    for number in range(len(parts[0].columns)):
        if not any(part.has_some[number] for part in parts):
            continue
        pieces = [part.columns[number] for part in parts]
        values = np.concatenate(pieces)
        moved = values + np.repeat(begin, [len(piece) for piece in pieces])
        is_complete = all(part.has_all[number] for part in parts)
        columns.append((number, moved if is_complete else np.where(values >= 0, moved, -1), is_complete))
    return tuple(columns)
