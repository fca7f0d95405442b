"""Another GPU: kernels priced on it, or scaled to it from a recording."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcore.cost import RooflineCost
from simcore.cost.framework_op import kernel_of_op
from simcore.cost.kernel import KernelShape
from simcore.errors import InputError, nearest
from simcore.graph import OpKind
from simcore.hardware import GpuSpec, gpu_names, load_gpu, named_board
from workloads.edits.job import EditableJob, Edited, count_changed
from workloads.edits.kernels.classes import COMPUTE_BOUND, op_classes
from workloads.edits.kernels.edits import edited_kernels, lasting
from workloads.edits.registry import TEXT, EditCall, edit

FloatArray = npt.NDArray[np.float64]


@edit("gpu", value=TEXT, help="another GPU: a profile's name, or recorded:other")
def gpu(job: EditableJob, call: EditCall) -> Edited:
    """Kernels priced on, or scaled to, another GPU."""
    was, _, name = call.value.rpartition(":")
    for given in (name, *([was] if was else [])):
        if given not in gpu_names():
            raise InputError(f"unknown GPU {given!r}{nearest(given, gpu_names())}")
    new = load_gpu(name)
    if not job.ranks:
        if job.cluster is None:
            raise InputError("the hardware is not known")
        job = replace(job, cluster=replace(job.cluster, gpu=new))
        rows = job.graph.ops.kind == OpKind.COMPUTE
        edited = rows & (job.graph.ops.recorded_ps >= 0)
        assumed = ["every kernel is priced on the new GPU; nodes and network as before"]
        if edited.any():
            assumed.append(f"{count_changed(job.graph, edited)} kernels with a fixed time keep it")
        return Edited(job, tuple(assumed), count_changed(job.graph, rows & ~edited))
    job = edited_kernels(job)
    old = load_gpu(was) if was else recorded_gpu(job)
    size = max(job.recorded_world, job.graph.world_size)
    ratio, share = _ratios(job, old.under_load(size), new.under_load(size))
    rows = (job.graph.ops.kind == OpKind.COMPUTE) & (job.graph.ops.recorded_ps >= 0)
    scaled = lasting(job, rows, job.graph.ops.recorded_ps * ratio)
    peaks = f" (HBM {new.hbm_bytes_per_s / 1e12:.2f} TB/s"
    peaks += f", bf16 {new.peak_flops['bf16'] / 1e12:.0f} Tflop/s)" if "bf16" in new.peak_flops else ")"
    told = (
        f"recorded on {old.name}, every kernel scaled by its time on {new.name} over that on {old.name}",
        f"{share:.1%} of kernel time by its shapes, the rest by what bounds its class{peaks}",
        f"on both under load: {old.load_remarks(size)[0]}; {new.load_remarks(size)[0]}",
        "host, copies and communication as recorded",
    )
    return Edited(scaled, told, count_changed(job.graph, rows))


def recorded_gpu(job: EditableJob) -> GpuSpec:
    """The profile of the GPU that was recorded, by its name.  InputError when none is like it."""
    given = next((rank.gpu for rank in job.ranks if rank.gpu), "")
    board = named_board(given)
    if board is None:
        what = f"{given!r}, of which there is no profile" if given else "not recorded"
        raise InputError(
            f"the GPU of the recording is {what}; another GPU: say what it was, gpu=OLD:NEW; profiles:"
            f" {', '.join(gpu_names())}"
        )
    return load_gpu(board.gpu)


def _ratios(job: EditableJob, old: GpuSpec, new: GpuSpec) -> tuple[FloatArray, float]:
    """By op row: time on ``new`` over time on ``old``; and the share of kernel time scaled by shapes."""
    ops = job.graph.ops
    classes = op_classes(job.graph)
    # Half precision where the name does not say: what tensor cores are recorded with.
    mode = next(
        mode for mode in ("bf16", "fp16", "fp32") if mode in old.peak_flops and mode in new.peak_flops
    )
    flops = old.peak_flops[mode] * old.gemm_efficiency / (new.peak_flops[mode] * new.gemm_efficiency)
    memory = old.hbm_bytes_per_s * old.hbm_efficiency / (new.hbm_bytes_per_s * new.hbm_efficiency)
    ratio = np.where(np.isin(classes, list(COMPUTE_BOUND)), flops, memory)
    by_shape = np.zeros(len(ops), dtype=np.bool_)
    costs = RooflineCost(old), RooflineCost(new)
    memo: dict[tuple[str, str, str, str | None], float | None] = {}
    for rank_index, rank in enumerate(job.ranks):
        shapes = rank.recorded.shapes
        if shapes is None:
            continue
        flat = job.graph.flat_ops(job.graph.programs[int(job.graph.program_of_rank[rank_index])]).row
        for op in np.flatnonzero(shapes.of_op >= 0).tolist():
            row = int(flat[rank.flat[op]])
            if ops.kind[row] != OpKind.COMPUTE:
                continue
            call = int(shapes.of_op[op])
            outs = shapes.out_shapes[call] if shapes.out_shapes is not None else None
            key = (shapes.name[call], shapes.in_shapes[call], shapes.in_types[call], outs)
            if key not in memo:
                memo[key] = _ratio(kernel_of_op(*key), costs)
            found = memo[key]
            if found is not None:
                ratio[row], by_shape[row] = found, True
    compute = ops.kind == OpKind.COMPUTE
    weight = np.where(compute, np.maximum(ops.recorded_ps, 0), 0)
    return ratio, float(weight[by_shape].sum() / max(1, weight.sum()))


def _ratio(kernel: KernelShape | None, costs: tuple[RooflineCost, RooflineCost]) -> float | None:
    """New time over old time of a kernel; None for one that the cost model does not know."""
    if kernel is None:
        return None
    try:
        before, after = (cost.seconds(kernel) for cost in costs)
    except InputError:
        return None
    return after / before if before else None
