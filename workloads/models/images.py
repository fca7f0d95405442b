"""Convolutions and what stands between them: batch norms, activations, pools, gates on channels.

Images are ``[batch, channels, height, width]`` whatever their order in memory.  A convolution is a product of
output pixels with filters (an implicit GEMM, :mod:`simcore.cost.convolution`); in backward it is two: the
gradient of its input, and that of its filters.

Note [Order of channels]
    Tensor cores read channels together (NHWC).  Where images lie channel by channel (NCHW), cuDNN trains in
    16 bits with kernels that it copies images for (nchwToNhwc, nhwcToNchw in profiles of such programs): what
    a convolution reads before, what it writes behind, in backward for both gradients.  Inference, where
    whatever is fastest is chosen, and groups of channels run on kernels that read images as they lie, at less
    than the others' speed.

Note [Norms over neighbours]
    ``norm_group`` neighbours have statistics of all their samples: between its passes the fused kernel writes
    its channels' sums to the others' memory, flags beside them, and polls for theirs, each block for channels
    of its own.  Forward does so for the mean, then for the variance; backward for the gradients of shift and
    scale.  Source: NVIDIA/apex apex/contrib/csrc/groupbn/nhwc_batch_norm_kernel.h (parallel_sums_16x2).  Here
    both exchanges stand in front of the kernel.
"""

from __future__ import annotations

from typing import Final, Literal

from simcore.errors import InputError
from workloads.models.autocast import cast_parameters, narrowed
from workloads.models.listed import Passage
from workloads.models.op_tape import TapedLaunch
from workloads.models.tensors import Tensor, collective, compute

Norm = Literal["batch", "group"]
Activation = Literal["", "relu", "silu", "gelu", "hardswish", "relu6"]

#: In place or not, and what autograd launches for it.
_FORWARD: Final = {
    "relu": "aten::relu_", "silu": "aten::silu_", "gelu": "aten::gelu", "hardswish": "aten::hardswish_",
    "relu6": "aten::hardtanh_",
}  # fmt: skip
_BACKWARD: Final = {
    "relu": "aten::threshold_backward", "silu": "aten::silu_backward", "gelu": "aten::gelu_backward",
    "hardswish": "aten::hardswish_backward", "relu6": "aten::hardtanh_backward",
}  # fmt: skip
#: Activations whose gradient needs what they read, so that working in place costs a copy.
_NEEDS_INPUT: Final = ("silu", "hardswish")
#: Channels of a block of the fused batch norm.
_BLOCK_CHANNELS: Final = 64


