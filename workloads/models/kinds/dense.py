"""DenseNet's blocks (arXiv 1608.06993): each layer reads all before it, side by side."""

from __future__ import annotations

from workloads.models.frozen import Size, Width
from workloads.models.images import average_pool, batch_norm, conv_norm_act, convolution
from workloads.models.listed import BlockKind, BlockSpec, Passage, register
from workloads.models.tensors import Tensor, compute


class DenseSpec(BlockSpec):
    """``repeat`` layers that add ``growth`` channels each, through ``bottleneck`` times as many."""

    growth: Size = 32
    bottleneck: Size = 4


def _layer(at: Passage, spec: DenseSpec) -> None:
    before, module = at.x, at.module
    x = batch_norm(at, before, "relu", f"{module}.norm1")
    x = conv_norm_act(at, x, spec.bottleneck * spec.growth, 1, module=f"{module}.conv1")
    x = convolution(at, x, spec.growth, 3, module=f"{module}.conv2")
    at.x = _joined(at, before, x)


def _joined(at: Passage, before: Tensor, new: Tensor) -> Tensor:
    """What there was and what is new, copied side by side."""
    batch, channels, height, width = before.shape
    both = before.like(batch, channels + new.shape[1], height, width)
    op = at.tape.op()
    op.run("aten::cat", [before, new], [both], module=at.module)
    op.back(compute("aten::add.Tensor", [before, before], [before], module=at.module), "input")
    return both


class TransitionSpec(BlockSpec):
    """A norm, a convolution to ``width`` channels, and the mean of 2 x 2 pixels."""

    width: Width


def _transition(at: Passage, spec: TransitionSpec) -> None:
    x = batch_norm(at, at.x, "relu", f"{at.module}.norm")
    x = convolution(at, x, spec.width, 1, module=f"{at.module}.conv")
    at.x = average_pool(at, x, 2, f"{at.module}.pool")


class NormSpec(BlockSpec):
    """A batch norm and a ReLU."""


def _norm(at: Passage, spec: NormSpec) -> None:
    del spec
    at.x = batch_norm(at, at.x, "relu", f"{at.module}.norm")


register(BlockKind("dense_layer", DenseSpec, _layer))
register(BlockKind("transition", TransitionSpec, _transition))
register(BlockKind("norm", NormSpec, _norm))
