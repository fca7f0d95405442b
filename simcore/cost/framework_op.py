"""A framework's op with its recorded input shapes and types as a kernel that formulas can price."""

from __future__ import annotations

import json
import math

import numpy as np

from simcore.cost.classify import classify, normalise
from simcore.cost.kernel import ELEMENT_BYTES, KernelShape, Shape

#: Types as profilers write them.  Others (Scalar, tensor lists, "") say nothing of the main input.
_DTYPES = {
    "float": "float32", "double": "float64", "c10::half": "float16", "half": "float16",
    "c10::bfloat16": "bfloat16", "bfloat16": "bfloat16", "long": "int64", "long int": "int64", "int": "int32",
    "unsigned char": "uint8", "signed char": "int8", "bool": "bool", "c10::float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2",
}  # fmt: skip
_GEMMS = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "scaled_mm")


def kernel_of_op(name: str, in_shapes: str, in_types: str, out_shapes: str | None) -> KernelShape | None:
    """The op as one kernel; None where its class, types or output are not known.

    ``in_shapes``, ``in_types``, ``out_shapes`` are JSON lists as recorded; None: outputs are not recorded.
    """
    op_class = classify(name)
    inputs = described_inputs(in_shapes, in_types)
    if not inputs:
        return None
    sizes = [shape for shape, _ in inputs]
    told = _tensors(out_shapes) if out_shapes is not None else []
    if op_class in ("gemm", "bgemm", "conv"):
        return _product(name, op_class, inputs, told)
    if op_class in ("attention_fwd", "attention_bwd"):
        # The kernels' own ops hold [batch, seq, heads, dim]; the model reads [batch, heads, seq, dim].
        by_heads = "scaled_dot_product" in name
        heads_first = [
            (shape[0], shape[2], shape[1], shape[3]) if len(shape) == 4 and not by_heads else shape
            for shape in sizes
        ]
        return KernelShape(name, op_class, inputs[0][1], tuple(heads_first), (heads_first[0],))
    if normalise(name) in ("index_select", "embedding") and len(sizes) >= 2:
        table, index = sizes[0], sizes[-1]
        rows = (*index, *table[1:])
        size = math.prod(rows) * ELEMENT_BYTES[inputs[0][1]]
        return KernelShape(
            name, op_class, inputs[0][1], (table, index), (rows,), 0, size + 8 * math.prod(index), size
        )
    outputs = told or _outputs(name, op_class, sizes)
    if outputs is None:
        return None
    if op_class == "embedding_fwd":
        return _lookup(name, op_class, inputs, outputs)
    widest = max((dtype for _, dtype in inputs), key=ELEMENT_BYTES.__getitem__)
    short = normalise(name)
    if short in ("copy", "to_copy"):  # copy_(self, source): self is only written
        widest, inputs = inputs[0][1], inputs[1:] or inputs
    reads = (
        0 if op_class == "fill" else sum(math.prod(shape) * ELEMENT_BYTES[dtype] for shape, dtype in inputs)
    )
    writes = sum(map(math.prod, outputs)) * ELEMENT_BYTES[widest]
    return KernelShape(name, op_class, inputs[0][1], tuple(sizes), tuple(outputs), 0, reads, writes)


def _lookup(
    name: str, op_class: str, inputs: list[tuple[Shape, str]], outputs: list[Shape]
) -> KernelShape | None:
    """Rows of a table, gathered or pooled: only these are read of it.

    Pooled (embedding_bag, FBGEMM's batched lookups): ``indices`` and then ``offsets``, one bag after another.
    """
    dtype = next((dtype for _, dtype in inputs if not dtype.startswith(("int", "uint", "bool"))), "")
    if not dtype:
        return None
    index = [shape for shape, kind in inputs if kind in ("int64", "int32")]
    written = math.prod(outputs[0]) * ELEMENT_BYTES[dtype]
    read = written
    if "bag" in name or "lookup" in name:
        lengths = [shape[0] for shape in index if len(shape) == 1]
        if len(lengths) < 2:
            return None
        # The longest two are these; tables may be described by shorter ones before them.
        indices, bags = [length for length in lengths if length >= sorted(lengths)[-2]][:2]
        index, read = [(indices,), (bags,)], written * indices // max(1, bags)
    sizes = tuple(shape for shape, _ in inputs)
    return KernelShape(
        name, op_class, dtype, sizes, (outputs[0],), 0, read + 8 * sum(map(math.prod, index)), written
    )


def _product(
    name: str, op_class: str, inputs: list[tuple[Shape, str]], told: list[Shape]
) -> KernelShape | None:
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
        flops = 2 * math.prod(told[0]) * math.prod(weight[1:])
        return KernelShape(name, op_class, dtype, (image, weight), (told[0],), flops)
    if short not in _GEMMS:
        return None
    left, right = matrices[-2:] if short in ("addmm", "baddbmm") else matrices[:2]
    out = (*left[:-1], right[0] if short == "linear" else right[-1])
    return KernelShape(name, op_class, dtype, (left, right), (out,), 2 * math.prod(out) * left[-1])


def _outputs(name: str, op_class: str, inputs: list[Shape]) -> list[Shape] | None:
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


def described_inputs(in_shapes: str, in_types: str) -> list[tuple[Shape, str]]:
    """Shape and type of the tensors among an op's inputs; lists of tensors have the type of the others."""
    try:
        found, types = json.loads(in_shapes), json.loads(in_types)
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


def _tensors(text: str) -> list[Shape]:
    """Shapes in a JSON text, lists of tensors flattened; scalars left out."""
    try:
        pending = [json.loads(text)]
    except ValueError:
        return []
    found: list[Shape] = []
    while pending:
        entry = pending.pop(0)
        if not isinstance(entry, list) or not entry:
            continue
        if all(type(size) is int and size >= 0 for size in entry):
            found.append(tuple(entry))
        else:
            pending[:0] = entry
    return found


def _broadcast(shapes: list[Shape]) -> Shape:
    try:
        return tuple(int(size) for size in np.broadcast_shapes(*shapes))
    except ValueError:
        return max(shapes, key=math.prod)
