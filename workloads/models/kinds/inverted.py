"""Inverted residuals: wide between narrow ends, with a convolution of each channel (MobileNet,
EfficientNet).
"""

from __future__ import annotations

from typing import Literal

from workloads.models.frozen import Size, Width, WidthOrNone
from workloads.models.images import (
    Activation,
    batch_norm,
    conv_norm_act,
    convolution,
    join_gradients,
    residual_add,
    squeeze_excite,
)
from workloads.models.listed import BlockKind, BlockSpec, Passage, register


class InvertedSpec(BlockSpec):
    """``repeat`` blocks to ``out`` channels; the first has ``stride``.

    ``width``: of the middle, in channels (0: not widened), of later ones ``later_width``.  ``squeeze``,
    ``later_squeeze``: width of the gate's network (0: none).  ``gate``: the gate's function.
    """

    out: Width
    width: WidthOrNone = 0
    later_width: WidthOrNone = 0
    kernel: Size = 3
    stride: Size = 1
    squeeze: WidthOrNone = 0
    later_squeeze: WidthOrNone = 0
    act: Activation = "silu"
    gate: Literal["aten::sigmoid", "aten::hardsigmoid"] = "aten::sigmoid"
    gate_act: Activation = ""


def _sizes(at: Passage, spec: InvertedSpec) -> tuple[int, int, int]:
    """Stride, width and width of the gate of this repetition."""
    if at.index == 0:
        return spec.stride, spec.width, spec.squeeze
    return 1, spec.later_width or spec.width, spec.later_squeeze or spec.squeeze


def _inverted(at: Passage, spec: InvertedSpec) -> None:
    entered = at.x
    stride, width, squeeze = _sizes(at, spec)
    skips = stride == 1 and entered.shape[1] == spec.out
    if skips:
        join_gradients(at, entered, at.module)
    x = entered
    if width:
        x = conv_norm_act(at, x, width, 1, act=spec.act, module=f"{at.module}.conv_pw")
    x = conv_norm_act(at, x, x.shape[1], spec.kernel, stride=stride, groups=x.shape[1], act=spec.act,
                      module=f"{at.module}.conv_dw")  # fmt: skip
    if squeeze:
        x = squeeze_excite(at, x, squeeze, spec.gate_act or spec.act, f"{at.module}.se", spec.gate)
    x = convolution(at, x, spec.out, 1, module=f"{at.module}.conv_pwl")
    x = batch_norm(at, x, "", f"{at.module}.bn3")
    at.x = residual_add(at, x, entered, at.module) if skips else x


def _fused(at: Passage, spec: InvertedSpec) -> None:
    """A dense convolution in place of the first two (EfficientNetV2, arXiv 2104.00298)."""
    entered = at.x
    stride, width, _ = _sizes(at, spec)
    skips = stride == 1 and entered.shape[1] == spec.out
    if skips:
        join_gradients(at, entered, at.module)
    x = conv_norm_act(at, entered, width or spec.out, spec.kernel, stride=stride, act=spec.act,
                      module=f"{at.module}.conv_exp")  # fmt: skip
    if width:
        x = convolution(at, x, spec.out, 1, module=f"{at.module}.conv_pwl")
        x = batch_norm(at, x, "", f"{at.module}.bn2")
    at.x = residual_add(at, x, entered, at.module) if skips else x


register(BlockKind("inverted", InvertedSpec, _inverted))
register(BlockKind("fused_inverted", InvertedSpec, _fused))