def convolution(
    at: Passage, x: Tensor, out_channels: int, kernel: int | tuple[int, int], *, module: str, stride: int = 1,
    groups: int = 1, bias: bool = False, valid: bool = False,
) -> Tensor:  # fmt: skip
    """``x`` with filters of ``kernel`` pixels, padded so that only ``stride`` makes it smaller.

    ``valid``: not padded, as patches are cut out.
    """
    x = narrowed(at.tape, at.shard, x, module)
    batch, channels, height, width = x.shape
    high, wide = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    cut = (high, wide) if valid else (1, 1)
    rows, columns = ((size - part) // stride + 1 for size, part in zip((height, width), cut, strict=True))
    y = x.like(batch, out_channels, rows, columns)
    weight = x.like(out_channels, channels // groups, high, wide)
    flops = 2 * y.numel * (channels // groups) * high * wide
    op = at.tape.op()
    op.parameter(f"{module}.weight", *weight.shape)
    shapes = [weight.shape]
    if bias:
        op.parameter(f"{module}.bias", out_channels)
        shapes.append((out_channels,))
    cast_parameters(op, at.shard, shapes, module)
    turned = _is_turned(at, x, groups)
    order = _order(at, x, turned)
    ins = [x, weight, *([y.like(out_channels)] if bias else [])]
    if turned:
        op.run("nchw_to_nhwc", [x], [x], op_class="layout", module=module)
    op.run(f"aten::convolution{order}", ins, [y], op_class="conv", flops=flops, module=module,
           saved_inputs=x.num_bytes, saved_for="weight")  # fmt: skip
    if turned:
        op.run("nhwc_to_nchw", [y], [y], op_class="layout", module=module)
    if turned:
        op.back(compute("nchw_to_nhwc", [y], [y], op_class="layout", module=module))
    name = f"aten::convolution_backward{order}"
    op.back(compute(name, [y, x, weight], [x], op_class="conv", flops=flops, module=module), "input")
    if turned:
        op.back(compute("nhwc_to_nchw", [x], [x], op_class="layout", module=module), "input")
        op.back(compute("nchw_to_nhwc", [x], [x], op_class="layout", module=module), "weight")
    outs = [weight, *([y.like(out_channels)] if bias else [])]
    op.back(compute(name, [y, x, weight], outs, op_class="conv", flops=flops, module=module), "weight")
    for shape in shapes:
        op.accumulate(shape, at.shard.wide_dtype, at.shard.main_grad_dtype, module)
    return y


def _order(at: Passage, x: Tensor, turned: bool) -> str:
    """How a kernel finds its channels, as the end of its name; "" where it makes no difference."""
    if x.dtype == "float32":
        return ""
    return ".nhwc" if at.shard.software.channels_last or turned else ".nchw"


def _is_turned(at: Passage, x: Tensor, groups: int) -> bool:
    """Whether cuDNN copies images to channels that lie together; see Note [Order of channels]."""
    if at.shard.software.channels_last or x.dtype == "float32" or groups > 1:
        return False
    return at.shard.trainable != "none"


def group_norm(
    at: Passage, x: Tensor, act: Activation, module: str, residual: Tensor | None = None
) -> Tensor:
    """Norms over groups of channels of each sample; wide under autocast.

    Channel by channel on GPUs: images that lie pixel by pixel are copied, as are their gradients
    (aten/src/ATen/native/group_norm.cpp; native_group_norm of derivatives.yaml).  A compiler casts within it,
    and applies the activation.
    """
    fused = at.shard.software.compiled and at.shard.trainable == "none"
    op, wide = at.tape.op(), x if fused else x.like(*x.shape, dtype=at.shard.norm_dtype)
    if wide.dtype != x.dtype:
        op.run("aten::_to_copy", [x], [wide], module=module)
        op.back(compute("aten::_to_copy", [wide], [x], module=module), "input")
    if at.shard.software.channels_last and not fused:
        op = at.tape.op()
        op.run("aten::clone", [wide], [wide], op_class="copy", module=module)
        op.back(compute("aten::clone", [wide], [wide], op_class="copy", module=module))
    op, rows = at.tape.op(), Tensor((x.shape[1],), wide.dtype)
    for name in ("weight", "bias"):
        op.parameter(f"{module}.{name}", x.shape[1])
    op.run("aten::native_group_norm", [wide, rows, rows], [wide], op_class="batch_norm_fwd", module=module,
           saved_inputs=wide.num_bytes)  # fmt: skip
    op.back(compute("aten::native_group_norm_backward", [wide, wide, rows], [wide, rows, rows],
                    op_class="batch_norm_bwd", module=module))  # fmt: skip
    if residual is not None:
        wide = residual_add(at, wide, residual, module)
    return wide if fused else activate(at, wide, act, module)


def normed(
    at: Passage, x: Tensor, kind: Norm, act: Activation, module: str, residual: Tensor | None = None
) -> Tensor:
    """A norm of a ``kind``, a residual sum and an activation."""
    norm = batch_norm if kind == "batch" else group_norm
    return norm(at, x, act, module, residual)


def batch_norm(
    at: Passage, x: Tensor, act: Activation, module: str, residual: Tensor | None = None
) -> Tensor:
    """Batch norm, a residual sum and an activation, in one kernel where the build fuses them.

    While training, statistics of the batch are a pass over it of their own.
    """
    software = at.shard.software
    channels = x.shape[1]
    rows = Tensor((channels,), "float32")
    training = at.shard.trainable != "none"
    fused = bool(act or residual) and (
        software.norm_activation_fusion or (software.compiled and not training)
    )
    op = at.tape.op()
    for name in ("weight", "bias"):
        op.parameter(f"{module}.{name}", channels)
    statistics = [rows, rows] if training else []
    beside = [residual] if residual is not None and fused else []
    kept = x.num_bytes + (x.numel // 8 if fused and training else 0)
    if training and at.shard.norm_group > 1:
        if not software.norm_activation_fusion:
            raise InputError(
                f"parallel.norm_group={at.shard.norm_group}: fused batch norms share statistics; nearest:"
                " software.norm_activation_fusion=true"
            )
        how = f"all_reduce:inside,sms={-(-channels // _BLOCK_CHANNELS)}"
        sums = collective(how, rows, "norm", module=module)
        for _ in range(2):
            op.launch(TapedLaunch(sums))
            op.back(sums)
    suffix = ("_add" if beside else "") + ("_act" if act else "") if fused else ""
    name = f"batch_norm{suffix}" if fused else "aten::native_batch_norm"
    kind = "batch_norm_fwd" if training else "elementwise"
    op.run(f"{name}_fwd" if fused else name, [x, *beside, rows, rows, rows, rows], [x, *statistics],
           op_class=kind, module=module, saved_inputs=kept)  # fmt: skip
    back = f"{name}_bwd" if fused else f"{name}_backward"
    outs = [x, *beside, rows, rows]
    mask = [Tensor((x.numel // 8,), "uint8")] if fused else []  # a bit for each element that passed
    op.back(compute(back, [x, x, *mask, rows, rows, rows, rows, rows], outs, op_class="batch_norm_bwd",
                    module=module))  # fmt: skip
    if fused:
        return x
    if residual is not None:
        x = residual_add(at, x, residual, module)
    return activate(at, x, act, module)


def residual_add(at: Passage, x: Tensor, residual: Tensor, module: str) -> Tensor:
    """The sum of a branch and what went past it."""
    wider = x if x.dtype == residual.dtype else x.like(*x.shape, dtype="float32")
    at.tape.op().run("aten::add_.Tensor", [x, residual], [wider], module=module)
    return wider


def join_gradients(at: Passage, x: Tensor, module: str) -> None:
    """Where a block begins, backward adds the gradients of its branches."""
    at.tape.op().back(compute("aten::add.Tensor", [x, x], [x], module=module), "input")


def activate(at: Passage, x: Tensor, act: Activation, module: str) -> Tensor:
    """An activation as a kernel of its own."""
    if not act:
        return x
    op = at.tape.op()
    kept = x.num_bytes if act in (*_NEEDS_INPUT, "gelu") else 0
    if kept and act in _NEEDS_INPUT and at.shard.trainable != "none" and not at.shard.software.compiled:
        op.run("aten::clone", [x], [x], op_class="elementwise", module=module)
    op.run(_FORWARD[act], [x], [x], op_class="elementwise", module=module, saved_inputs=kept)
    op.back(compute(_BACKWARD[act], [x, x], [x], op_class="elementwise", module=module))
    return x


def max_pool(at: Passage, x: Tensor, stride: int, module: str) -> Tensor:
    """The maximum of each window, and where it was; what windows share is read from cache.

    A compiler makes an elementwise kernel of it, which keeps a byte of where it was for backward
    (torch/_inductor/lowering.py: _low_memory_max_pool).
    """
    batch, channels, height, width = x.shape
    y = x.like(batch, channels, -(-height // stride), -(-width // stride))
    places = y.like(*y.shape, dtype="int64")
    op = at.tape.op()
    compiled = at.shard.software.compiled
    if compiled:
        places = y.like(*y.shape, dtype="int8")
    kept = [places] if at.shard.trainable != "none" or not compiled else []
    op.run("max_pool" if compiled else "aten::max_pool2d_with_indices", [x], [y, *kept],
           op_class="elementwise" if compiled else "pool", module=module, saved_inputs=x.num_bytes,
           saved_outputs=places.num_bytes)  # fmt: skip
    op.back(
        compute("aten::max_pool2d_with_indices_backward", [y, x, places], [x], op_class="pool", module=module)
    )
    return y


def average_pool(at: Passage, x: Tensor, stride: int, module: str) -> Tensor:
    """The mean of each window of ``stride`` x ``stride``."""
    batch, channels, height, width = x.shape
    y = x.like(batch, channels, -(-height // stride), -(-width // stride))
    op = at.tape.op()
    kind = "elementwise" if at.shard.software.compiled else "pool"
    op.run("aten::avg_pool2d", [x], [y], op_class=kind, module=module)
    op.back(compute("aten::avg_pool2d_backward", [y, x], [x], op_class="pool", module=module))
    return y


def mean_over_pixels(at: Passage, x: Tensor, module: str) -> Tensor:
    """``[batch, channels, 1, 1]``."""
    y = x.like(*x.shape[:2], 1, 1)
    op = at.tape.op()
    op.run("aten::mean.dim", [x], [y], module=module)
    op.back(compute("aten::div.Scalar", [y], [x], module=module), "input")
    return y


def squeeze_excite(
    at: Passage, x: Tensor, width: int, act: Activation, module: str, gate: str = "aten::sigmoid"
) -> Tensor:
    """Channels gated by a small network over their means (arXiv 1709.01507)."""
    join_gradients(at, x, module)
    means = mean_over_pixels(at, x, module)
    hidden = convolution(at, means, width, 1, bias=True, module=f"{module}.conv_reduce")
    hidden = activate(at, hidden, act, f"{module}.act1")
    gates = convolution(at, hidden, x.shape[1], 1, bias=True, module=f"{module}.conv_expand")
    op = at.tape.op()
    op.run(gate, [gates], [gates], op_class="elementwise", module=module, saved_outputs=gates.num_bytes)
    op.back(compute(f"{gate}_backward", [gates, gates], [gates], op_class="elementwise", module=module))
    op = at.tape.op()
    op.run("aten::mul.Tensor", [x, gates], [x], module=module, saved_inputs=x.num_bytes)
    for ins, out, name in (
        ([x, x], x, "mul.Tensor"),
        ([x, gates], x, "mul.Tensor"),
        ([x], gates, "sum.dim_IntList"),
    ):
        op.back(compute(f"aten::{name}", ins, [out], module=module))
    return x


def conv_norm_act(
    at: Passage, x: Tensor, out_channels: int, kernel: int, *, module: str, act: Activation = "relu",
    stride: int = 1, groups: int = 1, residual: Tensor | None = None, norm: Norm = "batch",
) -> Tensor:  # fmt: skip
    """A convolution without bias, its norm, a residual sum and an activation."""
    y = convolution(at, x, out_channels, kernel, stride=stride, groups=groups, module=module)
    return normed(at, y, norm, act, f"{module}.bn", residual)
