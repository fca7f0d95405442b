"""Which ranks have cells that they go through by themselves, and whether finding them saves time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Final

import numpy as np

from simcore.distinct import among, distinct
from simcore.engine.shortcuts.cells import Cells, Patterns
from simcore.engine.shortcuts.find_cells import find_cells
from simcore.engine.shortcuts.shared import Shared
from simcore.engine.shortcuts.span import Solo
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.engine.items import Call
    from simcore.engine.rank import Rank
    from simcore.engine.tape import Tape
    from simcore.graph import Graph
    from simcore.graph.kinds import BoolArray

#: Finding the cells of a template and timing them costs about as much as playing so many ops.
WORTH_OPS: Final = 150


def are_worthwhile(graph: Graph) -> bool:
    """Whether programs play their templates long and often enough for spans to save time."""
    size = np.diff(graph.template_start)
    played = sum(int(size[program.template].sum()) for program in graph.programs)
    templates = sum(len(distinct(program.template)) for program in graph.programs)
    return played >= WORTH_OPS * templates


@dataclass(frozen=True, eq=False, slots=True)
class _TapeCalls:
    """What a tape plays, whoever does: its main stream (-1: none), different calls by stream, and how many
    times each is made.
    """

    main: int
    by_stream: list[list[Call]]
    times: dict[Call, int]

    @classmethod
    def of(cls, tape: Tape) -> _TapeCalls:
        by_stream = [_calls_of(tape, stream) for stream in range(len(tape.streams))]
        rows = tape.flat.row[tape.order[tape.table.communicates[tape.item_of]]]
        played = np.bincount(rows, minlength=len(tape.calls) and max(tape.calls) + 1)
        times = {call: int(played[call.rows].sum()) for of in by_stream for call in of}
        return cls(_main_stream(tape), by_stream, times)


@dataclass
class Solos(Shared):
    """Cells of the ranks of a job."""

    patterns: Patterns = field(default_factory=Patterns)
    tapes: dict[Tape, _TapeCalls] = field(default_factory=dict)
    cells: dict[tuple[Tape, frozenset[Call]], Cells] = field(default_factory=dict)

    def of(self, rank: Rank) -> Solo | None:
        """The rank's cells; None where it communicates with others only."""
        tape = rank.tape
        known = self.tapes.get(tape)
        if known is None:
            known = self.tapes[tape] = _TapeCalls.of(tape)
        main, by_stream, calls = known.main, known.by_stream, known.times
        if main < 0:
            return None
        companies = {call: rank.communicators.company(rank.number, call) for call in calls}
        ranks = _company(rank.number, calls, companies)
        among = ({rank.number}, ranks)
        alone = frozenset(call for call, company in companies.items() if company in among)
        if not alone:
            return None
        cells = self._cells(tape, known, alone)
        if not cells.chains:
            return None
        local = [call for stream in cells.streams for call in by_stream[stream] if call in alone]
        by_itself = frozenset(call for call, company in companies.items() if len(company) == 1)
        return Solo(self, rank, cells, local, alone, by_itself, sorted(ranks))

    def may_follow(self, rank: Rank, tape: Tape) -> bool:
        """Whether a rank that goes on with ``tape`` has the same cells there as far as it is asleep."""
        solo = rank.player
        if not isinstance(solo, Solo):
            return True
        before, after = solo.cells, self._after(solo, tape)
        if before.streams != after.streams:
            return False
        ends = solo.asleep_until() or [rank.done[stream] for stream in before.streams]
        if before.until(ends[0]) != after.until(ends[0]):
            return False
        # Of that nothing may be waited for by then that nobody waits for now.
        parts = [slice(rank.done[stream], end) for stream, end in zip(before.streams, ends, strict=True)]
        pairs = zip(parts, before.watched, after.watched, strict=True)
        return not any((new[part] & ~old[part]).any() for part, old, new in pairs)

    def follow(self, rank: Rank, tape: Tape) -> None:
        """A rank goes on with ``tape``."""
        if isinstance(rank.player, Solo):
            rank.player.cells = self._after(rank.player, tape)

    def keep(self, tapes: Collection[Tape]) -> None:
        """No rank plays another tape any more."""
        self.tapes = {tape: calls for tape, calls in self.tapes.items() if tape in tapes}
        self.cells = {key: cells for key, cells in self.cells.items() if key[0] in tapes}

    def _after(self, solo: Solo, tape: Tape) -> Cells:
        known = self.tapes.get(tape)
        if known is None:
            known = self.tapes[tape] = _TapeCalls.of(tape)
        return self._cells(tape, known, solo.local)

    def _cells(self, tape: Tape, known: _TapeCalls, alone: frozenset[Call]) -> Cells:
        main, by_stream, calls = known.main, known.by_stream, known.times
        cells = self.cells.get((tape, alone))
        if cells is None:
            streams = [
                stream
                for stream in range(len(tape.streams))
                if stream != main
                and alone.issuperset(by_stream[stream])
                and _of_stream(tape, stream, tape.table.communicates).all()
                and _is_joined(tape, main, stream)
            ]
            foreign = [call.rows for call in calls if call not in alone]
            rows = np.concatenate(foreign) if foreign else np.zeros(0, dtype=np.int64)
            is_local = ~among(tape.flat.row[tape.order[tape.first_op]], rows)
            sizes = np.diff(np.append(tape.first_op, len(tape.order)))
            if foreign and (sizes[tape.table.communicates] > 1).any():
                ops_local = ~among(tape.flat.row[tape.order], rows)
                is_local = np.logical_and.reduceat(ops_local, tape.first_op)
            cells = find_cells(tape, (main, *streams), is_local, self.patterns)
            self.cells[tape, alone] = cells
        return cells


def _company(
    rank: int, times: Mapping[Call, int], companies: Mapping[Call, frozenset[int]]
) -> frozenset[int]:
    """Whom a rank goes through its cells with: those whom it meets most often over links of their own.

    Who sends and who receives does not do the same.
    """
    often: dict[frozenset[int], int] = {}
    for call, company in companies.items():
        if len(company) == 1 or (company and not call.peer_delta):
            often[company] = often.get(company, 0) + times[call]
    return max(often, key=lambda company: often[company], default=frozenset({rank}))


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
    return list(dict.fromkeys(tape.calls[row] for row in distinct(rows).tolist()))


def _is_joined(tape: Tape, main: int, stream: int) -> bool:
    """Whether the main stream waits for most of what a stream does where it is launched, not much later."""
    table, first = tape.table, tape.first_item
    instance = tape.flat.instance[tape.order[tape.first_op]]
    joins = (first[main] <= table.wait_to) & (table.wait_to < first[main + 1])
    joins &= (first[stream] <= table.wait_from) & (table.wait_from < first[stream + 1])
    joins &= instance[table.wait_from] == instance[table.wait_to]
    return 2 * len(distinct(table.wait_from[joins])) > len(tape.streams[stream])
