"""Edits of the host: its speed, the cost of a launch, CUDA graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError
from simcore.graph import OpKind
from simcore.units import PS_PER_US
from workloads.edits.job import EditableJob, Edited, count_changed, plays
from workloads.edits.kernels.edits import edited_kernels
from workloads.edits.registry import FACTOR, FLAG, MICROSECONDS, EditCall, edit
from workloads.imports.recording.graph import HOST_THREAD

#: The shortest times between launches are launches alone: this share of them, from below.
_BARE_SHARE = 0.05


@edit("host.speed", value=FACTOR, help="the host (framework and launches) is so many times faster")
def host_speed(job: EditableJob, call: EditCall) -> Edited:
    """Host times divided by the factor; a recorded rank still begins when it began."""
    job = edited_kernels(job)
    rows = _host_rows(job)
    recorded = job.graph.ops.recorded_ps.copy()
    recorded[rows] = np.rint(recorded[rows] / call.value).astype(np.int64)
    faster = job.with_ops(recorded_ps=recorded)
    assumed = ["waits of the host for the GPU are resolved anew"]
    if job.cluster is not None and not job.ranks:
        launch_s = job.cluster.gpu.launch_overhead_s / call.value
        faster = _launch_cost(faster, launch_s)
        assumed.append(f"a launch takes {1e6 * launch_s:.3g} us of the host")
    return Edited(faster, tuple(assumed), _changed(faster, rows))


@edit("launch_overhead_us", value=MICROSECONDS, help="host time of one launch call")
def launch_overhead(job: EditableJob, call: EditCall) -> Edited:
    """Another cost of each launch."""
    job = edited_kernels(job)
    if not job.ranks:
        faster = _launch_cost(job, call.value * 1e-6)
        return Edited(faster, (f"every launch takes {call.value:g} us of the host",), _changed(faster, None))
    rows = _host_rows(job)
    recorded = job.graph.ops.recorded_ps.copy()
    if not rows.any():
        raise InputError("the recording shows no time of the host between launches")
    bare = int(np.quantile(recorded[rows], _BARE_SHARE))
    recorded[rows] = np.maximum(0, recorded[rows] - bare + round(call.value * PS_PER_US))
    assumed = (
        f"a bare launch took {bare / PS_PER_US:.3g} us: the shortest {_BARE_SHARE:.0%} of the times between"
        " launches are not longer",
        "what the host does beside launching takes as long as before",
    )
    return Edited(job.with_ops(recorded_ps=recorded), assumed, _changed(job, rows))


@edit(
    "cuda_graphs",
    value=FLAG,
    help="everything between two synchronisations is one graph launch",
)
def cuda_graphs(job: EditableJob, _: EditCall) -> Edited:
    """No host time between launches; one launch after each synchronisation."""
    job = edited_kernels(job)
    graph = job.graph
    rows = _host_rows(job)
    if job.ranks:
        rows &= ~_after_sync(job)
    recorded = graph.ops.recorded_ps.copy()
    recorded[rows] = 0
    changed = job.with_ops(recorded_ps=recorded)
    assumed = ["the program can be captured: shapes and control flow are the same every time"]
    if job.ranks:
        assumed.append("host time right after a synchronisation stays: it launches the graph")
        assumed.append("gaps on the device stay as recorded")
    else:
        changed = _launch_cost(changed, 0.0)
        assumed.append("graph launches themselves take no time of the host; gaps between kernels stay")
    return Edited(changed, tuple(assumed), _changed(changed, rows if job.ranks else None))


def _host_rows(job: EditableJob) -> npt.NDArray[np.bool_]:
    """Time of host threads; without the one that says how much later than others a recorded rank begins."""
    graph = job.graph
    rows: npt.NDArray[np.bool_] = graph.ops.kind == OpKind.HOST
    if job.ranks:
        further = np.array([s.startswith(HOST_THREAD) for s in graph.ops.stream.values], dtype=np.bool_)
        rows |= further[graph.ops.stream.codes] & (graph.ops.recorded_ps > 0)
        rows[graph.template_start[:-1]] = False
    return rows


def _after_sync(job: EditableJob) -> npt.NDArray[np.bool_]:
    """HOST ops that are the first since the host blocked."""
    ops = job.graph.ops
    host = np.flatnonzero(ops.kind == OpKind.HOST)
    blocks = np.cumsum((ops.kind == OpKind.SYNC) & (ops.blocking > 0))
    first = np.ones(len(host), dtype=np.bool_)
    first[1:] = blocks[host[1:]] != blocks[host[:-1]]
    mask = np.zeros(len(ops), dtype=np.bool_)
    mask[host[first]] = True
    return mask


def _launch_cost(job: EditableJob, launch_s: float) -> EditableJob:
    if job.cluster is None:
        raise InputError("the hardware is not known")
    gpu = replace(job.cluster.gpu, launch_overhead_s=launch_s)
    return replace(job, cluster=replace(job.cluster, gpu=gpu))


def _changed(job: EditableJob, rows: npt.NDArray[np.bool_] | None) -> int:
    """Executions of ``rows``, or of everything that is launched."""
    if rows is not None and job.ranks:
        return count_changed(job.graph, rows)
    launched = ~np.isin(job.graph.ops.kind, (OpKind.SYNC, OpKind.EVENT_RECORD, OpKind.EVENT_WAIT))
    return int(plays(job.graph)[launched].sum())
