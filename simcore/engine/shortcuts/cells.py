"""What concerns nobody but one rank: cells, chains and patterns of them.

Note [Cells]
    A *cell* begins where the main stream goes on and nothing is under way on the rank's local streams, and
    ends at the next such point.  Local streams hold nothing but collectives whose members are all of the
    rank's own class, over its own ports (tensor parallelism, say).  What happens inside a cell then depends
    on nothing but the share of the GPU that others leave it, and cells follow one another without gaps: a
    *chain* of them is one event as long as nobody comes or goes (:mod:`simcore.engine.shortcuts.span`).
    Items in it that others wait for are *watched*: when they end is known, and who waits goes on then.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import field
from itertools import accumulate
from typing import TYPE_CHECKING

from simcore.engine.items import Item
from simcore.engine.sequence import KernelSequence
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.engine.items import Call
    from simcore.graph.kinds import BoolArray


@dataclass(frozen=True, eq=False, slots=True)
class Cell:
    """What a cell plays, wherever it stands: one object for all that play the same.

    ``items[s]`` are those on local stream ``s``, their waits counted from the cell's start (only those inside
    it).  ``calls`` are its communication in that order, ``watched`` the items (local stream, item) that
    others wait for.  Launches have all come before it begins, or, where it ``is_late``, each when its item
    says, ps after the begin.
    """

    items: tuple[tuple[Item, ...], ...]
    calls: tuple[Call, ...]
    distinct: tuple[Call, ...]  # calls without repetition
    shape: tuple[tuple[int, int], ...]  # [stream]: items, ops
    watched: tuple[tuple[int, int], ...]
    is_late: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Pattern:
    """Cells one after the other, wherever they stand.  ``calls`` are their communication."""

    cells: tuple[Cell, ...]
    calls: tuple[Call, ...]
    distinct: tuple[Call, ...]
    first_item: tuple[int, ...]  # of each cell, over all its streams, and the end
    first_call: tuple[int, ...]  # of each cell, and the end

    @classmethod
    def of(cls, cells: tuple[Cell, ...]) -> Pattern:
        """From cells."""
        calls = tuple([call for cell in cells for call in cell.calls])
        first_item = tuple(accumulate([sum([items for items, _ in cell.shape]) for cell in cells], initial=0))
        first_call = tuple(accumulate([len(cell.calls) for cell in cells], initial=0))
        return cls(cells, calls, tuple(dict.fromkeys(calls)), first_item, first_call)


@dataclass(frozen=True, eq=False, slots=True)
class Patterns:
    """Patterns and cells that have been found: cells by what they play, patterns by their cells, and by where
    they stand in templates.
    """

    patterns: dict[tuple[Cell, ...], Pattern] = field(default_factory=dict)
    placed: dict[tuple[object, ...], dict[bytes, Pattern]] = field(default_factory=dict)
    cells: dict[tuple[object, ...], Cell] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class Chain:
    """Cells one after the other; ``place`` is the number of that where the first begins.

    ``launched_ps[c]``: when, after the base of host ``segment``, the last launch of cell ``c`` is there, and
    ``all_launched_ps`` that of all of them.
    """

    place: int
    segment: int
    launched_ps: array[int]
    all_launched_ps: int
    pattern: Pattern


@dataclass(frozen=True, eq=False, slots=True)
class Cells:
    """Chains of a tape for one choice of local streams.

    Item ``k`` of the main stream begins cell ``cell[k]`` of chain ``chain[k]`` (-1: none).  ``places`` are
    where cells begin and the last ones end, one after the other, an item done for each of ``streams``;
    ``needed``, of each of them but the first, the item of the first one that its next item waits for there.
    ``watched``: of each of them, the items that others wait for.
    """

    streams: tuple[int, ...]
    places: array[int]
    needed: array[int]
    chains: list[Chain]
    chain: array[int]
    cell: array[int]
    watched: tuple[BoolArray, ...]

    def until(self, item: int) -> array[int]:
        """The places up to ``item`` of the main stream, itself included."""
        width = len(self.streams)
        number = bisect_right(range(len(self.places) // width), item, key=lambda n: self.places[n * width])
        return self.places[: number * width]

    def at(self, place: int) -> tuple[array[int], array[int]]:
        """A place, and what is needed there."""
        width = len(self.streams)
        at, need = place * width, place * (width - 1)
        return self.places[at : at + width], self.needed[need : need + width - 1]


def num_ops(item: Item) -> int:
    """Kernels or calls of an item."""
    return item.work.num_kernels if isinstance(item.work, KernelSequence) else len(item.work.calls)


def calls_of(cell: Sequence[Sequence[Item]]) -> list[Call]:
    """Calls of a cell, in order of streams and items."""
    return [
        call
        for items in cell
        for item in items
        if not isinstance(item.work, KernelSequence)
        for call in item.work.calls
    ]
