"""Norms, residual sums, activations and positions: the kernels between the products."""

from __future__ import annotations

from workloads.models.fp8 import keep_narrow
from workloads.models.local import Shard
from workloads.models.op_tape import Op, OpTape
from workloads.models.spec import ModelSpec
from workloads.models.tensors import Tensor, compute

_ACTIVATIONS = {"gelu": "aten::gelu", "silu": "aten::silu", "relu": "aten::relu"}

#: What plain PyTorch launches for x sigmoid(1.702 x), the GELU of CLIP.
_QUICK_GELU = ("aten::mul.Tensor", "aten::sigmoid", "aten::mul.Tensor")


def norm(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, residual: bool = True
) -> Tensor:
    """LayerNorm or RMSNorm over the last dimension.

    ``residual``: x is the residual stream too, so that backward adds two gradients.
    """
    return norm_of_kind(tape, shard, x, module, model.norm, residual=residual)


def norm_of_kind(
    tape: OpTape, shard: Shard, x: Tensor, module: str, kind: str = "layernorm", *, residual: bool = False
) -> Tensor:
    """A "layernorm" or "rmsnorm"; compiled under autocast it writes what products read."""
    layer_norm, width = kind == "layernorm", x.shape[-1]
    fuses = shard.casts and shard.software.compiled
    if shard.scattered and not fuses:  # an ordered copy, in backward once more
        op = tape.op()
        op.run("aten::clone", [x], [x], op_class="copy", module=module)
        op.back(compute("aten::clone", [x], [x], op_class="copy", module=module))
    op = tape.op()
    # With the residual sum before it a compiled norm is one kernel: it writes the sum and what products read.
    branch = [x.like(*x.shape, dtype=shard.dtype)] if fuses else []
    written = [x, *branch]
    weights = [x.like(width)] * (2 if layer_norm else 1)
    statistics = [x.like(x.numel // width, dtype="float32")] * (2 if layer_norm else 1)
    kept = sum(t.num_bytes for t in statistics)
    if shard.software.norm_fusion or layer_norm:
        name = "aten::native_layer_norm" if layer_norm else "rms_norm_fwd"
        op.run(name, [x, *branch, *weights], [*written, *statistics], module=module, saved_inputs=x.num_bytes,
               saved_outputs=kept)  # fmt: skip
        back = f"{name}_backward" if layer_norm else "rms_norm_bwd"
        outs = [x, *weights] if shard.trains(f"{module}.weight") else [x]
        op.back(compute(back, [x, x, *statistics, *weights], outs, module=module))
    else:
        _eager_rms_norm(op, x, module)
    if residual:
        op.back(compute("aten::add.Tensor", [x, x], [x], module=module), "input")
    for name in ("weight", "bias")[: len(weights)]:
        op.parameter(f"{module}.{name}", width, tp_duplicated=shard.sequence_parallel)
        op.accumulate((width,), x.dtype, shard.main_grad_dtype, module)
    return x


def _eager_rms_norm(op: Op, x: Tensor, module: str) -> None:
    """fp32 inside, as Llama code writes it: cast, square, mean, rsqrt, scale, cast back, weight."""
    wide, weight = x.like(*x.shape, dtype="float32"), x.like(x.shape[-1])
    rows = x.like(x.numel // x.shape[-1], dtype="float32")
    op.run("aten::_to_copy", [x], [wide], module=module, saved_outputs=wide.num_bytes)
    op.run("aten::pow.Tensor_Scalar", [wide], [wide], module=module)
    op.run("aten::mean.dim", [wide], [rows], module=module)
    op.run("aten::rsqrt", [rows], [rows], module=module, saved_outputs=rows.num_bytes)
    op.run("aten::mul.Tensor", [wide, rows], [wide], module=module)
    op.run("aten::_to_copy", [wide], [x], module=module)
    op.run("aten::mul.Tensor", [x, weight], [x], module=module, saved_inputs=x.num_bytes, saved_for="weight")
    op.back(compute("aten::mul.Tensor", [x, x], [x], module=module), "weight")
    op.back(compute("aten::sum.dim_IntList", [x], [weight], module=module), "weight")
    for name, ins, out in (
        ("aten::mul.Tensor", [x, weight], x),
        ("aten::_to_copy", [x], wide),
        ("aten::mul.Tensor", [wide, rows], wide),
        ("aten::mul.Tensor", [wide, wide], wide),
        ("aten::sum.dim_IntList", [wide], rows),
        ("aten::mul.Tensor", [wide, rows], wide),
        ("aten::add.Tensor", [wide, wide], wide),
        ("aten::_to_copy", [wide], x),
    ):
        op.back(compute(name, ins, [out], module=module), "input")


def residual_sum(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, bias: bool
) -> Tensor:
    """``residual + dropout(x + bias)``, in one kernel where the build fuses it; else no bias is left here."""
    if shard.casts:
        return _wide_sum(tape, shard, model, x, module)
    op = tape.op()
    fused = shard.software.bias_dropout_fusion
    biases = [x.like(x.shape[-1])] if bias and fused else []
    mask = x.like(*x.shape, dtype="bool")
    if model.dropout == 0:
        name = "bias_add_residual" if biases else "aten::add.Tensor"
        op.run(name, [x, *biases, x], [x], op_class="elementwise", module=module)
    elif fused:
        op.run("bias_dropout_add_fwd", [x, *biases, x], [x, mask], module=module,
               saved_outputs=mask.num_bytes)  # fmt: skip
        op.back(compute("bias_dropout_add_bwd", [x, mask], [x, *biases], module=module))
    else:
        op.run("aten::native_dropout", [x], [x, mask], module=module, saved_outputs=mask.num_bytes)
        op.run("aten::add.Tensor", [x, x], [x], module=module)
        op.back(compute("aten::native_dropout_backward", [x, mask], [x], module=module))
    return x


def scaled(op: Op, branch: Tensor, scale: Tensor, wide: Tensor, module: str) -> None:
    """A branch times a parameter of each channel, which makes it ``wide`` under autocast."""
    op.run("aten::mul.Tensor", [branch, scale], [wide], module=module, saved_inputs=branch.num_bytes,
           saved_for="weight")  # fmt: skip
    op.back(compute("aten::mul.Tensor", [wide, branch], [wide], module=module), "weight")
    op.back(compute("aten::sum.dim_IntList", [wide], [scale], module=module), "weight")
    op.back(compute("aten::mul.Tensor", [wide, scale], [wide], module=module), "input")
    if branch.dtype != wide.dtype:
        op.back(compute("aten::_to_copy", [wide], [branch], module=module), "input")


def _wide_sum(tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str) -> Tensor:
    """Under autocast a branch of 16 bits is added to a sum of 32; a scale of its channels makes it wide."""
    branch = x.like(*x.shape, dtype=shard.dtype)
    if shard.software.compiled:  # the next norm's kernel adds and scales, too
        op = tape.op()
        if model.layer_scale:
            op.parameter(f"{module}.layer_scale", x.shape[-1])
        op.back(compute("triton_cast", [x], [branch], op_class="elementwise", module=module), "input")
        return x
    if model.layer_scale:
        op, scale = tape.op(), x.like(x.shape[-1])
        op.parameter(f"{module}.layer_scale", x.shape[-1])
        scaled(op, branch, scale, x, module)
        branch = x
    op = tape.op()
    # In another order than the branch's, the sum computes the address of every element.
    there = x.like(*reversed(x.shape)) if shard.scattered else x
    op.run("aten::add.Tensor", [there, branch], [x], module=module)
    if branch.dtype != x.dtype:
        op.back(compute("aten::_to_copy", [there], [branch], module=module), "input")
    return x


def dropout(tape: OpTape, model: ModelSpec, x: Tensor, module: str) -> None:
    """Dropout as a kernel of its own, where the model has any."""
    if model.dropout:
        op, mask = tape.op(), x.like(*x.shape, dtype="bool")
        op.run("aten::native_dropout", [x], [x, mask], module=module, saved_outputs=mask.num_bytes)
        op.back(compute("aten::native_dropout_backward", [x, mask], [x], module=module))


def activation(tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, bias: bool) -> Tensor:
    """GELU and kin, or the gated product of two halves; ``x`` is ``[tokens, 2 * width]`` where gated.

    ``bias``: the fused kernel adds one.
    """
    software = shard.software
    if model.gated and software.swiglu_fusion:
        keep_narrow(tape, shard, x, 8, module)
    op = tape.op()
    out = x.like(x.shape[0], x.shape[-1] // 2) if model.gated else x
    biases = [x.like(x.shape[-1])] if bias else []
    if model.gated and software.swiglu_fusion:
        narrow = shard.narrow and software.fp8_kept_activations
        kept = x.num_bytes // 2 if narrow else x.num_bytes
        op.run("swiglu_fwd", [x, *biases], [out], module=module, saved_inputs=kept)
        op.back(compute("swiglu_bwd", [out, x, *biases], [x], module=module))
    elif model.gated:
        _eager_gate(op, model, x, out, module)
    elif bias:
        op.run("bias_gelu_fwd", [*biases, x], [out], module=module, saved_inputs=x.num_bytes)
        op.back(compute("bias_gelu_bwd", [*biases, x, out], [x], module=module))
    elif model.activation == "quick_gelu" and not software.compiled:
        for name, ins in zip(_QUICK_GELU, ([x], [x], [x, x]), strict=True):
            op.run(name, ins, [x], module=module, saved_inputs=x.num_bytes if len(ins) > 1 else 0)
        for name in ("aten::mul.Tensor", "aten::mul.Tensor", "aten::sigmoid_backward", "aten::add.Tensor"):
            op.back(compute(name, [x, x], [x], module=module))
    else:
        name = _ACTIVATIONS.get(model.activation, model.activation)
        op.run(name, [x], [out], op_class="elementwise", module=module, saved_inputs=x.num_bytes)
        op.back(compute(f"{name}_backward", [out, x], [x], op_class="elementwise", module=module))
    return out


def _eager_gate(op: Op, model: ModelSpec, x: Tensor, out: Tensor, module: str) -> None:
    """The gate's activation, then its product with the other half."""
    name = _ACTIVATIONS.get(model.activation, model.activation)
    op.run(name, [out], [out], op_class="elementwise", module=module, saved_inputs=x.num_bytes)
    op.run("aten::mul.Tensor", [out, out], [out], module=module, saved_inputs=out.num_bytes)
    for back in ("aten::mul.Tensor", "aten::mul.Tensor", f"{name}_backward"):
        op.back(compute(back, [out, out], [out], op_class="elementwise", module=module))


def rotary(tape: OpTape, shard: Shard, tensors: list[Tensor], module: str) -> None:
    """Rotary positions on queries and keys: one kernel each, or what eager code launches for it."""
    op = tape.op()
    for x in tensors:
        for name, ins, out in _rotary_steps(shard, x):
            op.run(name, ins, [out], module=module)
    for x in reversed(tensors):
        for name, ins, out in reversed(_rotary_steps(shard, x)):
            back = "rotary_bwd" if name == "rotary_fwd" else name
            op.back(compute(back, [out], ins[:1], module=module))


def _rotary_steps(shard: Shard, x: Tensor) -> list[tuple[str, list[Tensor], Tensor]]:
    """Kernels as (name, inputs, output); see ``SoftwareSpec.rope_style``."""
    style, wide = shard.software.rope_style, x.like(*x.shape, dtype="float32")
    if style == "complex":
        # A compiler that fuses the others leaves complex numbers to ATen (torch/_inductor/lowering.py).
        return [
            ("aten::_to_copy", [x], wide),
            ("aten::mul.Tensor", [wide], wide),
            ("aten::_to_copy", [wide], x),
        ]
    if shard.software.rope_fusion:
        return [("rotary_fwd", [x], x)]
    if style == "matrices":
        products = wide.like(2, *wide.shape)
        return [
            ("aten::_to_copy", [x], wide),
            ("aten::mul.Tensor", [wide], products),
            ("aten::sum.dim_IntList", [products], wide),
            ("aten::_to_copy", [wide], x),
        ]
    half = x.like(*x.shape[:-1], x.shape[-1] // 2)
    return [
        ("aten::neg", [half], half),
        ("aten::cat", [half, half], x),
        ("aten::mul.Tensor", [x, x], x),
        ("aten::mul.Tensor", [x, x], x),
        ("aten::add.Tensor", [x, x], x),
    ]
