"""What shapes of the framework's ops tell: class, dtype, flops and bytes, and sizes of collectives."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from simcore.collectives.kinds import kind_of
from simcore.cost.classify import classify
from simcore.cost.framework_op import described_inputs
from simcore.cost.kernel import ELEMENT_BYTES
from simcore.errors import InputError
from simcore.graph import Graph
from simcore.graph.ops import IntArray, Strings, first_rows, shapes_text, told_apart
from simcore.records import dataclass
from workloads.imports.collective_names import exchange_kind
from workloads.imports.recorded import ImportedRank, RecordedOps, RecordedShapes

#: Types as profilers write them, and the names of OpTable.
_DTYPES = {
    "float": "float32", "float32": "float32", "double": "float64", "float64": "float64", "half": "float16",
    "float16": "float16", "bfloat16": "bfloat16", "long": "int64", "long int": "int64", "int64": "int64",
    "int": "int32", "int32": "int32", "short": "int16", "int16": "int16", "short int": "int16",
    "signed char": "int8", "char": "int8", "int8": "int8", "unsigned char": "uint8", "byte": "uint8",
    "uint8": "uint8", "bool": "bool", "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2",
}  # fmt: skip
Shape = tuple[int, ...]


@dataclass(frozen=True)
class CallColumns:
    """Columns of :class:`OpTable` for one call."""

    op_class: str
    dtype: str
    in_shapes: str
    out_shapes: str
    flops: int
    bytes_read: int
    bytes_written: int


@lru_cache(maxsize=1 << 14)
def describe(name: str, in_shapes: str, in_types: str, out_shapes: str) -> CallColumns | None:
    """From the name of a call, its shapes and types (JSON, parallel); None where no tensor is told.

    Without ``out_shapes`` those of products follow from the inputs, and others are as large as the largest
    input.
    """
    try:
        shapes, types = json.loads(in_shapes), json.loads(in_types or "[]")
    except ValueError:
        return None
    tensors: list[Shape] = []
    dtypes: list[str] = []
    for shape, kind in zip(shapes, types or [], strict=False):
        dtype = dtype_name(kind)
        if dtype and isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape):
            tensors.append(tuple(shape))
            dtypes.append(dtype)
    if not tensors:
        return None
    op_class = classify(name)
    bare = name.split("::")[-1].strip("_")
    outputs = [tuple(shape) for shape in json.loads(out_shapes)] if out_shapes else []
    if not outputs:
        outputs = [_product_shape(bare, tensors) or max(tensors, key=prod)]
    width = ELEMENT_BYTES[dtypes[0]]
    return CallColumns(
        op_class, dtypes[0], shapes_text(tensors), shapes_text(outputs),
        flops(bare, op_class, tensors, outputs),
        sum(prod(shape) * ELEMENT_BYTES[dtype] for shape, dtype in zip(tensors, dtypes, strict=True)),
        sum(prod(shape) * width for shape in outputs),
    )  # fmt: skip


def dtype_name(kind: object) -> str:
    """OpTable's name of a profiler's type ("c10::BFloat16": "bfloat16"); "" for what is no tensor's type."""
    if not isinstance(kind, str):
        return ""
    return _DTYPES.get(kind.removeprefix("Tensor(").removesuffix(")").removeprefix("c10::").lower(), "")


def _operands(bare: str, tensors: list[Shape]) -> tuple[Shape, Shape] | None:
    """The two factors of a product: the last two tensors after the one that is added."""
    skip = 1 if bare in ("addmm", "baddbmm", "addbmm", "addmv") and len(tensors) >= 3 else 0
    pair = tensors[skip : skip + 2]
    return (pair[0], pair[1]) if len(pair) == 2 and min(map(len, pair)) >= 1 else None


def _product_shape(bare: str, tensors: list[Shape]) -> Shape | None:
    pair = _operands(bare, tensors)
    if pair is None:
        return None
    left, right = pair
    if bare == "linear" and len(right) == 2:
        return (*left[:-1], right[0])
    if bare in ("mm", "addmm", "bmm", "baddbmm", "matmul") and len(left) >= 2 and len(right) >= 2:
        return (*left[:-1], right[-1])
    return None


def flops(bare: str, op_class: str, tensors: list[Shape], outputs: list[Shape]) -> int:
    """Multiply-adds times 2 of products, convolutions and attention; 0 for what is bound by memory."""
    if op_class in ("gemm", "bgemm"):
        pair = _operands(bare, tensors)
        inner = pair[0][-1] if pair is not None else 0
        return 2 * prod(outputs[0]) * inner if outputs else 0
    if op_class == "conv":
        # A convolution reads input and weight [out, in, k...]; its backward has the gradient before them.
        backward = "backward" in bare
        weight = tensors[2 if backward else 1 :][:1]
        image = tensors[0] if backward else outputs[0] if outputs else ()
        products = 2 if backward else 1
        return products * 2 * prod(image) * prod(weight[0][1:]) if weight and image else 0
    if op_class.startswith("attention") and len(tensors) >= 2:
        first = 1 if op_class == "attention_bwd" and len(tensors) >= 3 else 0
        query, key = tensors[first], tensors[first + 1]
        if len(query) == 4 and len(key) == 4:
            forward = 4 * prod(query) * key[-2]  # two products of queries by keys; the mask is not known
            return forward * 5 // 2 if op_class == "attention_bwd" else forward
    return 0


