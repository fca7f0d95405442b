"""Norms, residual sums, activations and positions: the kernels between the products."""

from __future__ import annotations

from workloads.models.linear import accumulate
from workloads.models.local import Shard
from workloads.models.pieces import Kernel
from workloads.models.spec import ModelSpec
from workloads.models.tape import Launch, Tape
from workloads.models.tensors import Tensor, compute


def norm(
    tape: Tape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, residual: bool = True
) -> Tensor:
    """LayerNorm or RMSNorm over the last dimension.

    ``residual``: x is the residual stream too, so that backward adds two gradients.
    """
    width = x.shape[-1]
    layer_norm = model.norm == "layernorm"
    weights = [x.like(width)] * (2 if layer_norm else 1)
    rows = x.numel // width
    statistics = [x.like(rows, dtype="float32")] * (2 if layer_norm else 1)
    for k, _ in enumerate(weights):
        tape.parameter(f"{module}.{('weight', 'bias')[k]}", width, tp_duplicated=shard.sequence_parallel)
    saved = x.num_bytes + sum(t.num_bytes for t in statistics)
    group = tape.group()
    if shard.software.norm_fusion or layer_norm:
        name = "aten::native_layer_norm" if layer_norm else "rms_norm_fwd"
        tape.run(name, [x, *weights], [x, *statistics], module=module, saved=saved)
        back = f"{name}_backward" if layer_norm else "rms_norm_bwd"
        kernel = compute(back, [x, x, *statistics, *weights], [x, *weights], module=module)
        group.launches.append(Launch(kernel))
    else:
        _eager_rms_norm(tape, x, module, saved)
        for kernel in _eager_rms_norm_backward(x, module):
            group.launches.append(Launch(kernel))
    if residual:
        group.launches.append(Launch(compute("aten::add.Tensor", [x, x], [x], module=module)))
    for _ in weights:
        accumulate(group, shard, (width,), module)
    return x


