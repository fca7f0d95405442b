"""How long ops last before an edit, so that it can say how long they last after it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcore.collectives.kinds import SEND_RECV
from simcore.cost import RooflineCost
from simcore.errors import InputError
from simcore.graph import Graph, OpKind
from simcore.graph.kinds import is_communication, is_priced
from simcore.graph.ops import IntArray
from simcore.hardware import ClusterSpec
from workloads.edits.job import EditableJob, TransferPlanner


def alone_times(job: EditableJob, rows: npt.NDArray[np.bool_]) -> IntArray:
    """Time of each of ``rows`` (mask), ps: as recorded, else priced on the job's cluster; 0 elsewhere.

    InputError when neither is known.
    """
    ops = job.graph.ops
    times = np.where(rows, np.maximum(ops.recorded_ps, 0), 0)
    unknown = rows & (ops.recorded_ps < 0)
    kernels = unknown & is_priced(ops.kind)
    if kernels.any():
        gpu = _cluster(job).gpu.under_load(job.graph.world_size)
        priced = (
            RooflineCost(gpu, fp32_math=job.fp32_math).demands(ops, kernels).alone_ps(gpu.hbm_bytes_per_s)
        )
        times[kernels] = priced[kernels]
    transfers = unknown & is_communication(ops.kind)
    if transfers.any():
        if job.planner is None:
            raise InputError("the time of communication is known only where a run plans it")
        times[transfers] = planned_times(job.graph, transfers, job.planner(_cluster(job)))[transfers]
    return times


def _cluster(job: EditableJob) -> ClusterSpec:
    if job.cluster is None:
        raise InputError("some ops have no recorded time and the hardware is not known")
    return job.cluster


def planned_times(graph: Graph, rows: npt.NDArray[np.bool_], planner: TransferPlanner) -> IntArray:
    """By op row: time of communication alone, ps, the longest over the rank classes that play it."""
    ops = graph.ops
    placed = graph.workload.options.get("recorded_ranks") or range(graph.world_size)
    times = np.zeros(len(ops), dtype=np.int64)
    memo: dict[tuple[str, int, tuple[int, ...]], int] = {}
    for program in graph.programs:
        rank = program.ranks[0][0]
        for template in np.unique(program.template).tolist():
            for row in graph.template_rows(template):
                if not rows[row]:
                    continue
                members = graph.groups[ops.group[row]].ranks_of(rank)
                what = ops.collective[row]
                if ops.kind[row] != OpKind.COLLECTIVE:
                    other = members[(members.index(rank) + int(ops.peer_delta[row])) % len(members)]
                    members, what = (rank, other), what or SEND_RECV.name
                key = (what, int(ops.num_bytes[row]), tuple(placed[member] for member in members))
                if key not in memo:
                    plan = (
                        planner.plan_p2p(key[1], key[2][0], key[2][1])
                        if what == SEND_RECV.name
                        else planner.plan(*key)
                    )
                    memo[key] = plan.alone_ps
                times[row] = max(int(times[row]), memo[key])
    return times