class _Texts:
    """A column of texts that is written to, by their codes."""

    def __init__(self, column: Strings) -> None:
        self.codes = column.codes.copy()
        self._code = {value: code for code, value in enumerate(column.values)}

    def code(self, value: str) -> int:
        """The code of a text."""
        return self._code.setdefault(value, len(self._code))

    def column(self) -> Strings:
        """What has been written."""
        return Strings(self.codes, tuple(self._code)).canonical()


def with_shapes(graph: Graph, ranks: tuple[ImportedRank, ...]) -> Graph:
    """``graph`` with class, dtype, shapes, flops and bytes of the kernels whose calls are known.

    A call that launched several kernels counts for the longest; the others keep "other" and no work.
    """
    ops = graph.ops
    texts = {name: _Texts(getattr(ops, name)) for name in ("op_class", "dtype", "in_shapes", "out_shapes")}
    numbers = {name: getattr(ops, name).copy() for name in ("flops", "bytes_read", "bytes_written")}
    changed = False
    for index, rank in enumerate(ranks):
        shapes = rank.recorded.shapes
        if shapes is None:
            continue
        computes = rank.recorded.is_kernel & ~rank.recorded.is_comm & (shapes.of_op >= 0)
        chosen = np.flatnonzero(computes)
        length = rank.recorded.end_ps - rank.recorded.start_ps
        chosen = chosen[np.argsort(length[chosen], kind="stable")]
        longest = np.full(len(shapes.name), -1, dtype=np.int64)
        longest[shapes.of_op[chosen]] = chosen  # the last one stays
        calls = np.flatnonzero(longest >= 0)
        first_row = int(graph.template_start[index])  # each rank is one template
        rows = first_row + rank.flat[longest[calls]]
        first, alike = _alike(shapes, calls)
        kinds = [_described(rank, shapes, call) for call in calls[first].tolist()]
        known = np.array([kind is not None for kind in kinds], dtype=np.bool_)[alike]
        changed |= bool(known.any())
        for name, texts_of in texts.items():
            codes = [texts_of.code(getattr(kind, name, "")) for kind in kinds]
            texts_of.codes[rows[known]] = np.array(codes, dtype=np.int32)[alike[known]]
        for name, column in numbers.items():
            values = np.array([getattr(kind, name, 0) for kind in kinds], dtype=np.int64)
            column[rows[known]] = values[alike[known]]
    if not changed:
        return graph
    encoded = {name: texts_of.column() for name, texts_of in texts.items()}
    columns: dict[str, Any] = {**encoded, **numbers}
    return replace(graph, ops=replace(ops, **columns))


def _described(rank: ImportedRank, shapes: RecordedShapes, call: int) -> CallColumns | None:
    """Columns of a call.  InputError for more work than they count."""
    outputs = shapes.out_shapes[call] if shapes.out_shapes is not None else ""
    found = describe(shapes.name[call], shapes.in_shapes[call], shapes.in_types[call], outputs)
    if found is not None and max(found.flops, found.bytes_read, found.bytes_written) >= 1 << 62:
        what = f"{shapes.name[call]} of inputs {shapes.in_shapes[call]}"[:300]
        raise InputError(f"rank {rank.number}: {what} is more work than 64 bits count")
    return found


def _alike(shapes: RecordedShapes, calls: IntArray) -> tuple[IntArray, IntArray]:
    """Of each kind of call the place of one in ``calls``, and by call its kind."""
    kinds = kind = np.zeros(len(calls), dtype=np.int64)
    for column in (shapes.name, shapes.in_shapes, shapes.in_types, shapes.out_shapes):
        if column is not None:
            kinds, kind = told_apart(kind * len(column.values) + column.codes[calls])
    return first_rows(kind, len(kinds)), kind


def collective_by_shapes(ops: RecordedOps, op: int, kind: str, num_ranks: int) -> tuple[str, int]:
    """Collective, and size in nccl-tests' convention: 0 where the shapes do not tell it.

    ``kind`` is what the kernel's name says; a SendRecv kernel may be an all_to_all.
    """
    call = int(ops.shapes.of_op[op]) if ops.shapes is not None else -1
    if ops.shapes is None or call < 0:
        return kind, 0
    kind = exchange_kind(kind, ops.shapes.name[call])
    inputs = described_inputs(ops.shapes.in_shapes[call], ops.shapes.in_types[call])
    size = prod(inputs[0][0]) * ELEMENT_BYTES[inputs[0][1]] if inputs else 0
    return kind, size * (num_ranks if kind_of(kind).gives_part else 1)
