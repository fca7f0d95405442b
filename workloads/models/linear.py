"""Linear layers, plain and tensor-parallel, with what they exchange (arXiv 1909.08053, 2205.05198).

A column-parallel layer holds a slice of the outputs: its input must be whole, and the gradients of the input
are partial sums.  A row-parallel layer holds a slice of the inputs: its output is a partial sum.  Between
them activations are whole on every rank, or, with sequence parallelism, a slice of the tokens.

Note [Exchange beside products]
    Backward reduces the gradient of the input on another stream while the weight gradient is computed, and
    gathers the input again while the input gradient is.  With ``Shard.tp_overlap`` (Transformer Engine's user
    buffers) forward's gather and reduce_scatter move beside their own product too, chunk by chunk; here they
    begin together and both must end.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from workloads.models.local import Shard
from workloads.models.pieces import Kernel
from workloads.models.tape import Group, Launch, Tape
from workloads.models.tensors import Tensor, collective, compute

#: The stream on which exchanges run beside the products that they do not feed.
TP_STREAM = "tp"


@dataclass(frozen=True)
class Linear:
    """A linear layer: its name in the model and what is special about it.

    ``bias_apart``: the bias is added (and its gradient summed) by kernels of its own, not by a fused one.
    ``fp8`` None: as the model's precision says.  ``tied``: the weight belongs to another piece.
    ``save_input`` False: something else keeps it for backward.  ``group``: see :class:`Parameter`.
    """

    module: str
    bias: bool = False
    bias_apart: bool = True
    fp8: bool | None = None
    tied: bool = False
    save_input: bool = True
    input_grad: bool = True


def linear(tape: Tape, shard: Shard, x: Tensor, out_features: int, layer: Linear) -> Tensor:
    """``x [..., in] -> [tokens, out_features]``, nothing exchanged."""
    return _product(tape, shard, x, out_features, layer, _Exchange())


def column_parallel(tape: Tape, shard: Shard, x: Tensor, out_features: int, layer: Linear) -> Tensor:
    """``out_features`` is the whole width; the result has its slice of it, for all tokens."""
    local = out_features // shard.tp
    if shard.tp == 1:
        return linear(tape, shard, x, local, layer)
    if not shard.sequence_parallel:
        return _product(tape, shard, x, local, layer, _Exchange(reduce_input_grad="all_reduce"))
    whole = x.like(shard.tokens, x.shape[-1])
    label = _gather(tape, shard, whole, layer.module)
    exchange = _Exchange(reduce_input_grad="reduce_scatter", gathered_from=x, gathering=label)
    return _product(tape, shard, whole, local, layer, exchange)


def row_parallel(tape: Tape, shard: Shard, x: Tensor, out_features: int, layer: Linear) -> Tensor:
    """``x`` is a slice of the inputs for all tokens; the result is whole, or its slice of the tokens."""
    if shard.tp == 1:
        return linear(tape, shard, x, out_features, layer)
    whole = x.like(shard.tokens, out_features)
    if shard.sequence_parallel:
        exchange = _Exchange(output="reduce_scatter", gather_output_grad=whole)
    else:
        exchange = _Exchange(output="all_reduce")
    y = _product(tape, shard, x, out_features, replace(layer, bias=False), exchange)
    if shard.sequence_parallel:
        y = y.like(shard.residual_tokens, out_features)
    if layer.bias:
        _bias(tape, shard, y, layer, duplicated=shard.sequence_parallel)
    return y


@dataclass(frozen=True)
class _Exchange:
    """What surrounds a product: collectives by name, empty for none."""

    output: str = ""
    reduce_input_grad: str = ""
    gather_output_grad: Tensor | None = None
    gathered_from: Tensor | None = None
    gathering: Hashable = None


def _product(
    tape: Tape, shard: Shard, x: Tensor, out_features: int, layer: Linear, exchange: _Exchange
) -> Tensor:
    in_features = x.shape[-1]
    tokens = x.numel // in_features
    fp8 = shard.fp8 if layer.fp8 is None else layer.fp8
    flat, weight = x.like(tokens, in_features), x.like(out_features, in_features)
    y = x.like(tokens, out_features)
    kept = exchange.gathered_from or flat
    saved = kept.num_bytes if layer.save_input else 0
    if fp8:
        saved //= 2  # backward needs the fp8 transpose alone
        _cast_forward(tape, shard, flat, weight, layer.module)
    label = None
    if exchange.output and shard.tp_overlap:
        label = _beside(tape, collective(exchange.output, y, "tp", stream=TP_STREAM, module=layer.module))
    tape.run(
        _named("mm", fp8), [_operand(flat, fp8), _operand(weight, fp8)], [y], op_class="gemm",
        flops=2 * y.numel * in_features, module=layer.module, saved=saved,
    )  # fmt: skip
    if exchange.gathering is not None:
        tape.next_waits_for(exchange.gathering)
    if label is not None:
        tape.next_waits_for(label)
    elif exchange.output:
        tape.launch(Launch(collective(exchange.output, y, "tp", module=layer.module)))
    if not layer.tied:
        tape.parameter(f"{layer.module}.weight", out_features, in_features)
    _backward(tape, shard, flat, weight, y, layer, fp8, exchange)
    if layer.bias:
        _bias(tape, shard, y, layer, duplicated=False)
    return y


def _backward(
    tape: Tape, shard: Shard, x: Tensor, weight: Tensor, y: Tensor, layer: Linear, fp8: bool,
    exchange: _Exchange,
) -> None:  # fmt: skip
    """Input gradient, its reduction beside the weight gradient: Megatron's order."""
    group = tape.group()
    out, module = group.launches, layer.module
    flops = 2 * y.numel * x.shape[-1]
    gathered: Hashable = None
    if exchange.gather_output_grad is not None:
        out.append(Launch(collective("all_gather", exchange.gather_output_grad, "tp", module=module)))
    if exchange.gathered_from is not None:
        gathered = tape.new_label()
        out.append(Launch(collective("all_gather", x, "tp", stream=TP_STREAM, module=module), gathered))
    if fp8:
        out.append(Launch(_cast(y, module)))
    reduced: Hashable = None
    if layer.input_grad:
        ins = [_operand(y, fp8), _operand(weight, fp8)]
        produced = tape.new_label()
        kernel = compute(_named("mm", fp8), ins, [x], op_class="gemm", flops=flops, module=module)
        out.append(Launch(kernel, produced))
        if exchange.reduce_input_grad:
            reduced = tape.new_label()
            kernel = collective(exchange.reduce_input_grad, x, "tp", stream=TP_STREAM, module=module)
            out.append(Launch(kernel, reduced, (produced,)))
    _weight_gradient(group, shard, x, weight, y, module, fp8, (gathered,) if gathered is not None else ())
    if reduced is not None:
        group.after.append(reduced)


