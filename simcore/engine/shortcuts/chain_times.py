"""Times of cells strung together to a chain, as columns that a rank's record takes over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from simcore.engine.shortcuts.apart import CellTimes
from simcore.graph.ops import IntArray

if TYPE_CHECKING:
    from simcore.engine.shortcuts.cells import Pattern

#: Columns of a rank's record: (ready, start, end) by item, and from this one on (start, end) by op.
FIRST_OF_OPS: Final = 3
NUM_COLUMNS: Final = 5


@dataclass(frozen=True, eq=False, slots=True)
class ChainTimes:
    """Cells of a chain one after the other; ``begin_ps[c]`` is when cell ``c`` begins, the last entry when
    all is over.  ``streams[s]`` are columns of records (None: nothing is recorded), those of cell ``c`` from
    ``first[c][s]`` (item, op) on.  ``change``s of flows' rates are in bytes/ps.

    ``usable[c]``: cells from ``c`` to this one (exclusive) can be played without looking.
    """

    begin_ps: tuple[int, ...]
    streams: tuple[tuple[IntArray | None, ...], ...]
    first: tuple[tuple[tuple[int, int], ...], ...]
    usable: tuple[int, ...]
    change_ps: IntArray
    change_call: IntArray
    change: npt.NDArray[np.float64]
    first_change: tuple[int, ...]


def strung(cells: Sequence[CellTimes | None], pattern: Pattern) -> ChainTimes:
    """Cells of a pattern one after the other; None: not to be played without looking."""
    begin = list(accumulate((cell.lasts_ps if cell else 0 for cell in cells), initial=0))
    streams = tuple([_joined(cells, pattern, s, begin) for s in range(len(pattern.cells[0].shape))])
    usable = [len(cells)] * len(cells)
    for number in reversed(range(len(cells))):
        cell = cells[number]
        if cell is None or not ends_well(cell, pattern, number):
            usable[number] = number
        elif number + 1 < len(cells):
            usable[number] = max(number + 1, usable[number + 1])
    changes = [
        (start + time, first + call, change)
        for cell, start, first in zip(cells, begin, pattern.first_call, strict=False)
        if cell
        for time, call, change in cell.changes
    ]
    time, call, change = zip(*changes, strict=True) if changes else ((), (), ())
    first_change = accumulate((len(cell.changes) if cell else 0 for cell in cells), initial=0)
    return ChainTimes(
        tuple(begin), streams, pattern.first, tuple(usable), np.array(time, dtype=np.int64),
        np.array(call, dtype=np.int64), np.array(change, dtype=np.float64), tuple(first_change),
    )  # fmt: skip


def ends_well(cell: CellTimes, pattern: Pattern, number: int) -> bool:
    """Whether what others wait for ends with the cell, not before."""
    if number + 1 < len(pattern.cells):
        return True
    return all(cell.last[s] == cell.lasts_ps for s in pattern.watched)


def _joined(
    cells: Sequence[CellTimes | None], pattern: Pattern, stream: int, begin: Sequence[int]
) -> tuple[IntArray | None, ...]:
    """Records of a stream of cells that begin at ``begin``, in one."""
    shapes = [(cell.shape[:stream], *cell.shape[stream]) for cell in pattern.cells]
    sizes = [(items, ops) for _, items, ops in shapes]
    firsts = [(sum(i for i, _ in before), sum(o for _, o in before)) for before, _, _ in shapes]
    columns: list[IntArray | None] = []
    for number in range(NUM_COLUMNS):
        kind = int(number >= FIRST_OF_OPS)
        pieces = [
            cell.columns[number][first[kind] : first[kind] + size[kind]]
            if cell
            else np.full(size[kind], -1, dtype=np.int64)
            for cell, first, size in zip(cells, firsts, sizes, strict=True)
        ]
        if len(pieces) == 1:
            columns += pieces
            continue
        values = np.concatenate(pieces)
        is_set = values >= 0
        if is_set.any():
            moved = values + np.repeat(begin[:-1], [size[kind] for size in sizes])
            columns.append(np.where(is_set, moved, -1))
        else:
            columns.append(None)
    return tuple(columns)
