"""Chains of cells whose launches hold them up: the host is not far enough ahead.

Note [Late cells]
    A host that has waited for its GPU (for how many tokens each expert gets, say) launches what comes next
    only then, and the GPU waits for it.  What happens in a cell then depends on when its launches come, too.
    After such a wait they come as long after its begin as the last time, in the same places of a program: a
    cell with its launches is a cell of its own, known by them, and a chain of such cells is one event.  Where
    launches come at other times each time, cells are played event by event.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from simcore.engine.items import Item
from simcore.engine.sequence import KernelSequence
from simcore.engine.shortcuts.cells import Pattern
from simcore.engine.shortcuts.chain_times import strung
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.engine.shortcuts.apart import Share
    from simcore.engine.shortcuts.cell_times import CellBook, OwnCalls
    from simcore.engine.shortcuts.cells import Cell, Cells, Chain
    from simcore.engine.shortcuts.chain_times import ChainTimes
    from simcore.engine.shortcuts.laid import CellTimes
    from simcore.engine.tape import Tape

#: Chains that are made before it counts whether they come again.
_TRIALS: Final = 100
#: Chains of a job, some 10 kB each.
_MOST: Final = 2_000


@dataclass(eq=False, slots=True)
class LateChains:
    """Late chains by what they are where launches hold up nothing, and by when launches come.

    ``asked``: how often one was looked for.
    """

    book: CellBook
    asked: int = 0
    _made: dict[tuple[object, ...], ChainTimes | None] = field(default_factory=dict)
    _cells: dict[tuple[object, ...], Cell] = field(default_factory=dict)

    def times(
        self, own: OwnCalls, cells: Cells, chain: Chain, cell: int, share: Share, undelayed: ChainTimes,
        base_ps: int,
    ) -> ChainTimes | None:  # fmt: skip
        """Times of a chain that begins ``cell`` ``base_ps`` before its host segment has its base;
        ``undelayed`` are those where launches hold up nothing.

        None where it cannot be said, or where that seems to be another time each time.
        """
        self.asked += 1
        launches = _launches(own.rank.tape, cells, chain.place + cell, chain.place + len(chain.pattern.cells))
        key = (undelayed, cell, base_ps, *launches)
        if key in self._made:
            return self._made[key]
        made = len(self._made)
        if made >= _MOST or (made >= _TRIALS and 2 * made > self.asked):
            return None
        found = self._made[key] = self._strung(own, cells, chain, cell, share, base_ps)
        return found

    def _strung(
        self, own: OwnCalls, cells: Cells, chain: Chain, cell: int, share: Share, base_ps: int
    ) -> ChainTimes | None:
        played = list(chain.pattern.cells)
        times: list[CellTimes | None] = [None] * len(played)
        begin_ps = 0
        for number in range(cell, len(played)):
            if base_ps + chain.launched_ps[number] > begin_ps:
                played[number] = self._late(own, cells, chain, number, base_ps - begin_ps)
            found = times[number] = self.book.course(own, played[number], share).times
            if found is None:
                break
            begin_ps += found.lasts_ps
        return strung(times, Pattern.of(tuple(played))) if times[cell] is not None else None

    def _late(self, own: OwnCalls, cells: Cells, chain: Chain, number: int, base_ps: int) -> Cell:
        """A cell of a chain whose host segment has its base ``base_ps`` after it begins."""
        cell, place = chain.pattern.cells[number], chain.place + number
        key = (cell, base_ps, *_launches(own.rank.tape, cells, place, place + 1))
        found = self._cells.get(key)
        if found is None:
            (begin, _), (end, _) = cells.at(place), cells.at(place + 1)
            streams = own.rank.tape.streams
            items = [
                tuple([_launched(*pair, base_ps) for pair in zip(mine, streams[stream][lo:hi], strict=True)])
                for mine, stream, lo, hi in zip(cell.items, cells.streams, begin, end, strict=True)
            ]
            found = self._cells[key] = replace(cell, items=tuple(items), is_late=True)
        return found


def _launched(item: Item, there: Item, base_ps: int) -> Item:
    """An item of a cell with the launches that it has on a tape."""
    work = there.work if isinstance(item.work, KernelSequence) else item.work
    return item._replace(launch_ps=base_ps + there.launch_ps, work=work)


def _launches(tape: Tape, cells: Cells, begin: int, end: int) -> list[bytes]:
    """When launches between two places are there after the base of their segment, op by op, by stream."""
    places, width = cells.places, len(cells.streams)
    found = []
    for number, stream in enumerate(cells.streams):
        lo, hi = places[begin * width + number], places[end * width + number]
        if hi > lo:
            last = tape.first_item[stream] + hi
            behind = tape.first_op[last] if last < tape.num_items else len(tape.order)
            ops = tape.order[tape.first_op[tape.first_item[stream] + lo] : behind]
            found.append(tape.launches.offset[ops].tobytes())
    return found
