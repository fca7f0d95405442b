"""When cells of a chain begin and end, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.engine.shortcuts.apart import CellTimes
    from simcore.engine.shortcuts.cells import Pattern


@dataclass(frozen=True, eq=False, slots=True)
class ChainTimes:
    """Cells of a pattern one after the other; ``begin_ps[c]`` is when cell ``c`` begins, the last entry when
    all is over.  None among the ``cells``: not to be played without looking.

    ``usable[c]``: cells from ``c`` to this one (exclusive) can be played without looking.
    """

    pattern: Pattern
    cells: tuple[CellTimes | None, ...]
    begin_ps: tuple[int, ...]
    usable: tuple[int, ...]


def strung(cells: Sequence[CellTimes | None], pattern: Pattern) -> ChainTimes:
    """Cells of a pattern one after the other."""
    begin = tuple(accumulate([cell.lasts_ps if cell else 0 for cell in cells], initial=0))
    usable = [len(cells)] * len(cells)
    for number in reversed(range(len(cells))):
        cell = cells[number]
        if cell is None or not ends_well(cell, pattern, number):
            usable[number] = number
        elif number + 1 < len(cells):
            usable[number] = max(number + 1, usable[number + 1])
    return ChainTimes(pattern, tuple(cells), begin, tuple(usable))


def ends_well(cell: CellTimes, pattern: Pattern, number: int) -> bool:
    """Whether what others wait for ends with the cell, not before."""
    if number + 1 < len(pattern.cells):
        return True
    return all(cell.last[s] == cell.lasts_ps for s in pattern.watched)
