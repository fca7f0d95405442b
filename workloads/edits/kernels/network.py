"""Another network: communication planned on another cluster, or links so many times faster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcore.collectives.kinds import SEND_RECV
from simcore.errors import InputError
from simcore.graph import OpKind
from simcore.graph.kinds import is_communication
from simcore.graph.ops import IntArray
from simcore.hardware import ClusterSpec, forced, load_cluster
from workloads.edits.job import EditableJob, Edited, TransferPlanner, count_changed
from workloads.edits.kernels.edits import edited_kernels, lasting
from workloads.edits.kernels.times import planned_times
from workloads.edits.registry import FACTOR, TEXT, EditCall, edit
from workloads.imports.shapes import collective_by_shapes

BoolArray = npt.NDArray[np.bool_]


@edit(
    "network",
    value=TEXT,
    help="communication planned by NCCL's rules on another cluster: its name",
)
def network(job: EditableJob, call: EditCall) -> Edited:
    """Collectives planned on another cluster; everything else as before."""
    other = load_cluster(call.value, force=job.force)
    if not job.ranks:
        if job.cluster is None:
            raise InputError("the hardware is not known")
        here = job.cluster
        moved = replace(other, gpu=replace(
            here.gpu, nvlink_bytes_per_s=other.gpu.nvlink_bytes_per_s, nvlink_links=other.gpu.nvlink_links,
            nvlink_efficiency=other.gpu.nvlink_efficiency,
        ))  # fmt: skip
        nodes = max(moved.num_nodes, -(-job.graph.world_size // moved.gpus_per_node))
        rows = is_communication(job.graph.ops.kind)
        assumed = (f"GPUs of {here.name}, links, nodes and fabric of {other.name}",)
        return Edited(
            replace(job, cluster=replace(moved, num_nodes=nodes)), assumed, count_changed(job.graph, rows)
        )
    return _planned_on(edited_kernels(job), other)


def _planned_on(job: EditableJob, other: ClusterSpec) -> Edited:
    if job.planner is None:
        raise InputError("communication cannot be planned here")
    graph, ops = job.graph, job.graph.ops
    placed = graph.workload.options.get("recorded_ranks") or range(graph.world_size)
    groups = [
        members
        for rank in job.ranks
        if rank.recorded.collectives is not None
        for members in rank.recorded.collectives.members
        if members
    ]
    highest = max([*placed, *(max(members) for members in groups), job.recorded_world - 1])
    nodes = max(other.num_nodes, -(-(highest + 1) // other.gpus_per_node))
    planner = job.planner(replace(other, num_nodes=nodes))
    coupled = {name for name, group in graph.groups.items() if group.size > 1}
    met = np.array([name in coupled for name in ops.group.values], dtype=np.bool_)[ops.group.codes]
    rows = (ops.kind == OpKind.COLLECTIVE) & (ops.num_bytes > 0) & met
    times = planned_times(graph, rows, planner)
    lone, of_world = _plan_lone(job, planner, met, times)
    changed = rows | lone
    if not changed.any():
        raise InputError("the recording tells of no collective what it carried between whom")
    kept = is_communication(graph.ops.kind) & ~changed
    assumed = [f"ranks fill the nodes of {other.name} in order; each transfer has the links to itself"]
    assumed += forced(other)
    if lone.any():
        assumed.append(
            f"{int(lone.sum())} collectives whose other ranks were not recorded last as long as their"
            " transfer: what they waited for the others is gone"
        )
    if of_world:
        assumed.append(
            f"{of_world} collectives of unknown groups are taken to be of all {job.recorded_world} ranks"
        )
    if kept.any():
        assumed.append(f"{int(kept.sum())} of unknown size or group last as recorded")
    edited = lasting(job, changed, times.astype(np.float64))
    return Edited(edited, tuple(assumed), count_changed(graph, changed))


def _plan_lone(
    job: EditableJob, planner: TransferPlanner, met: BoolArray, times: IntArray
) -> tuple[BoolArray, int]:
    """Write into ``times`` what collectives without recorded peers take; returns their rows.

    Where a group is not recorded it is taken to be the whole world; the second value says how often.
    """
    graph, ops = job.graph, job.graph.ops
    lone = np.zeros(len(ops), dtype=np.bool_)
    memo: dict[tuple[str, int, tuple[int, ...]], int] = {}
    of_world = 0
    for index, rank in enumerate(job.ranks):
        known = rank.recorded.collectives
        if known is None:
            continue
        flat = graph.flat_ops(graph.programs[int(graph.program_of_rank[index])]).row
        for op in np.flatnonzero(rank.recorded.is_comm).tolist():
            row, members = int(flat[rank.flat[op]]), known.members[op]
            if ops.kind[row] != OpKind.COLLECTIVE or met[row]:
                continue
            guessed = not members and job.recorded_world > 1
            if guessed:
                members = tuple(range(job.recorded_world))
            if len(members) < 2:
                continue
            kind, num_bytes = ops.collective[row], int(known.num_bytes[op])
            if not num_bytes:
                kind, num_bytes = collective_by_shapes(rank.recorded, op, known.collective[op], len(members))
            if not num_bytes or kind == SEND_RECV.name:
                continue
            of_world += guessed
            key = (kind, num_bytes, members)
            if key not in memo:
                memo[key] = planner.plan(*key).alone_ps
            times[row], lone[row] = memo[key], True
    return lone, of_world


@edit(
    "network.bandwidth",
    value=FACTOR,
    help="links between GPUs and nodes are so many times faster",
)
def network_bandwidth(job: EditableJob, call: EditCall) -> Edited:
    """Bandwidths times the factor; latencies stay where they are known apart."""
    rows = is_communication(job.graph.ops.kind)
    if not rows.any():
        raise InputError("the job has no communication")
    if job.ranks:
        job = edited_kernels(job)
        assumed = [
            "communication is bound by bandwidth: its time is divided by the factor, latency included",
            "and so is the waiting of collectives whose other ranks were not recorded",
        ]
        return Edited(
            lasting(job, rows, job.graph.ops.recorded_ps / call.value),
            tuple(assumed[: 1 + bool((job.graph.ops.group.equals("alone") & rows).any())]),
            count_changed(job.graph, rows),
        )
    if job.cluster is None:
        raise InputError("the hardware is not known")
    if not np.isfinite(call.value):
        raise InputError("must be finite; class.communication.speed=inf takes all time of transfers away")
    gpu = replace(job.cluster.gpu, nvlink_bytes_per_s=job.cluster.gpu.nvlink_bytes_per_s * call.value)
    nics = job.cluster.nic_bytes_per_s * call.value
    faster = replace(job, cluster=replace(job.cluster, gpu=gpu, nic_bytes_per_s=nics))
    return Edited(faster, ("NVLinks and NICs alike; latencies as before",), count_changed(job.graph, rows))
