"""Kernels priced anew from the framework's op and input shapes, where a recording has them."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from simcore.cost import Demands, RooflineCost, classify
from simcore.cost.classify import normalise
from simcore.cost.kernel import ELEMENT_BYTES
from simcore.cost.parameters import load_parameters
from simcore.errors import InputError
from simcore.graph import OpKind, OpRows
from simcore.graph.ops import IntArray
from simcore.hardware.specs import GpuSpec
from simcore.units import ps_from_s
from workloads.imports import ImportedJob
from workloads.imports.recorded import RecordedShapes

#: Types as profilers write them.  Others (Scalar, tensor lists, "") say nothing of the main input.
_DTYPES = {
    "float": "float32", "double": "float64", "c10::half": "float16", "half": "float16",
    "c10::bfloat16": "bfloat16", "bfloat16": "bfloat16", "long": "int64", "long int": "int64", "int": "int32",
    "unsigned char": "uint8", "signed char": "int8", "bool": "bool", "c10::float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2",
}  # fmt: skip
_GEMMS = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "scaled_mm")
_TF32_WORDS = ("tf32", "s1688gemm")
_ATTENTION_WORDS = (
    ("flashattnfwdsm90", "flash3"), ("flash_fwd_kernel", "flash2"), ("flash_fwd_splitkv", "flash2"),
    ("sdpa", "cudnn"),
)  # fmt: skip
#: PyTorch's elementwise kernel for tensors that are not contiguous (aten/src/ATen/native/cuda/Loops.cuh).
_STRIDED = "::elementwise_kernel<"
#: Integer instructions per element of it: median of seven shapes, 45 to 63, of 9 to 16 million bf16 and fp32
#: elements on an H100 (TraceLens' trace of Qwen1.5-0.5B).  On A100 HBM is slower than that for fp32.
_INDEX_INSTRUCTIONS = 53
_INTEGER_LANES = 64  # per SM and clock (CUDA programming guide, arithmetic throughput, 7.0, 8.0, 9.0)
_Shape = tuple[int, ...]


@dataclass(frozen=True)
class ShapePrices:
    """Demands of op-table ``rows``; ``predicted_ps`` of recorded kernel time is priced by shapes."""

    rows: IntArray
    demands: Demands
    predicted_ps: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Priced:
    """A framework op in the columns that a cost model reads."""

    name: str
    dtype: str
    in_shapes: tuple[_Shape, ...]
    out_shapes: tuple[_Shape, ...]
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


def price_shapes(job: ImportedJob, row_of: list[IntArray], gpu: GpuSpec) -> ShapePrices:
    """Price the kernels of ``job`` on ``gpu``.

    An op's demand is spread over the kernels that it launched in proportion to their recorded times.
    """
    names = {name.lower() for rank in job.ranks for name in rank.recorded.name.values}
    # fp32 products on tensor cores, and which attention kernels ran, show in the kernels' names.
    tf32 = any(word in name for name in names for word in _TF32_WORDS)
    cost = RooflineCost(gpu, fp32_math="tf32" if tf32 else "ieee", attention=_attention(names, gpu))
    table, index = OpRows(), dict[_Priced, int]()
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
            priced = _priced(shapes, call)
            lasted = int(length[ops].sum())
            if priced is None or not lasted or not _prices(cost, table, index, priced):
                continue
            predicted += lasted
            for op in ops:
                least = _indexing_ps(priced, gpu) if _STRIDED in recorded.name[op] else 0
                kernels.append((int(rows[op]), index[priced], int(length[op]) / lasted, least))
    entries = np.array([entry for _, entry, _, _ in kernels], dtype=np.int64)
    share = np.array([share for _, _, share, _ in kernels], dtype=np.float64)
    least_ps = np.array([least for *_, least in kernels], dtype=np.int64)
    found = cost.demands(table.table()).take(entries).scaled(share)
    found = replace(
        found, blocks=np.where(share < 1.0, 0, found.blocks), sm_ps=np.maximum(found.sm_ps, least_ps)
    )
    part = predicted / total if total else 0.0
    notes = (f"{part:.0%} of the kernel time is priced from shapes, {1 - part:.0%} lasts as recorded",)
    return ShapePrices(np.array([row for row, *_ in kernels], dtype=np.int64), found, predicted, notes)


def _indexing_ps(priced: _Priced, gpu: GpuSpec) -> int:
    """SM time of an elementwise kernel over strided or broadcast tensors: it computes every address."""
    elements = max(map(math.prod, (*priced.in_shapes, *priced.out_shapes)))
    rate = _INTEGER_LANES * gpu.num_sms * gpu.boost_clock_hz / _INDEX_INSTRUCTIONS
    return ps_from_s(elements / rate)


def _prices(cost: RooflineCost, table: OpRows, index: dict[_Priced, int], priced: _Priced) -> bool:
    """Whether the model knows the op; it is then in the table, once."""
    if priced in index:
        return index[priced] >= 0
    rows = OpRows()
    for target in (rows, table):
        target.append(
            name=priced.name, kind=int(OpKind.COMPUTE), op_class=classify(priced.name), dtype=priced.dtype,
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
    known = load_parameters(gpu.generation).attention
    found = (family for word, family in _ATTENTION_WORDS if any(word in name for name in names))
    return next((family for family in found if family in known), None)


def _priced(shapes: RecordedShapes, call: int) -> _Priced | None:
    """The op of a call; None where class, types or output are not known."""
    name = shapes.name[call]
    op_class = classify(name)
    inputs = _inputs(shapes, call)
    if not inputs:
        return None
    sizes = [shape for shape, _ in inputs]
    told = _tensors(shapes.out_shapes[call]) if shapes.out_shapes is not None else []
    if op_class in ("gemm", "bgemm", "conv"):
        return _product(name, op_class, inputs, told)
    if op_class in ("attention_fwd", "attention_bwd"):
        # The kernels' own ops hold [batch, seq, heads, dim]; the model reads [batch, heads, seq, dim].
        by_heads = "scaled_dot_product" in name
        heads_first = [
            (shape[0], shape[2], shape[1], shape[3]) if len(shape) == 4 and not by_heads else shape
            for shape in sizes
        ]
        return _Priced(name, inputs[0][1], tuple(heads_first), (heads_first[0],))
    outputs = told or _outputs(name, op_class, sizes)
    if outputs is None:
        return None
    widest = max((dtype for _, dtype in inputs), key=ELEMENT_BYTES.__getitem__)
    short = normalise(name)
    if short in ("copy", "to_copy"):  # copy_(self, source): self is only written
        widest, inputs = inputs[0][1], inputs[1:] or inputs
    reads = (
        0 if op_class == "fill" else sum(math.prod(shape) * ELEMENT_BYTES[dtype] for shape, dtype in inputs)
    )
    writes = sum(map(math.prod, outputs)) * ELEMENT_BYTES[widest]
    return _Priced(name, inputs[0][1], tuple(sizes), tuple(outputs), 0, reads, writes)


def _product(
    name: str, op_class: str, inputs: list[tuple[_Shape, str]], told: list[_Shape]
) -> _Priced | None:
    """A matrix product or convolution."""
    dtype = inputs[0][1]
    matrices = [shape for shape, _ in inputs if len(shape) >= 2]
    if len(matrices) < 2:
        return None
    short = normalise(name)
    if op_class == "conv":
        if not told or "backward" in short or len(matrices[1]) < 3:
            return None
        image, weight = matrices[:2]
        return _Priced(
            name, dtype, (image, weight), (told[0],), 2 * math.prod(told[0]) * math.prod(weight[1:])
        )
    if short not in _GEMMS:
        return None
    left, right = matrices[-2:] if short in ("addmm", "baddbmm") else matrices[:2]
    out = (*left[:-1], right[0] if short == "linear" else right[-1])
    return _Priced(name, dtype, (left, right), (out,), 2 * math.prod(out) * left[-1])


def _outputs(name: str, op_class: str, inputs: list[_Shape]) -> list[_Shape] | None:
    """What an op writes, as its class and inputs tell; None where they do not."""
    if op_class == "elementwise":
        return [_broadcast(inputs)]
    if op_class in ("softmax_fwd", "softmax_bwd", "norm_fwd", "norm_bwd", "dropout", "fill"):
        return inputs[:1]
    if op_class == "reduction":
        return []
    if op_class == "copy" and normalise(name) in ("copy", "to_copy", "clone", "contiguous"):
        return inputs[:1]
    return inputs if op_class == "copy" and normalise(name) == "cat" else None


def first_input_bytes(shapes: RecordedShapes, call: int) -> int:
    """Size of the first tensor that a call was given; 0 where it is not recorded."""
    inputs = _inputs(shapes, call)
    return math.prod(inputs[0][0]) * ELEMENT_BYTES[inputs[0][1]] if inputs else 0


def _inputs(shapes: RecordedShapes, call: int) -> list[tuple[_Shape, str]]:
    """Shape and type of the tensors among a call's inputs; lists of tensors have the type of the others."""
    try:
        found, types = json.loads(shapes.in_shapes[call]), json.loads(shapes.in_types[call])
    except ValueError:
        return []
    types = types if isinstance(types, list) else []
    known = [_DTYPES.get(text.lower()) if isinstance(text, str) else None for text in types]
    usual = next((dtype for dtype in known if dtype is not None), None)
    if usual is None or not isinstance(found, list):
        return []
    known += [None] * (len(found) - len(known))
    return [
        (shape, dtype or usual)
        for entry, dtype in zip(found, known, strict=False)
        for shape in _tensors(json.dumps(entry))
    ]


def _tensors(text: str) -> list[_Shape]:
    """Shapes in a JSON text, lists of tensors flattened; scalars left out."""
    try:
        pending = [json.loads(text)]
    except ValueError:
        return []
    found: list[_Shape] = []
    while pending:
        entry = pending.pop(0)
        if not isinstance(entry, list) or not entry:
            continue
        if all(type(size) is int and size >= 0 for size in entry):
            found.append(tuple(entry))
        else:
            pending[:0] = entry
    return found


def _broadcast(shapes: list[_Shape]) -> _Shape:
    try:
        return tuple(int(size) for size in np.broadcast_shapes(*shapes))
    except ValueError:
        return max(shapes, key=math.prod)