def _weight_gradient(
    group: Group, shard: Shard, x: Tensor, weight: Tensor, y: Tensor, module: str, fp8: bool,
    waits: tuple[Hashable, ...],
) -> None:  # fmt: skip
    main_grad = Tensor(weight.shape, shard.main_grad_dtype)
    ins = [_operand(y.like(y.shape[1], y.shape[0]), fp8), _operand(x, fp8)]
    flops = 2 * y.numel * x.shape[-1]
    if shard.software.grad_accumulation_fusion:
        kernel = compute(
            "wgrad_gemm_accum", [*ins, main_grad], [main_grad], op_class="gemm", flops=flops, module=module
        )
        group.launches.append(Launch(replace(kernel, weight_gradient=True), None, waits))
        return
    kernel = compute(_named("mm", fp8), ins, [weight], op_class="gemm", flops=flops, module=module)
    group.launches.append(Launch(replace(kernel, weight_gradient=True), None, waits))
    accumulate(group, shard, weight.shape, module)


def _bias(tape: Tape, shard: Shard, y: Tensor, layer: Linear, *, duplicated: bool) -> None:
    width = y.shape[-1]
    tape.parameter(f"{layer.module}.bias", width, tp_duplicated=duplicated)
    group = tape.group()
    if layer.bias_apart:
        tape.run("aten::add.Tensor", [y, y.like(width)], [y], module=layer.module)
        kernel = compute("aten::sum.dim_IntList", [y], [y.like(width)], module=layer.module)
        group.launches.append(Launch(kernel))
    accumulate(group, shard, (width,), layer.module)


def accumulate(group: Group, shard: Shard, shape: tuple[int, ...], module: str) -> None:
    """Add a parameter's gradient to what earlier microbatches left in ``main_grad``."""
    main_grad = Tensor(shape, shard.main_grad_dtype)
    kernel = compute("aten::add_.Tensor", [main_grad, Tensor(shape, shard.dtype)], [main_grad], module=module)
    group.launches.append(Launch(replace(kernel, weight_gradient=True)))


def _gather(tape: Tape, shard: Shard, whole: Tensor, module: str) -> Hashable:
    """All tokens from the slices; the label of the gather where it runs beside the product."""
    if shard.tp_overlap:
        return _beside(tape, collective("all_gather", whole, "tp", stream=TP_STREAM, module=module))
    tape.launch(Launch(collective("all_gather", whole, "tp", module=module)))
    return None


def _beside(tape: Tape, kernel: Kernel) -> Hashable:
    """Launch on another stream as soon as everything before has run; the label to wait for."""
    before = tape.last_label()
    label = tape.new_label()
    tape.launch(Launch(kernel, label, (before,) if before is not None else ()))
    return label


def _operand(tensor: Tensor, fp8: bool) -> Tensor:
    return replace(tensor, dtype="float8_e4m3fn") if fp8 else tensor


def _named(what: str, fp8: bool) -> str:
    return "aten::_scaled_mm" if fp8 else f"aten::{what}"


def _cast(x: Tensor, module: str) -> Kernel:
    """To fp8 and to its transpose in one pass (Transformer Engine's cast_transpose)."""
    quantized = replace(x, dtype="float8_e4m3fn")
    return compute("cast_transpose_fp8", [x], [quantized, quantized], op_class="elementwise", module=module)


def _cast_forward(tape: Tape, shard: Shard, x: Tensor, weight: Tensor, module: str) -> None:
    tape.launch(Launch(_cast(x, module)))
    if shard.software.fp8_weight_cast == "every":
        tape.launch(Launch(_cast(weight, module)))
    elif shard.software.fp8_weight_cast == "first":
        tape.first.append(_cast(weight, module))
