"""Kernels priced anew from the framework's op and input shapes, where a recording has them."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcore.apps.replay.alone import overlapped
from simcore.cost import Demands, RooflineCost
from simcore.cost.framework_op import kernel_of_op
from simcore.cost.kernel import KernelShape
from simcore.cost.parameters import load_parameters
from simcore.errors import InputError
from simcore.graph import OpKind, OpRows
from simcore.graph.ops import IntArray
from simcore.hardware.specs import GpuSpec
from simcore.records import dataclass
from workloads.imports import ImportedJob
from workloads.imports.recorded import BoolArray, RecordedShapes

#: Words in the names of kernels that multiply fp32 on tensor cores.
TF32_WORDS = ("tf32", "s1688gemm")
_ATTENTION_WORDS = (
    ("flashattnfwdsm90", "flash3"), ("flash_fwd_kernel", "flash2"), ("flash_fwd_splitkv", "flash2"),
    ("sdpa", "cudnn"),
)  # fmt: skip
#: How far kernels of a class may be mispriced on the GPU that recorded them, as a share of their time.
BAND = 0.25
_NAMED = 0.01  # classes with less of the kernel time are not named in notes
#: PyTorch's elementwise kernel for tensors that are not contiguous (aten/src/ATen/native/cuda/Loops.cuh).
STRIDED = "::elementwise_kernel<"


@dataclass(frozen=True)
class ShapePrices:
    """Demands of op-table ``rows``; ``predicted_ps`` of recorded kernel time is priced by shapes."""

    rows: IntArray
    demands: Demands
    predicted_ps: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Priced:
    """A recorded kernel with a price: ``entry`` of a table of ops, of which it is ``share``.

    ``is_strided``: an address per element may bound it (:data:`STRIDED`).  ``known_ps`` is its recorded time,
    ``by_itself`` whether nothing ran beside it.
    """

    row: int
    entry: int
    share: float
    is_strided: bool
    known_ps: int
    by_itself: bool


def price_shapes(job: ImportedJob, row_of: list[IntArray], gpu: GpuSpec, own: GpuSpec | None) -> ShapePrices:
    """Price the kernels of ``job`` on ``gpu``; ``own`` is the GPU that recorded them, if it has a profile.

    An op's demand is spread over the kernels that it launched in proportion to their recorded times.  Classes
    that ``own`` prices more than :data:`BAND` off their recorded times last as recorded.
    Errors: InputError where no class of kernels is left.
    """
    names = {name.lower() for rank in job.ranks for name in rank.recorded.name.values}
    # fp32 products on tensor cores, and which attention kernels ran, show in the kernels' names.
    tf32 = any(word in name for name in names for word in TF32_WORDS)
    costs = [
        RooflineCost(on, fp32_math="tf32" if tf32 else "ieee", attention=_attention(names, on))
        for on in ((gpu,) if own is None or own == gpu else (gpu, own))
    ]
    table, shapes_of = OpRows(), list[KernelShape]()
    kernels, total = _known_kernels(job, row_of, costs, table, shapes_of)
    priced = [_demands(kernels, shapes_of, cost, table) for cost in costs]
    known = np.array([kernel.known_ps for kernel in kernels], dtype=np.int64)
    class_of = np.array([shapes_of[kernel.entry].op_class for kernel in kernels], dtype=np.str_)
    by_itself = np.array([kernel.by_itself for kernel in kernels], dtype=np.bool_)
    alone = priced[-1].alone_ps((own or gpu).hbm_bytes_per_s)
    missed = {} if own is None else _missed(class_of, alone, known, by_itself)
    kept = np.flatnonzero([missed.get(name, 0.0) <= BAND for name in class_of.tolist()])
    off = ", ".join(
        f"{name} ({share:.0%} of the kernel time, {missed[name]:.0%} off)"
        for name in sorted(missed)
        if missed[name] > BAND and (share := known[class_of == name].sum() / total) >= _NAMED
    )
    if not len(kept):
        why = "no kernel has recorded shapes (record_shapes=True) of an op that the cost model knows"
        if len(kernels):
            why = f"every class of kernels is priced more than {BAND:.0%} off its recorded time: {off}"
        raise InputError(f"--level shapes would predict nothing: {why}; use --level communication")
    predicted = int(known[kept].sum())
    part = predicted / total
    notes = [
        f"{part:.0%} of the kernel time is priced from shapes, {1 - part:.0%} lasts as recorded",
        "kernels priced at rated clocks: the recorded GPUs that this was compared on kept them",
    ]
    if off:
        notes.append(f"priced more than {BAND:.0%} off here, so they last as recorded: {off}")
    if own is None:
        notes.append("prices are not compared with recorded times: the recorded GPU has no profile")
    rows = np.array([kernel.row for kernel in kernels], dtype=np.int64)
    return ShapePrices(rows[kept], priced[0].take(kept), predicted, tuple(notes))


def _known_kernels(
    job: ImportedJob,
    row_of: list[IntArray],
    costs: list[RooflineCost],
    table: OpRows,
    shapes_of: list[KernelShape],
) -> tuple[list[_Priced], int]:
    """Kernels whose op all ``costs`` know, written into ``table`` once; and the time of all kernels, ps."""
    index, kernels, total = dict[KernelShape, int](), list[_Priced](), 0
    for rank, rows in zip(job.ranks, row_of, strict=True):
        recorded, shapes = rank.recorded, rank.recorded.shapes
        length = recorded.end_ps - recorded.start_ps
        computes = recorded.is_kernel & ~recorded.is_comm
        total += int(length[computes].sum())
        if shapes is None:
            continue
        beside = overlapped(recorded, np.ones(len(recorded), dtype=np.bool_))
        of_call: dict[int, list[int]] = defaultdict(list)
        for op in np.flatnonzero(computes & (shapes.of_op >= 0)).tolist():
            of_call[int(shapes.of_op[op])].append(op)
        for call, ops in of_call.items():
            priced = kernel_of_call(shapes, call)
            lasted = int(length[ops].sum())
            if priced is None or not lasted:
                continue
            if priced not in index:
                index[priced] = len(shapes_of) if _prices(costs, table, priced) else -1
                shapes_of += [priced] if index[priced] >= 0 else []
            if index[priced] >= 0:
                kernels += [
                    _Priced(
                        int(rows[op]),
                        index[priced],
                        int(length[op]) / lasted,
                        STRIDED in recorded.name[op],
                        int(length[op]),
                        not beside[op],
                    )
                    for op in ops
                ]
    return kernels, total


def _demands(
    kernels: list[_Priced], shapes_of: list[KernelShape], cost: RooflineCost, table: OpRows
) -> Demands:
    """The demand of each kernel."""
    entries = np.array([kernel.entry for kernel in kernels], dtype=np.int64)
    share = np.array([kernel.share for kernel in kernels], dtype=np.float64)
    least_ps = np.array(
        [cost.indexing_ps(shapes_of[one.entry]) if one.is_strided else 0 for one in kernels], dtype=np.int64
    )
    found = cost.demands(table.table()).take(entries).scaled(share)
    return replace(
        found, blocks=np.where(share < 1.0, 0, found.blocks), sm_ps=np.maximum(found.sm_ps, least_ps)
    )


def _missed(
    class_of: npt.NDArray[np.str_], priced_ps: IntArray, known_ps: IntArray, by_itself: BoolArray
) -> dict[str, float]:
    """How far off kernels of each class are priced, as a share of their time.

    Where any ran by themselves, they tell: in the others' time is what sharing the GPU cost.
    """
    found = {}
    for name in np.unique(class_of):
        of_class = class_of == name
        tells = of_class & by_itself if (of_class & by_itself).any() else of_class
        off = np.abs(priced_ps[tells] - known_ps[tells]).sum()
        found[str(name)] = float(off / max(1, known_ps[tells].sum()))
    return found


def _prices(costs: list[RooflineCost], table: OpRows, priced: KernelShape) -> bool:
    """Whether the models know the op; it is then in the table."""
    rows = OpRows()
    for target in (rows, table):
        target.append(
            name=priced.name, kind=int(OpKind.COMPUTE), op_class=priced.op_class, dtype=priced.dtype,
            in_shapes=json.dumps(priced.in_shapes), out_shapes=json.dumps(priced.out_shapes),
            flops=priced.flops, bytes_read=priced.bytes_read, bytes_written=priced.bytes_written,
        )  # fmt: skip
        if target is rows:
            try:
                for cost in costs:
                    cost.demands(rows.table())
            except InputError:
                return False
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
