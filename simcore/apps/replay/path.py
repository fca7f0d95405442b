"""The chain of ops and waits that a replayed step's span consists of.

The graph says what each op had to wait for: the op before it on its stream, waits between streams, the
host's launch, and the op that the host had waited for before that.  The chain is walked back from the op
that ends last to the beginning of the step; every picosecond of the span is in one segment.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

import numpy as np

from simcore.graph import EdgeKind, Graph, OpKind, program_edges
from simcore.graph.ops import IntArray
from simcore.records import dataclass
from workloads.imports.recorded import ImportedRank

COMPUTE, COMMUNICATION, COPY = "compute", "communication", "copy"
HOST, GAP = "host", "gap on the device"

_ON_STREAM = (OpKind.EVENT_WAIT, OpKind.EVENT_RECORD)  # no work of their own


@dataclass(frozen=True)
class PathSegment:
    """A piece of the path: ``op`` worked for ``work_ps``, after ``wait_ps`` for which ``reason`` held it."""

    op: int
    work_ps: int
    wait_ps: int
    reason: str


class Causes:
    """What each op of one rank waits for, by its number in the recording."""

    def __init__(self, graph: Graph, index: int, rank: ImportedRank) -> None:
        self._graph = graph
        self._index = index
        self._rank = rank

    @cached_property
    def _tables(self) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]:
        """Kind of each flat op, its recorded op, its recorded time; its sources (starts, list); last SYNC."""
        graph = self._graph
        program = graph.programs[graph.program_of_rank[self._index]]
        flat = graph.flat_ops(program)
        kind = graph.ops.kind[flat.row]
        number = np.full(len(flat), -1, dtype=np.int64)
        number[self._rank.flat] = np.arange(len(self._rank.flat))
        edges = program_edges(graph, program, flat)
        real = edges.kind != EdgeKind.LAUNCH
        source, target = edges.src[real], edges.dst[real]
        starts = np.searchsorted(target, np.arange(len(flat) + 1))
        blocks = (kind == OpKind.SYNC) & (graph.ops.blocking[flat.row] > 0)
        sync = np.maximum.accumulate(np.where(blocks, np.arange(len(flat)), -1))
        return kind, number, graph.ops.recorded_ps[flat.row], starts, source, sync

    def before(self, op: int) -> tuple[list[int], int]:
        """Ops on the GPU that had to end before ``op``, and the device's own gap after them, ps."""
        return self._sources(int(self._rank.flat[op]))

    def before_launch(self, op: int) -> list[int]:
        """Ops that the host had waited for, last, before it launched ``op``."""
        sync = int(self._tables[5][int(self._rank.flat[op])])
        return self._sources(sync)[0] if sync >= 0 else []

    def _sources(self, flat: int) -> tuple[list[int], int]:
        kind, number, recorded, starts, source, _ = self._tables
        found, gap = [], 0
        pending, seen = [flat], {flat}
        while pending:
            at = pending.pop()
            for other in source[starts[at] : starts[at + 1]].tolist():
                if number[other] >= 0:
                    found.append(int(number[other]))
                elif other not in seen and kind[other] in _ON_STREAM:  # what it waited for counts
                    if kind[other] == OpKind.EVENT_WAIT:
                        gap = max(gap, int(recorded[other]))
                    seen.add(other)
                    pending.append(other)
        return found, gap


def critical_path(
    causes: Causes, members: IntArray, start_ps: IntArray, end_ps: IntArray
) -> list[PathSegment]:
    """The path of the step that consists of ``members``, in order; the times add up to the step's span."""
    begin = int(start_ps[members].min())
    op = int(members[np.lexsort((members, end_ps[members]))[-1]])
    time = int(end_ps[op])
    path: list[PathSegment] = []
    while time > begin:
        start = max(int(start_ps[op]), begin)
        work = max(0, time - start)
        time = min(time, start)
        before, gap = causes.before(op)
        cause = _latest(before, end_ps, time)
        reason = GAP
        if cause < 0 or int(start_ps[op]) - int(end_ps[cause]) > gap:
            cause, reason = _latest(causes.before_launch(op), end_ps, time), HOST
        until = max(begin, int(end_ps[cause])) if cause >= 0 else begin
        path.append(PathSegment(op, work, time - until, reason))
        time, op = until, cause
    path.reverse()
    return path


def _latest(ops: list[int], end_ps: IntArray, limit: int) -> int:
    """The op that ends latest, not after ``limit``; -1 if none."""
    ended = [op for op in ops if end_ps[op] <= limit]
    return max(ended, key=lambda op: (int(end_ps[op]), op)) if ended else -1


def path_kinds(path: list[PathSegment], rank: ImportedRank) -> dict[str, int]:
    """Time on a path by kind, ps: compute, communication, copy, host, gap on the device."""
    kinds: dict[str, int] = defaultdict(int)
    recorded = rank.recorded
    for segment in path:
        if recorded.is_comm[segment.op]:
            kind = COMMUNICATION
        else:
            kind = COMPUTE if recorded.is_kernel[segment.op] else COPY
        kinds[kind] += segment.work_ps
        kinds[segment.reason] += segment.wait_ps
    return {kind: kinds[kind] for kind in (COMPUTE, COMMUNICATION, COPY, HOST, GAP) if kinds[kind]}
