"""When cells of a chain begin and end, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.engine.shortcuts.cells import Pattern
    from simcore.engine.shortcuts.laid import CellTimes


@dataclass(frozen=True, eq=False, slots=True)
class ChainTimes:
    """Cells of a pattern one after the other; ``begin_ps[c]`` is when cell ``c`` begins, the last entry when
    all is over.  None among the ``cells``: not to be played without looking.

    ``usable[c]``: cells from ``c`` to this one (exclusive) can be played without looking.  ``released``: when
    what others wait for ends, in which cell, which of its watched items.
    """

    pattern: Pattern
    cells: tuple[CellTimes | None, ...]
    begin_ps: tuple[int, ...]
    usable: tuple[int, ...]
    released: tuple[tuple[int, int, int], ...]


def strung(cells: Sequence[CellTimes | None], pattern: Pattern) -> ChainTimes:
    """Cells of a pattern one after the other."""
    begin = tuple(accumulate([cell.lasts_ps if cell else 0 for cell in cells], initial=0))
    usable = [len(cells)] * len(cells)
    for number in reversed(range(len(cells))):
        if cells[number] is None:
            usable[number] = number
        elif number + 1 < len(cells):
            usable[number] = max(number + 1, usable[number + 1])
    released = [
        (begin_ps + ends_ps, number, watched)
        for number, (begin_ps, cell) in enumerate(zip(begin, cells, strict=False))
        if cell is not None
        for ends_ps, watched in cell.released
    ]
    return ChainTimes(pattern, tuple(cells), begin, tuple(usable), tuple(released))
