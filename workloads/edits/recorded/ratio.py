"""What a recorded call of the framework takes with other shapes: new over old time, by the cost model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from simcore.cost import KernelShape, RooflineCost
from simcore.cost.classify import classify
from simcore.cost.framework_op import described_inputs, kernel_of_op
from simcore.errors import InputError
from workloads.edits.kernels.classes import OVER_PARAMETERS
from workloads.edits.recorded.features import RecordedSizes, Scales, Shape, scaled

_PER_HEAD = ("bgemm", "attention_fwd", "attention_bwd", "softmax_fwd", "softmax_bwd")
_COMMUNICATION = ("nccl", "c10d", "record_param_comms")
_ACTIVATION = re.compile(r"gelu|silu|swish|glu|relu", re.IGNORECASE)


def resized_ratio(
    cost: RooflineCost, features: RecordedSizes, scales: Scales, name: str, in_shapes: str, in_types: str,
    out_shapes: str | None,
) -> tuple[float, float, float] | None:  # fmt: skip
    """New over old time (or bytes) of a call, its old and new work; None for buffers of parameters."""
    op_class = classify(name)
    inputs = [shape for shape, _ in described_inputs(in_shapes, in_types)]
    if op_class in _PER_HEAD or any(_is_scores(shape) for shape in inputs):
        return _per_head(cost, scales.heads, name, in_shapes, in_types, out_shapes), 0.0, 0.0
    if op_class in OVER_PARAMETERS or not inputs or _is_buffer(inputs, features):
        return None
    twins = twin_inputs(name, inputs, features)
    grown = [scaled(shape, features, scales, twin=twin) for shape, twin in zip(inputs, twins, strict=True)]
    before = _kernel(name, in_shapes, in_types, out_shapes)
    if grown == inputs:
        work = float(before.flops) if before is not None else 0.0
        return 1.0, work, work
    texts = [renamed(name, text, features, scales) for text in (in_shapes, out_shapes)]
    after = _kernel(name, texts[0] or "", in_types, texts[1])
    volume = sum(map(prod, grown)) / max(1, sum(map(prod, inputs)))
    if op_class == "gemm":
        volume = _work(inputs, grown)
    if before is None or after is None or name.startswith(_COMMUNICATION):
        return volume, 0.0, 0.0
    try:
        ratio = cost.seconds(after) / cost.seconds(before)
    except InputError:
        ratio = volume
    return ratio, float(before.flops), float(after.flops)


def _kernel(name: str, in_shapes: str, in_types: str, out_shapes: str | None) -> KernelShape | None:
    """A call as one kernel; a product of a library's own is one of two matrices, and what it is added to."""
    found = kernel_of_op(name, in_shapes, in_types, out_shapes)
    if found is not None or classify(name) != "gemm":
        return found
    product = kernel_of_op("aten::mm", in_shapes, in_types, None)
    matrices = [shape for shape, _ in described_inputs(in_shapes, in_types) if len(shape) == 2]
    if product is None or matrices[2:3] != list(product.out_shapes):
        return product
    return replace(product, name=f"{name} accum")  # read and written: gradients of weights


def _per_head(
    cost: RooflineCost, heads: float, name: str, in_shapes: str, in_types: str, out_shapes: str | None
) -> float:
    """New over old time of what works on each head of each sequence by itself, for more of them."""

    def more(text: str | None) -> str | None:
        shapes = json.loads(text) if text else []
        return json.dumps([_with_heads(shape, heads) if _is_of_heads(shape) else shape for shape in shapes])

    before = kernel_of_op(name, in_shapes, in_types, out_shapes)
    after = kernel_of_op(name, more(in_shapes) or "", in_types, more(out_shapes) if out_shapes else None)
    try:
        return cost.seconds(after) / cost.seconds(before) if before and after else heads
    except InputError:
        return heads


def _with_heads(shape: list[int], heads: float) -> list[int]:
    """A tensor of sequences, or heads, by what each holds: the first of these that stays whole grows."""
    for place, size in enumerate(shape[:-2]):
        if size * heads >= 1 and (size * heads).is_integer():
            return [*shape[:place], round(size * heads), *shape[place + 1 :]]
    return [max(1, round(shape[0] * heads)), *shape[1:]]


def _is_of_heads(shape: object) -> bool:
    return isinstance(shape, list) and len(shape) > 2 and all(type(size) is int for size in shape)


def _is_scores(shape: Shape) -> bool:
    """Whether a tensor holds attention's scores: queries by keys."""
    return len(shape) > 2 and shape[-1] == shape[-2] > 1


def _work(inputs: list[Shape], grown: list[Shape]) -> float:
    """New over old multiply-adds of a product, whichever operands are transposed: each size counts once."""
    sizes = {
        pair
        for old, new in zip(inputs, grown, strict=True)
        if len(old) > 1
        for pair in ((prod(old[:-1]), prod(new[:-1])), (old[-1], new[-1]))
    }
    return prod(new for _, new in sizes) / max(1, prod(old for old, _ in sizes))


def _is_buffer(inputs: list[Shape], features: RecordedSizes) -> bool:
    """Whether all tensors are flat and larger than any activation's row: parameters or gradients together."""
    largest = max(features.tokens, features.hidden, *features.inner, 1)
    return all(len(shape) == 1 for shape in inputs) and max(shape[0] for shape in inputs) > 4 * largest


def twin_inputs(name: str, shapes: Sequence[Shape], features: RecordedSizes) -> list[bool]:
    """By tensor: whether its last dimension, of the hidden size, is one inside a layer.

    Of a product of hidden by hidden features the right operand's (and what is added to it), of an activation
    function all.
    """
    if not features.twin:
        return [False] * len(shapes)
    if classify(name) == "gemm":
        matrices = [place for place, shape in enumerate(shapes) if len(shape) >= 2]
        sizes = [size for place in matrices[:2] for size in shapes[place]]
        doubled = len(matrices) > 1 and sizes.count(features.hidden) >= 2 and features.tokens in sizes
        inner = {shapes[place][-1] for place in matrices[1:2]} | {shapes[place][0] for place in matrices[:1]}
        doubled = doubled and not inner & features.inner
        return [doubled and place in matrices[1:] for place in range(len(shapes))]
    return [bool(_ACTIVATION.search(name))] * len(shapes)


def renamed(name: str, text: str | None, features: RecordedSizes, scales: Scales) -> str | None:
    """Shapes (JSON) of a call with their dimensions grown."""
    if not text:
        return text
    shapes = json.loads(text)
    tensors = [shape for shape in shapes if _is_tensor(shape)]
    twins = iter(twin_inputs(name, [tuple(shape) for shape in tensors], features))
    return json.dumps(
        [
            list(scaled(tuple(shape), features, scales, twin=next(twins))) if _is_tensor(shape) else shape
            for shape in shapes
        ]
    )


def _is_tensor(shape: object) -> bool:
    return isinstance(shape, list) and bool(shape) and all(type(size) is int for size in shape)
