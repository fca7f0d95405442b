"""What NCCL's planner predicts of measured collectives, and which rows of a CSV it covers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from simcore.apps.measured import engines
from simcore.apps.measured.apart import reasons_apart
from simcore.apps.measured.nccl_loop import reported_us
from simcore.apps.measured.nccl_rows import REQUIRED_COLUMNS, TIME_COLUMNS, NcclRow, NcclSetup, parse_row
from simcore.collectives import CollectivePlan, NcclPlanner
from simcore.collectives.kinds import SEND_RECV
from simcore.collectives.timing import GenerationTiming
from simcore.errors import InputError
from simcore.hardware import Topology, load_cluster
from simcore.outside import csv_rows


def read_nccl_rows(path: Path | str) -> tuple[list[NcclRow], list[dict[str, Any]]]:
    """Rows of a CSV that the planner covers, and the rest as (id, reason).

    Rows that no healthy fabric explains carry their reason; see :mod:`simcore.apps.measured.apart`.
    Errors: InputError for a file that is missing or no text, or a missing column.
    """
    rows: list[NcclRow] = []
    skipped: list[dict[str, Any]] = []
    planners: dict[NcclSetup, NcclPlanner] = {}
    for line, columns in csv_rows(Path(path), "NCCL measurements", _needed, one_of=TIME_COLUMNS):
        try:
            told = engines.collective_columns(columns) if engines.TIME_COLUMN in columns else [columns]
            for one in told:
                row = parse_row(line, one)
                if row.setup not in planners:
                    planners[row.setup] = _planner(row.setup, None)
                _plan(planners[row.setup], row)
                rows.append(row)
        except InputError as error:
            skipped.append({"id": line, "reason": str(error)})
    reasons = reasons_apart(rows)
    return [replace(row, apart=reasons.get(row.line)) for row in rows], skipped


def _needed(columns: Collection[str]) -> Collection[str]:
    return ("gpu", "op") if engines.TIME_COLUMN in columns else REQUIRED_COLUMNS


def _topology(setup: NcclSetup) -> Topology:
    return _wired(setup.cluster, setup.nodes, setup.version, setup.gpu)


@lru_cache(maxsize=64)
def _wired(cluster: str, nodes: int, version: str | None, gpu: str | None) -> Topology:
    changes = {"cluster.num_nodes": str(nodes)}
    if version:
        changes["cluster.nccl_version"] = version
    if gpu:
        changes["cluster.gpu"] = gpu
    return Topology(load_cluster(cluster, changes))


def _planner(setup: NcclSetup, timings: Mapping[str, GenerationTiming] | None) -> NcclPlanner:
    topology = _topology(setup)
    per_node = topology.cluster.gpus_per_node
    fullest = -(-setup.gpus // setup.nodes)
    if fullest > per_node:
        raise InputError(f"{fullest} GPUs per node, but a {setup.cluster} node has {per_node}")
    return NcclPlanner(
        topology,
        algorithm=setup.algorithm,
        protocol=setup.protocol,
        nvls=setup.nvls,
        **dict(setup.numbers),
        timing=(timings or {}).get(topology.cluster.gpu.generation),
    )


def plan_rows(
    rows: Sequence[NcclRow], timings: Mapping[str, GenerationTiming] | None = None
) -> list[CollectivePlan]:
    """The plan of each row.  ``timings`` (by generation) replaces constants of profiles."""
    planners = _planners(rows, timings)
    return [_plan(planners[row.setup], row) for row in rows]


def _plan(planner: NcclPlanner, row: NcclRow) -> CollectivePlan:
    if row.collective == SEND_RECV.name:
        # As sendrecv_perf does it: every rank sends to the next, all at once; the slowest pair counts.
        sent = [planner.plan_p2p(row.num_bytes, src, dst) for src, dst in _pairs(row.setup)]
        return max(sent, key=lambda plan: plan.alone_ps)
    return planner.plan(row.collective, row.num_bytes, _ranks(row.setup))


def tuner_us(rows: Sequence[NcclRow]) -> list[float | None]:
    """What NCCL's own tuner expects of each row, microseconds: network fidelity ``alphabeta``.

    None for kernels that are not NCCL's.
    """
    planners = _planners(rows, None)
    groups = [_pairs(row.setup) if row.collective == SEND_RECV.name else [_ranks(row.setup)] for row in rows]
    return [
        1e6 * max(planners[row.setup].tuner_s(row.collective, row.num_bytes, ranks)[1] for ranks in group)
        if row.exchange is None
        else None
        for row, group in zip(rows, groups, strict=True)
    ]


def _planners(
    rows: Sequence[NcclRow], timings: Mapping[str, GenerationTiming] | None
) -> dict[NcclSetup, NcclPlanner]:
    return {setup: _planner(setup, timings) for setup in dict.fromkeys(row.setup for row in rows)}


def _pairs(setup: NcclSetup) -> list[tuple[int, int]]:
    ranks = _ranks(setup)
    return list(zip(ranks, (*ranks[1:], ranks[0]), strict=True))


def _ranks(setup: NcclSetup) -> tuple[int, ...]:
    """The first GPUs of every node; where they do not spread evenly, the first nodes have one more."""
    per_node = _topology(setup).cluster.gpus_per_node
    each, more = divmod(setup.gpus, setup.nodes)
    return tuple(
        node * per_node + local for node in range(setup.nodes) for local in range(each + (node < more))
    )


def predicted_us(
    rows: Sequence[NcclRow], timings: Mapping[str, GenerationTiming] | None = None
) -> list[float]:
    """Microseconds that each row's loop of calls reports when nothing else runs."""
    return [
        reported_us(plan, _topology(row.setup).cluster.gpu, row.loop)
        for row, plan in zip(rows, plan_rows(rows, timings), strict=True)
    ]


def fabric_of(row: NcclRow) -> str:
    """What joins the row's nodes, as the profile has it: transport, NICs and their rate; "" for one node."""
    cluster = _topology(row.setup).cluster
    if row.setup.nodes == 1:
        return ""
    ports = f"{cluster.nics_per_node} x {cluster.nic_bytes_per_s * 8e-9:g} Gb/s"
    return f"{cluster.gpu.name.split('-')[0]}, {cluster.transport}, {ports}"


def tells_constants(row: NcclRow) -> bool:
    """Whether a row says something about a generation's constants.

    Not one that stands apart, is of a cloud's fabric, waits for a thread that launches for several GPUs, or
    times another library's kernel.
    """
    infiniband = _topology(row.setup).cluster.transport == "infiniband"
    own = row.exchange is None
    return row.apart is None and infiniband and own and row.loop.gpus_per_thread == 1


def generation_of(row: NcclRow) -> str:
    """GPU generation that the row ran on."""
    return _topology(row.setup).cluster.gpu.generation


def gpu_of(row: NcclRow) -> str:
    """Name of the profile of the GPU that the row ran on."""
    return _topology(row.setup).cluster.gpu.name
