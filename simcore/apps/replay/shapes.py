"""Kernels priced anew from the framework's op and input shapes, where a recording has them."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from simcore.cost import Demands, RooflineCost
from simcore.cost.framework_op import kernel_of_op
from simcore.cost.kernel import KernelShape
from simcore.cost.parameters import load_parameters
from simcore.errors import InputError
from simcore.graph import OpKind, OpRows
from simcore.graph.ops import IntArray
from simcore.hardware.specs import GpuSpec
from workloads.imports import ImportedJob
from workloads.imports.recorded import RecordedShapes

#: Words in the names of kernels that multiply fp32 on tensor cores.
TF32_WORDS = ("tf32", "s1688gemm")
_ATTENTION_WORDS = (
    ("flashattnfwdsm90", "flash3"), ("flash_fwd_kernel", "flash2"), ("flash_fwd_splitkv", "flash2"),
    ("sdpa", "cudnn"),
)  # fmt: skip
#: PyTorch's elementwise kernel for tensors that are not contiguous (aten/src/ATen/native/cuda/Loops.cuh).
STRIDED = "::elementwise_kernel<"


@dataclass(frozen=True)
class ShapePrices:
    """Demands of op-table ``rows``; ``predicted_ps`` of recorded kernel time is priced by shapes."""

    rows: IntArray
    demands: Demands
    predicted_ps: int
    notes: tuple[str, ...]


def price_shapes(job: ImportedJob, row_of: list[IntArray], gpu: GpuSpec) -> ShapePrices:
    """Price the kernels of ``job`` on ``gpu``.

    An op's demand is spread over the kernels that it launched in proportion to their recorded times.
    """
    names = {name.lower() for rank in job.ranks for name in rank.recorded.name.values}
    # fp32 products on tensor cores, and which attention kernels ran, show in the kernels' names.
    tf32 = any(word in name for name in names for word in TF32_WORDS)
    cost = RooflineCost(gpu, fp32_math="tf32" if tf32 else "ieee", attention=_attention(names, gpu))
    table, index = OpRows(), dict[KernelShape, int]()
    kernels: list[tuple[int, int, float, int]] = []  # row, entry of the table, share of it, SM time at least
    total = predicted = 0
    for rank, rows in zip(job.ranks, row_of, strict=True):
        recorded, shapes = rank.recorded, rank.recorded.shapes
        length = recorded.end_ps - recorded.start_ps
        computes = recorded.is_kernel & ~recorded.is_comm
        total += int(length[computes].sum())
        if shapes is None:
            continue
        of_call: dict[int, list[int]] = defaultdict(list)
        for op in np.flatnonzero(computes & (shapes.of_op >= 0)).tolist():
            of_call[int(shapes.of_op[op])].append(op)
        for call, ops in of_call.items():
            priced = kernel_of_call(shapes, call)
            lasted = int(length[ops].sum())
            if priced is None or not lasted or not _prices(cost, table, index, priced):
                continue
            predicted += lasted
            for op in ops:
                least = cost.indexing_ps(priced) if STRIDED in recorded.name[op] else 0
                kernels.append((int(rows[op]), index[priced], int(length[op]) / lasted, least))
    entries = np.array([entry for _, entry, _, _ in kernels], dtype=np.int64)
    share = np.array([share for _, _, share, _ in kernels], dtype=np.float64)
    least_ps = np.array([least for *_, least in kernels], dtype=np.int64)
    found = cost.demands(table.table()).take(entries).scaled(share)
    found = replace(
        found, blocks=np.where(share < 1.0, 0, found.blocks), sm_ps=np.maximum(found.sm_ps, least_ps)
    )
    part = predicted / total if total else 0.0
    notes = (
        f"{part:.0%} of the kernel time is priced from shapes, {1 - part:.0%} lasts as recorded",
        "kernels priced at rated clocks: the recorded GPUs that this was compared on kept them",
    )
    return ShapePrices(np.array([row for row, *_ in kernels], dtype=np.int64), found, predicted, notes)


def _prices(cost: RooflineCost, table: OpRows, index: dict[KernelShape, int], priced: KernelShape) -> bool:
    """Whether the model knows the op; it is then in the table, once."""
    if priced in index:
        return index[priced] >= 0
    rows = OpRows()
    for target in (rows, table):
        target.append(
            name=priced.name, kind=int(OpKind.COMPUTE), op_class=priced.op_class, dtype=priced.dtype,
            in_shapes=json.dumps(priced.in_shapes), out_shapes=json.dumps(priced.out_shapes),
            flops=priced.flops, bytes_read=priced.bytes_read, bytes_written=priced.bytes_written,
        )  # fmt: skip
        if target is rows:
            try:
                cost.demands(rows.table())
            except InputError:
                index[priced] = -1
                return False
    index[priced] = len(table) - 1
    return True


def _attention(names: set[str], gpu: GpuSpec) -> str | None:
    """Family of the recorded attention kernels, where the GPU's generation has it in the model."""
    known = load_parameters(gpu.table("cost")).attention
    found = (family for word, family in _ATTENTION_WORDS if any(word in name for name in names))
    return next((family for family in found if family in known), None)


def kernel_of_call(shapes: RecordedShapes, call: int) -> KernelShape | None:
    """The kernel of a recorded framework op; None for an op that is not known."""
    outs = shapes.out_shapes[call] if shapes.out_shapes is not None else None
    return kernel_of_op(shapes.name[call], shapes.in_shapes[call], shapes.in_types[call], outs)
