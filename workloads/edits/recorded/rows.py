"""A recording with rows of its ranks played more often, or not at all: what edits of its structure write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError
from simcore.graph import EdgeTable, OpKind, Strings
from simcore.graph.ops import IntArray
from workloads.edits.job import EditableJob
from workloads.imports.recorded import ImportedRank, RecordedOps


def replayed(job: EditableJob, rows: Sequence[IntArray]) -> EditableJob:
    """``job`` with rank ``i`` playing ``rows[i]`` of its op rows, in that order; rows may repeat.

    An edge comes from the latest copy of its source; where that is gone, from what was before on its stream.
    Errors: InputError when ranks that meet in a group would no longer issue as many collectives.
    """
    graph = job.graph
    taken = np.concatenate(rows)
    starts = np.concatenate([[0], np.cumsum([len(one) for one in rows])]).astype(np.int64)
    ops = graph.ops.take(taken)
    parts, ranks = [], []
    for index, (rank, mine) in enumerate(zip(job.ranks, rows, strict=True)):
        parts.append(_edges(job, index, mine) + starts[index])
        ranks.append(rank_playing(job, index, rank, mine))
    src, dst = np.concatenate(parts, axis=1)
    order = np.lexsort((src, dst))
    zero = np.zeros(len(order), dtype=np.int64)
    kind = int(graph.edges.kind[0]) if len(graph.edges) else 1
    edges = EdgeTable(dst[order], src[order], zero + kind, Strings(zero.astype(np.int32), ("",)), zero)
    edited = replace(graph, ops=ops, edges=edges, template_start=starts)
    return met(replace(job, graph=edited, ranks=tuple(ranks), origin=None))


def sources_of(job: EditableJob, index: int) -> dict[int, list[int]]:
    """By row of a rank: the rows that it waits for."""
    graph = job.graph
    lo, hi = np.searchsorted(graph.edges.dst, graph.template_start[index : index + 2])
    into: dict[int, list[int]] = {}
    for source, target in zip(graph.edges.src[lo:hi].tolist(), graph.edges.dst[lo:hi].tolist(), strict=True):
        into.setdefault(target, []).append(source)
    return into


def _edges(job: EditableJob, index: int, mine: IntArray) -> IntArray:
    """Sources and targets, counted from the rank's first new row."""
    graph = job.graph
    first, last = graph.template_start[index : index + 2].tolist()
    into = sources_of(job, index)
    stand_in = _kept(graph.ops.stream.codes[first:last], np.isin(np.arange(first, last), mine)) + first
    latest: dict[int, int] = {}
    found: list[tuple[int, int]] = []
    for place, row in enumerate(mine.tolist()):
        for source in into.get(row, ()):
            at = latest.get(int(stand_in[source - first]))
            if at is not None:
                found.append((at, place))
        latest[row] = place
    return np.array(sorted(set(found)), dtype=np.int64).reshape(-1, 2).T


def _kept(stream: npt.NDArray[np.int32], kept: npt.NDArray[np.bool_]) -> IntArray:
    """By row: itself, or the last kept one before it on its stream; itself too where there is none."""
    result = np.arange(len(stream), dtype=np.int64)
    for code in np.unique(stream).tolist():
        mine = np.flatnonzero(stream == code)
        last = np.maximum.accumulate(np.where(kept[mine], np.arange(len(mine)), -1))
        result[mine[last >= 0]] = mine[last[last >= 0]]
    return result


def rank_playing(job: EditableJob, index: int, rank: ImportedRank, mine: IntArray) -> ImportedRank:
    """What was recorded of the rows that are played, a copy for a copy."""
    first, last = int(job.graph.template_start[index]), int(job.graph.template_start[index + 1])
    op_of = np.full(last - first, -1, dtype=np.int64)
    op_of[rank.flat] = np.arange(len(rank.flat))
    played = op_of[mine - first]
    flat = np.flatnonzero(played >= 0)
    order = np.argsort(played[flat], kind="stable")  # by start, as recordings are
    flat = flat[order]
    old = played[flat]
    step_of = np.full(len(rank.flat), -1, dtype=np.int64)
    for number, members in enumerate(rank.step_ops):
        step_of[members] = number
    steps = tuple(np.flatnonzero(step_of[old] == number) for number in range(len(rank.step_ops)))
    return replace(rank, recorded=_taken(rank.recorded, old), flat=flat, step_ops=steps)


def _taken(recorded: RecordedOps, ops: IntArray) -> RecordedOps:
    shapes, known = recorded.shapes, recorded.collectives
    if shapes is not None:
        shapes = replace(shapes, of_op=shapes.of_op[ops])
    if known is not None:
        known = replace(
            known, collective=known.collective.take(ops), num_bytes=known.num_bytes[ops],
            dtype=known.dtype.take(ops), members=tuple(known.members[op] for op in ops.tolist()),
        )  # fmt: skip
    return replace(
        recorded, start_ps=recorded.start_ps[ops], end_ps=recorded.end_ps[ops], name=recorded.name.take(ops),
        stream=recorded.stream.take(ops), is_comm=recorded.is_comm[ops], is_kernel=recorded.is_kernel[ops],
        blocks=recorded.blocks[ops], blocks_per_sm=recorded.blocks_per_sm[ops], shapes=shapes,
        launches=recorded.launches.take(ops) if recorded.launches is not None else None, collectives=known,
    )  # fmt: skip


def met(job: EditableJob) -> EditableJob:
    """Collectives as their members now meet: the n-th calls of a group last the shortest of their times.

    Errors: InputError when members of a group issue other collectives than each other.
    """
    graph = job.graph
    ops, recorded = graph.ops, graph.ops.recorded_ps.copy()
    calls: dict[str, dict[int, IntArray]] = {}
    for index in range(len(job.ranks)):
        first = int(graph.template_start[index])
        mine = first + np.flatnonzero(
            ops.kind[first : int(graph.template_start[index + 1])] == OpKind.COLLECTIVE
        )
        for code in np.unique(ops.group.codes[mine]).tolist():
            name = ops.group.values[code]
            calls.setdefault(name, {})[index] = mine[ops.group.codes[mine] == code]
    for name, group in graph.groups.items():
        members = group.explicit[0] if group.explicit else ()
        of_member = [calls.get(name, {}).get(index, np.zeros(0, dtype=np.int64)) for index in members]
        if len({len(rows) for rows in of_member}) > 1:
            told = ", ".join(
                f"rank {job.ranks[index].number}: {len(rows)}"
                for index, rows in zip(members, of_member, strict=True)
            )
            raise InputError(
                f"group {name}: its ranks would issue different numbers of collectives ({told}); their"
                " repeated kernels were not recognised alike"
            )
        if len(of_member) > 1:
            together = np.stack(of_member)
            for column in (ops.num_bytes, ops.collective.codes):
                if (column[together] != column[together[0]]).any():
                    raise InputError(f"group {name}: its ranks would issue different collectives")
            recorded[together] = recorded[together].min(axis=0)
    return job.with_ops(recorded_ps=recorded)
