"""Residual blocks of convolutions: ResNet's, ResNeXt's, RegNet's, with or without gates on channels."""

from __future__ import annotations

from workloads.models.frozen import Size, SizeOrNone, Width, WidthOrNone
from workloads.models.images import (
    Activation,
    Norm,
    activate,
    average_pool,
    conv_norm_act,
    convolution,
    join_gradients,
    normed,
    residual_add,
    squeeze_excite,
)
from workloads.models.listed import BlockKind, BlockSpec, Passage, register
from workloads.models.tensors import Tensor


class ResidualSpec(BlockSpec):
    """``repeat`` blocks to ``out`` channels; the first has ``stride``.

    ``width`` of the convolutions inside: two of 3 x 3 pixels ("basic" kind), or one of them between two of
    one pixel ("bottleneck").  ``group_width``: channels of a group of the 3 x 3 convolution (0: one group).
    ``squeeze``: width of the gate's network over ``width`` (0: none), over the block's input where
    ``squeeze_input`` (RegNet).  ``pooled_shortcut``: the shortcut is averaged before its convolution
    (ResNet-D).
    ``gate_last``: gates stand behind the last convolution (SENet), not the second.
    """

    out: Width
    width: Width
    stride: Size = 1
    group_width: WidthOrNone = 0
    squeeze: SizeOrNone = 0
    squeeze_input: bool = False
    gate_last: bool = False
    pooled_shortcut: bool = False
    norm: Norm = "batch"
    act: Activation = "relu"


def _shortcut(at: Passage, spec: ResidualSpec, x: Tensor) -> Tensor:
    """What goes past the block: as it is, or through a convolution where sizes change."""
    stride = spec.stride if at.index == 0 else 1
    if stride == 1 and x.shape[1] == spec.out:
        return x
    module = f"{at.module}.downsample"
    if spec.pooled_shortcut and stride > 1:
        x, stride = average_pool(at, x, stride, module), 1
    y = convolution(at, x, spec.out, 1, stride=stride, module=module)
    return normed(at, y, spec.norm, "", f"{module}.bn")


def _gate(at: Passage, spec: ResidualSpec, x: Tensor, entered: Tensor) -> Tensor:
    if not spec.squeeze:
        return x
    over = entered.shape[1] if spec.squeeze_input else x.shape[1]
    return squeeze_excite(at, x, max(1, over // spec.squeeze), "relu", f"{at.module}.se")


def _ended(at: Passage, spec: ResidualSpec, x: Tensor, entered: Tensor) -> None:
    """The last norm, the sum with the shortcut, and the activation."""
    gated = spec.squeeze and spec.gate_last
    past = _shortcut(at, spec, entered)
    if gated:
        x = _gate(at, spec, normed(at, x, spec.norm, "", f"{at.module}.last.bn"), entered)
        at.x = activate(at, residual_add(at, x, past, at.module), spec.act, at.module)
        return
    at.x = normed(at, x, spec.norm, spec.act, f"{at.module}.last.bn", past)


def _basic(at: Passage, spec: ResidualSpec) -> None:
    entered, stride = at.x, spec.stride if at.index == 0 else 1
    join_gradients(at, entered, at.module)
    x = conv_norm_act(at, entered, spec.width, 3, stride=stride, act=spec.act, module=f"{at.module}.conv1")
    x = convolution(at, x, spec.out, 3, module=f"{at.module}.conv2")
    _ended(at, spec, x, entered)


def _bottleneck(at: Passage, spec: ResidualSpec) -> None:
    entered, stride = at.x, spec.stride if at.index == 0 else 1
    groups = spec.width // spec.group_width if spec.group_width else 1
    join_gradients(at, entered, at.module)
    x = conv_norm_act(at, entered, spec.width, 1, act=spec.act, norm=spec.norm, module=f"{at.module}.conv1")
    x = conv_norm_act(at, x, spec.width, 3, stride=stride, groups=groups, act=spec.act, norm=spec.norm,
                      module=f"{at.module}.conv2")  # fmt: skip
    if not spec.gate_last:
        x = _gate(at, spec, x, entered)
    x = convolution(at, x, spec.out, 1, module=f"{at.module}.conv3")
    _ended(at, spec, x, entered)


register(BlockKind("basic", ResidualSpec, _basic))
register(BlockKind("bottleneck", ResidualSpec, _bottleneck))
