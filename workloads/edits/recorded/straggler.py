"""Removing a straggler: one recorded rank computes as the others do."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from simcore.errors import InputError, nearest
from simcore.graph import OpKind
from simcore.graph.ops import IntArray
from workloads.edits.job import EditableJob, Edited
from workloads.edits.kernels.edits import edited_kernels
from workloads.edits.registry import EditCall, choice, edit

_FEWEST = 2  # other ranks that a median is taken over


@edit(
    "straggler.<rank>",
    value=choice("remove"),
    help="the rank's compute ops take the median time of the same ops on the other ranks",
    kinds=("recorded", "pipeline_log"),
)
def remove_straggler(job: EditableJob, call: EditCall) -> Edited:
    """The k-th kernel of a name takes the median over the other ranks' k-th."""
    job = edited_kernels(job)
    numbers = {str(rank.number): index for index, rank in enumerate(job.ranks)}
    if call.names[0] not in numbers:
        raise InputError(f"no rank {call.names[0]!r}{nearest(call.names[0], numbers)}")
    if len(numbers) <= _FEWEST:
        raise InputError(
            f"a median needs at least {_FEWEST} other ranks; recorded: {len(numbers)} in all. Give the traces"
            " of more ranks of the job together"
        )
    mine = numbers[call.names[0]]
    by_rank = [_by_name(job, index) for index in range(len(job.ranks))]
    recorded = job.graph.ops.recorded_ps.copy()
    changed = kept = 0
    for name, rows in by_rank[mine].items():
        others = [
            found[name]
            for index, found in enumerate(by_rank)
            if index != mine and len(found.get(name, ())) == len(rows)
        ]
        if len(others) < _FEWEST:
            kept += len(rows)
            continue
        recorded[rows] = np.median(job.graph.ops.recorded_ps[np.array(others)], axis=0).astype(np.int64)
        changed += len(rows)
    if not changed:
        raise InputError(f"no kernel of rank {call.names[0]} runs as often on {_FEWEST} other ranks")
    assumed = ["the k-th kernel of a name is the same op on every rank that runs it as often"]
    if kept:
        assumed.append(f"{kept} kernels that other ranks do not run as often last as recorded")
    return Edited(job.with_ops(recorded_ps=recorded), tuple(assumed), changed)


def _by_name(job: EditableJob, index: int) -> dict[str, IntArray]:
    """Compute ops (rows) of one rank by name, in issue order."""
    graph = job.graph
    flat = graph.flat_ops(graph.programs[int(graph.program_of_rank[index])]).row
    rows = flat[graph.ops.kind[flat] == OpKind.COMPUTE]
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows.tolist():
        found[graph.ops.name[row]].append(row)
    return {name: np.array(members, dtype=np.int64) for name, members in found.items()}
