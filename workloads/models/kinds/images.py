"""Images come in, classes go out; convolutions and pools between."""

from __future__ import annotations

from typing import Literal

from workloads.models.elementary import norm_of_kind
from workloads.models.frozen import Pixels, Size, Width, WidthOrNone
from workloads.models.images import (
    Activation,
    activate,
    average_pool,
    conv_norm_act,
    convolution,
    max_pool,
)
from workloads.models.linear import Linear, linear
from workloads.models.listed import BlockKind, BlockSpec, Passage, register
from workloads.models.loss import small_loss
from workloads.models.tensors import Tensor, compute


class ImageSpec(BlockSpec):
    """What a sample is: an image of ``size`` x ``size`` pixels."""

    size: Pixels = 224
    channels: Size = 3


def _image(at: Passage, spec: ImageSpec) -> None:
    at.x = Tensor((at.batch, spec.channels, spec.size, spec.size), at.shard.wide_dtype)


class ConvSpec(BlockSpec):
    """A convolution to ``width`` channels, with a norm ("batch", "group", "layer", "") and an activation."""

    width: Width
    kernel: Size = 3
    stride: Size = 1
    groups: Width = 1
    norm: Literal["batch", "group", "layer", ""] = "batch"
    act: Activation = "relu"
    valid: bool = False


def _conv(at: Passage, spec: ConvSpec) -> None:
    if spec.norm in ("batch", "group"):
        at.x = conv_norm_act(
            at, at.x, spec.width, spec.kernel, stride=spec.stride, groups=spec.groups, act=spec.act,
            norm="group" if spec.norm == "group" else "batch", module=at.module,
        )  # fmt: skip
        return
    y = convolution(
        at, at.x, spec.width, spec.kernel, stride=spec.stride, groups=spec.groups, bias=True,
        module=at.module, valid=spec.valid,
    )  # fmt: skip
    at.x = activate(at, norm_channels(at, y, at.module) if spec.norm else y, spec.act, at.module)


def norm_channels(at: Passage, x: Tensor, module: str) -> Tensor:
    """A layer norm over the channels of each pixel; wide under autocast, unless it is one of timm's own."""
    wide = at.shard.norm_dtype
    if x.dtype != wide:
        narrow, x = x, x.like(*x.shape, dtype=wide)
        op = at.tape.op()
        op.run("aten::_to_copy", [narrow], [x], module=module)
        op.back(compute("aten::_to_copy", [x], [narrow], module=module), "input")
    batch, channels, height, columns = x.shape
    pixels = x.like(batch * height * columns, channels)
    norm_of_kind(at.tape, at.shard, pixels, f"{module}.norm")
    return x


class PoolSpec(BlockSpec):
    """The maximum, or mean, of windows ``stride`` pixels apart."""

    stride: Size = 2
    mean: bool = False


def _pool(at: Passage, spec: PoolSpec) -> None:
    if spec.mean:
        at.x = average_pool(at, at.x, spec.stride, at.module)
    else:
        at.x = max_pool(at, at.x, spec.stride, at.module)


class ClassifySpec(BlockSpec):
    """Means over pixels or tokens ("mean"), or the class token ("token"), to ``classes`` and a loss.

    ``before``: widths of layers between, each with a ReLU (VGG's, over all pixels); ``norm``: a layer norm
    before the last layer ("pool": behind the mean, "tokens": over all tokens), ``conv``: a convolution to so
    many channels in front; ``attend``: tokens are pooled by attention of one query (SigLIP).
    """

    classes: WidthOrNone = 1000
    pool: Literal["mean", "token", "pixels"] = "mean"
    norm: Literal["", "pool", "tokens"] = ""
    before: tuple[Width, ...] = ()
    conv: WidthOrNone = 0
    act: Activation = "relu"
    heads: Size = 1
    attend: bool = False


def _classify(at: Passage, spec: ClassifySpec) -> None:
    x, tape, shard = at.x, at.tape, at.shard
    if spec.conv:
        x = conv_norm_act(at, x, spec.conv, 1, act=spec.act, module=f"{at.module}.conv_head")
    if spec.norm == "tokens":
        norm_of_kind(tape, shard, x, f"{at.module}.norm")
    if spec.attend:
        x = _attention_pool(at, x)
    elif spec.pool != "pixels":
        x = _pooled(at, x, spec.pool)
    else:
        x = x.like(at.batch, x.numel // at.batch)
    if spec.norm == "pool":
        norm_of_kind(tape, shard, x, f"{at.module}.norm")
    for number, width in enumerate(spec.before):
        x = linear(tape, shard, x, width, Linear(f"{at.module}.before.{number}", bias=True, fp8=False))
        x = activate(at, x, "relu", at.module)
    if not spec.classes:
        return
    for number in range(spec.heads):
        suffix = f".{number}" if spec.heads > 1 else ""
        scores = linear(tape, shard, x, spec.classes, Linear(f"{at.module}.fc{suffix}", bias=True, fp8=False))
    if shard.trainable != "none":
        small_loss(tape, scores)


def _pooled(at: Passage, x: Tensor, how: str) -> Tensor:
    y = x.like(at.batch, x.shape[1] if len(x.shape) == 4 else x.shape[-1])
    op = at.tape.op()
    if how == "mean":
        op.run("aten::mean.dim", [x], [y], module=at.module)
        op.back(compute("aten::div.Scalar", [y], [x], module=at.module), "input")
    else:  # the others' gradients are zero
        op.back(compute("aten::select_backward", [y], [x], op_class="fill", module=at.module), "input")
    return y


def _attention_pool(at: Passage, x: Tensor) -> Tensor:
    """One learned query attends to all tokens: keys and values of all, a feed-forward block of one."""
    width, tape, shard = x.shape[-1], at.tape, at.shard
    flat = x.like(x.numel // width, width)
    kv = linear(tape, shard, flat, 2 * width, Linear(f"{at.module}.attn_pool.kv", bias=True, fp8=False))
    y = kv.like(at.batch, width)
    op = tape.op()
    op.run("attention_pool_fwd", [kv], [y], op_class="reduction", module=at.module, saved_inputs=kv.num_bytes)
    op.back(compute("attention_pool_bwd", [kv, y], [kv], op_class="elementwise", module=at.module))
    for name, size in (("proj", width), ("fc1", 4 * width), ("fc2", width)):
        y = linear(tape, shard, y, size, Linear(f"{at.module}.attn_pool.{name}", bias=True, fp8=False))
    return y


register(BlockKind("image", ImageSpec, _image, inputs=True, samples=64))
register(BlockKind("conv", ConvSpec, _conv))
register(BlockKind("pool", PoolSpec, _pool))
register(BlockKind("classify", ClassifySpec, _classify))