def _eager_rms_norm(tape: Tape, x: Tensor, module: str, saved: int) -> None:
    """fp32 inside, as Llama code writes it: cast, square, mean, rsqrt, scale, cast back, weight."""
    wide, rows = x.like(*x.shape, dtype="float32"), x.like(x.numel // x.shape[-1], dtype="float32")
    tape.run("aten::_to_copy", [x], [wide], module=module, saved=saved)
    tape.run("aten::pow.Tensor_Scalar", [wide], [wide], module=module)
    tape.run("aten::mean.dim", [wide], [rows], module=module)
    tape.run("aten::rsqrt", [rows], [rows], module=module)
    tape.run("aten::mul.Tensor", [wide, rows], [wide], module=module)
    tape.run("aten::_to_copy", [wide], [x], module=module)
    tape.run("aten::mul.Tensor", [x, x.like(x.shape[-1])], [x], module=module)


def _eager_rms_norm_backward(x: Tensor, module: str) -> list[Kernel]:
    wide, weight = x.like(*x.shape, dtype="float32"), x.like(x.shape[-1])
    rows = x.like(x.numel // x.shape[-1], dtype="float32")
    return [
        compute("aten::mul.Tensor", [x, x], [x], module=module),
        compute("aten::sum.dim_IntList", [x], [weight], module=module),
        compute("aten::mul.Tensor", [x, weight], [x], module=module),
        compute("aten::_to_copy", [x], [wide], module=module),
        compute("aten::mul.Tensor", [wide, rows], [wide], module=module),
        compute("aten::mul.Tensor", [wide, wide], [wide], module=module),
        compute("aten::sum.dim_IntList", [wide], [rows], module=module),
        compute("aten::mul.Tensor", [wide, rows], [wide], module=module),
        compute("aten::add.Tensor", [wide, wide], [wide], module=module),
        compute("aten::_to_copy", [wide], [x], module=module),
    ]


def residual_sum(tape: Tape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, bias: bool) -> Tensor:
    """``residual + dropout(x + bias)``, in one kernel where the build fuses it."""
    group = tape.group()
    biases = [x.like(x.shape[-1])] if bias else []
    mask = x.like(*x.shape, dtype="bool")
    if model.dropout == 0:
        name = "bias_add_residual" if bias and shard.software.bias_dropout_fusion else "aten::add.Tensor"
        if bias and not shard.software.bias_dropout_fusion:
            tape.run("aten::add.Tensor", [x, *biases], [x], module=module)
            biases = []
        tape.run(name, [x, *biases, x], [x], module=module)
        if bias:
            group.launches.append(Launch(compute("aten::sum.dim_IntList", [x], [x.like(x.shape[-1])],
                                                 module=module)))  # fmt: skip
        return x
    if shard.software.bias_dropout_fusion:
        tape.run("bias_dropout_add_fwd", [x, *biases, x], [x, mask], module=module, saved=mask.num_bytes)
        kernel = compute("bias_dropout_add_bwd", [x, mask], [x, *biases], module=module)
        group.launches.append(Launch(kernel))
        return x
    if bias:
        tape.run("aten::add.Tensor", [x, *biases], [x], module=module)
    tape.run("aten::native_dropout", [x], [x, mask], module=module, saved=mask.num_bytes)
    tape.run("aten::add.Tensor", [x, x], [x], module=module)
    group.launches.append(Launch(compute("aten::native_dropout_backward", [x, mask], [x], module=module)))
    if bias:
        group.launches.append(Launch(compute("aten::sum.dim_IntList", [x], [x.like(x.shape[-1])],
                                             module=module)))  # fmt: skip
    return x


def activation(
    tape: Tape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, bias: bool, width: int = 0
) -> Tensor:
    """GELU and kin, or the gated product of two halves; ``x`` is ``[tokens, 2 * width]`` where gated."""
    width = width or (x.shape[-1] // 2 if model.gated else x.shape[-1])
    out = x.like(x.shape[0], width)
    group = tape.group()
    biases = [x.like(x.shape[-1])] if bias else []
    software = shard.software
    if model.gated:
        if software.swiglu_fusion:
            tape.run("swiglu_fwd", [x, *biases], [out], module=module, saved=x.num_bytes)
            kernel = compute("swiglu_bwd", [out, x, *biases], [x], module=module)
            group.launches.append(Launch(kernel))
        else:
            tape.run("aten::silu", [out], [out], module=module, saved=x.num_bytes)
            tape.run("aten::mul.Tensor", [out, out], [out], module=module, saved=out.num_bytes)
            for name, count in (("aten::mul.Tensor", 2), ("aten::mul.Tensor", 2), ("aten::silu_backward", 2)):
                group.launches.append(Launch(compute(name, [out] * count, [out], module=module)))
    elif bias and software.bias_activation_fusion:
        tape.run("bias_gelu_fwd", [*biases, x], [out], module=module, saved=x.num_bytes)
        group.launches.append(Launch(compute("bias_gelu_bwd", [*biases, x, out], [x], module=module)))
        group.launches.append(Launch(compute("aten::sum.dim_IntList", [x], [x.like(x.shape[-1])],
                                             module=module)))  # fmt: skip
    else:
        if bias:
            tape.run("aten::add.Tensor", [x, *biases], [x], module=module)
        known = {"gelu": "aten::gelu", "silu": "aten::silu", "relu": "aten::relu"}
        name = known.get(model.activation, "squared_relu")
        tape.run(name, [x], [out], op_class="elementwise", module=module, saved=x.num_bytes)
        back = f"{name}_backward"
        group.launches.append(Launch(compute(back, [out, x], [x], op_class="elementwise", module=module)))
        if bias:
            group.launches.append(Launch(compute("aten::sum.dim_IntList", [x], [x.like(x.shape[-1])],
                                                 module=module)))  # fmt: skip
    return out


def rotary(tape: Tape, shard: Shard, tensors: list[Tensor], module: str) -> None:
    """Rotary positions on queries and keys: one kernel each, or what eager code launches for it."""
    group = tape.group()
    for x in tensors:
        if shard.software.rope_fusion:
            tape.run("rotary_fwd", [x], [x], module=module)
            group.launches.append(Launch(compute("rotary_bwd", [x], [x], module=module)))
            continue
        half = x.like(*x.shape[:-1], x.shape[-1] // 2)
        steps = [
            ("aten::neg", [half], [half]), ("aten::cat", [half, half], [x]),
            ("aten::mul.Tensor", [x, x], [x]), ("aten::mul.Tensor", [x, x], [x]),
            ("aten::add.Tensor", [x, x], [x]),
        ]  # fmt: skip
        for name, ins, outs in steps:
            tape.run(name, ins, outs, module=module)
            group.launches.append(Launch(compute(name, outs, ins, module=module)))
