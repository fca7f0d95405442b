"""ConvNeXt's blocks (arXiv 2201.03545): a wide convolution of each channel, a layer norm, two products."""

from __future__ import annotations

from workloads.models.elementary import scaled
from workloads.models.frozen import Size
from workloads.models.images import activate, convolution, join_gradients
from workloads.models.kinds.images import norm_channels
from workloads.models.linear import Linear, linear
from workloads.models.listed import BlockKind, BlockSpec, Passage, register
from workloads.models.tensors import Tensor, compute


class ConvNextSpec(BlockSpec):
    """``kernel``: pixels of the convolution; ``expansion``: of the products' middle over the channels."""

    kernel: Size = 7
    expansion: Size = 4


def _block(at: Passage, spec: ConvNextSpec) -> None:
    entered, tape, shard, module = at.x, at.tape, at.shard, at.module
    channels = entered.shape[1]
    join_gradients(at, entered, module)
    x = convolution(
        at, entered, channels, spec.kernel, groups=channels, bias=True, module=f"{module}.conv_dw"
    )
    x = norm_channels(at, x, f"{module}")
    rows = x.like(x.numel // channels, channels)
    hidden = linear(
        tape, shard, rows, spec.expansion * channels, Linear(f"{module}.mlp.fc1", bias=True, fp8=False)
    )
    hidden = activate(at, hidden, "gelu", f"{module}.mlp")
    y = linear(tape, shard, hidden, channels, Linear(f"{module}.mlp.fc2", bias=True, fp8=False))
    # Pixel by pixel for the products, channel by channel for what follows.
    tape.op().back(compute("aten::clone", [y], [y], module=module), "input")
    at.x = scaled_sum(at, y.like(*entered.shape), entered)


def scaled_sum(at: Passage, branch: Tensor, entered: Tensor) -> Tensor:
    """``entered`` and the branch times a parameter of each channel, which is wide under autocast."""
    tape, module, wide = at.tape, at.module, at.shard.wide_dtype
    scale, x = Tensor((1, entered.shape[1], 1, 1), wide), entered.like(*entered.shape, dtype=wide)
    op = tape.op()
    op.parameter(f"{module}.gamma", entered.shape[1])
    scaled(op, branch, scale, x, module)
    tape.op().run("aten::add.Tensor", [x, x], [x], module=module)
    return x


class DownsampleSpec(BlockSpec):
    """A layer norm and a convolution that cuts the image into pieces of ``stride`` x ``stride`` pixels."""

    width: Size
    stride: Size = 2


def _downsample(at: Passage, spec: DownsampleSpec) -> None:
    x = norm_channels(at, at.x, at.module)
    at.x = convolution(
        at,
        x,
        spec.width,
        spec.stride,
        stride=spec.stride,
        bias=True,
        valid=True,
        module=f"{at.module}.conv",
    )


register(BlockKind("convnext", ConvNextSpec, _block))
register(BlockKind("downsample", DownsampleSpec, _downsample))
