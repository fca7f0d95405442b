"""Linear layers, plain and tensor-parallel, with what they exchange (arXiv 1909.08053, 2205.05198).

A column-parallel layer holds a slice of the outputs: its input must be whole, and the gradients of the input
are partial sums.  A row-parallel layer holds a slice of the inputs: its output is a partial sum.  Between
them activations are whole on every rank, or, with sequence parallelism, a slice of the tokens.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from simcore.records import dataclass
from workloads.models.autocast import cast_parameters, narrowed
from workloads.models.exchange import ProductExchange, aside, beside_or_before, in_order, reorders, sums
from workloads.models.fp8 import (
    by_rows,
    cast_for_product,
    cast_weight,
    casts,
    casts_at_use,
    column_casts,
    gathered,
    operand,
    product_name,
    requantised,
    turned,
    weight_product_name,
)
from workloads.models.local import Shard
from workloads.models.op_tape import Op, OpTape, TapedLaunch
from workloads.models.pieces import KernelLaunch
from workloads.models.tensors import Tensor, collective, compute

TIED_WEIGHT = "embedding.word_embeddings.weight"


@dataclass(frozen=True)
class Linear:
    """A linear layer: its name in the model and what is special about it.

    ``bias_apart``: the bias is added (and its gradient summed) by kernels of its own, not by a fused one;
    ``bias_sum``: a fused kernel adds it, but its gradient is summed by a kernel of its own.
    ``fp8`` False: in 16 bits, whatever the model's precision.  ``tied``: the weight belongs to another piece.
    ``save_input`` False: something else keeps it for backward.  ``replicated``: on every tensor-parallel
    rank.  ``cast_input`` False: its input is narrow already.
    """

    module: str
    bias: bool = False
    bias_apart: bool = True
    bias_sum: bool = False
    fp8: bool | None = None
    tied: bool = False
    save_input: bool = True
    replicated: bool = False
    cast_input: bool = True


def linear(tape: OpTape, shard: Shard, x: Tensor, out_features: int, layer: Linear) -> Tensor:
    """``x [..., in] -> [tokens, out_features]``, nothing exchanged."""
    return _product(tape, shard, x, out_features, layer, ProductExchange())


def column_parallel(tape: OpTape, shard: Shard, x: Tensor, out_features: int, layer: Linear) -> Tensor:
    """``out_features`` is the whole width; the result has its slice of it, for all tokens."""
    local = out_features // shard.tp
    if shard.tp == 1:
        return linear(tape, shard, x, local, layer)
    if not shard.sequence_parallel:
        return _product(tape, shard, x, local, layer, ProductExchange(reduce_input_grad="all_reduce"))
    whole = x.like(shard.tokens, x.shape[-1])
    exchange = ProductExchange(reduce_input_grad="reduce_scatter", gathered_from=x)
    return _product(tape, shard, whole, local, layer, exchange)


def columns_apart(tape: OpTape, shard: Shard, x: Tensor, layers: list[tuple[int, Linear]]) -> list[Tensor]:
    """Several column-parallel layers of one input, each a product of its own.

    The input is cast to fp8 once (pytorch/ao float8_tensor_parallel.py, PrepareFloat8ModuleInput; without
    tensor parallelism torch.compile finds that the casts are one) and gathered once.
    """
    fork, shared, module = len(tape.ops), tape.op(), layers[0][1].module
    gathers = shard.tp > 1 and shard.sequence_parallel
    beside: list[Hashable] = []
    behind = bool(shard.narrow) and by_rows(shard)
    if shard.narrow and not behind:
        for kernel in casts(shard, x, module, is_slice=gathers):
            shared.launch(TapedLaunch(kernel))
    if shard.tp > 1:
        x = x.like(shard.tokens, x.shape[-1])
        if gathers:
            gather = collective("all_gather", gathered(shard, x, shard.narrow), "tp", module=module)
            beside = beside_or_before(shared, shard, gather, fed_by_cast=behind)
            if reorders(shard):
                shared.launch(TapedLaunch(in_order(shard, gathered(shard, x, shard.narrow), module)))
                if not shard.software.compiled:  # the sum of the gradients' terms writes in that order
                    shared.back(in_order(shard, x, module), "input")
        what = "reduce_scatter" if shard.sequence_parallel else "all_reduce"
        shared.back(collective(what, x, "tp", module=module), "input")
    if behind:
        for kernel in casts(shard, x, module):
            shared.launch(TapedLaunch(kernel))
    out = []
    # The gradient of the shared input is a sum: of two terms when both are there, or, compiled, of all.
    terms, sums_at = (len(layers), (0,)) if shard.software.compiled else (2, range(len(layers) - 1))
    for number, (width, layer) in enumerate(layers):
        first = len(tape.ops)
        if number in sums_at:
            tape.op().back(compute("aten::add.Tensor", [x] * terms, [x], module=layer.module), "input")
        save_input = layer.save_input and number == 0
        layer = replace(layer, save_input=save_input, cast_input=not shard.narrow)
        product = len(tape.ops)
        out.append(linear(tape, shard, x, width // shard.tp, layer))
        tape.ops[first].reads = tape.ops[product].reads = fork
    for label in beside:
        tape.next_waits_for(label)
    if shard.narrow and (behind or gathers):
        last = tape.op()
        for kernel in turned(shard, [x], [x], module):
            last.back(kernel)
    return out


def row_parallel(tape: OpTape, shard: Shard, x: Tensor, out_features: int, layer: Linear) -> Tensor:
    """``x`` is a slice of the inputs for all tokens; the result is whole, or its slice of the tokens."""
    if shard.tp == 1:
        return linear(tape, shard, x, out_features, layer)
    exchange = ProductExchange(output="reduce_scatter" if shard.sequence_parallel else "all_reduce")
    y = _product(tape, shard, x, out_features, replace(layer, bias=False), exchange)
    if shard.sequence_parallel:
        y = y.like(shard.residual_tokens, out_features)
    if layer.bias:
        add_bias(tape, shard, y, layer, duplicated=shard.sequence_parallel)
    return y


def add_bias(tape: OpTape, shard: Shard, y: Tensor, layer: Linear, *, duplicated: bool) -> None:
    """A bias as an op of its own, or only its parameter where a fused kernel adds it."""
    op, width = tape.op(), y.shape[-1]
    op.parameter(f"{layer.module}.bias", width, tp_duplicated=duplicated)
    if layer.bias_apart:
        op.run("aten::add.Tensor", [y, y.like(width)], [y], module=layer.module)
    if layer.bias_apart or layer.bias_sum:
        total = compute("aten::sum.dim_IntList", [y], [y.like(width)], module=layer.module)
        op.back(total, "weight")
    op.accumulate((width,), shard.dtype, shard.main_grad_dtype, layer.module)


def _product(
    tape: OpTape, shard: Shard, x: Tensor, out_features: int, layer: Linear, exchange: ProductExchange
) -> Tensor:
    in_features = x.shape[-1]
    tokens = x.numel // in_features
    narrow = "" if layer.fp8 is False else shard.narrow
    x = narrowed(tape, shard, x, layer.module)
    flat, y = x.like(tokens, in_features), x.like(tokens, out_features)
    op, module = tape.op(), layer.module
    biases = [(out_features,)] if layer.bias else []
    cast_parameters(op, shard, [(out_features, in_features), *biases], module)
    given = exchange.gathered_from or flat
    kept = given if shard.software.gather_inputs_again else flat
    behind = bool(narrow) and by_rows(shard)
    if narrow and layer.cast_input and casts_at_use(shard):
        op.launch(TapedLaunch(cast_for_product(flat, module)))
    elif narrow and layer.cast_input and not behind:
        for kernel in casts(shard, given, module, is_slice=exchange.gathered_from is not None):
            op.launch(TapedLaunch(kernel))
    beside: list[Hashable] = []
    if exchange.gathered_from is not None:
        gather = collective("all_gather", gathered(shard, flat, narrow), "tp", module=module)
        gather = replace(gather, buffered=_is_buffered(shard, layer))
        beside += beside_or_before(op, shard, gather, fed_by_cast=behind)
        if reorders(shard):
            op.launch(TapedLaunch(in_order(shard, gathered(shard, flat, narrow), module)))
    if behind and layer.cast_input:
        for kernel in casts(shard, flat, module):
            op.launch(TapedLaunch(kernel))
    if narrow:
        for launch in cast_weight(tape, shard, flat.like(out_features, in_features), module):
            op.launch(launch)
    sum_op = Op(tape)
    if exchange.output and shard.tp_overlap:
        early, _ = sums(shard, y, narrow)
        beside += beside_or_before(sum_op, shard, collective(exchange.output, early, "tp", module=module))
    trains = shard.trains(TIED_WEIGHT if layer.tied else f"{module}.weight")
    op.run(
        product_name(shard, narrow),
        [operand(flat, narrow), operand(flat.like(in_features, out_features), narrow)],
        [y], op_class="gemm", flops=2 * y.numel * in_features, module=module,
        saved_inputs=gathered(shard, kept, narrow).num_bytes if layer.save_input and trains else 0,
        saved_for="weight",
    )  # fmt: skip
    for label in beside:
        tape.next_waits_for(label)
    if layer.tied:
        op.trains_tied = trains
    else:
        duplicated = layer.replicated and shard.sequence_parallel
        op.parameter(f"{module}.weight", out_features, in_features, tp_duplicated=duplicated)
    if layer.bias and layer.bias_apart and not shard.software.bias_in_product:
        op.run("aten::add.Tensor", [y, y.like(out_features)], [y], module=module)
    adapter = shard.has_adapter(module)
    if adapter:
        beside_product = len(tape.ops)
        _adapter(tape, shard, flat, y, module, flat.num_bytes if layer.save_input else 0)
        tape.ops[beside_product].reads = beside_product - 1
    _backward(tape, shard, op, flat, y, layer, narrow, exchange, trains=trains, adapter=adapter)
    if exchange.output:
        _reduce_output(tape, shard, sum_op, y, narrow, exchange, module)
    if layer.bias and not layer.bias_apart:
        add_bias(tape, shard, y, layer, duplicated=False)
    return y


def _is_buffered(shard: Shard, layer: Linear) -> bool:
    """Whether what is gathered for a layer lies in Megatron's buffer: not in Transformer Engine's layers."""
    software = shard.software
    return software.global_buffer and not (software.transformer_engine and layer.fp8 is not False)


def _reduce_output(
    tape: OpTape, shard: Shard, op: Op, y: Tensor, narrow: str, exchange: ProductExchange, module: str
) -> None:
    """The sum of partial outputs; with sequence parallelism backward gathers their gradient."""
    tape.add(op)
    part = y.like(shard.residual_tokens, y.shape[-1])
    behind = y if not shard.tp_overlap else sums(shard, y, narrow)[1]
    if behind is None:
        op.run("sum_of_parts", [y], [part], op_class="elementwise", module=module)
    elif behind.numel:
        if reorders(shard):
            op.launch(TapedLaunch(in_order(shard, behind, module)))
        op.launch(TapedLaunch(collective(exchange.output, behind, "tp", module=module)))
    if not shard.sequence_parallel:
        return
    rows = bool(narrow) and by_rows(shard)
    if narrow and not rows:
        for kernel in casts(shard, part, module, is_slice=True):
            op.back(kernel)
    gather = collective("all_gather", gathered(shard, y, narrow), "tp", module=module)
    if shard.tp_overlap and not rows:
        label = tape.new_label()
        op.back(aside(shard, gather), label=label)
        exchange.output_grad.append(label)
    else:
        op.back(gather)
        if reorders(shard):
            op.back(in_order(shard, gathered(shard, y, narrow), module))


def _backward(
    tape: OpTape, shard: Shard, op: Op, x: Tensor, y: Tensor, layer: Linear, narrow: str,
    exchange: ProductExchange, *, trains: bool, adapter: bool,
) -> None:  # fmt: skip
    """Input gradient, its reduction beside (or behind) the weight gradient: Megatron's order."""
    module, flops = layer.module, 2 * y.numel * x.shape[-1]
    weight = x.like(y.shape[-1], x.shape[-1])
    behind = bool(narrow) and by_rows(shard)
    arrivals: list[Hashable] = list(exchange.output_grad)
    if exchange.gathered_from is not None and trains and shard.software.gather_inputs_again:
        arrivals.append(tape.new_label())
        again = collective("all_gather", gathered(shard, x, narrow), "tp", module=module)
        again = replace(again, buffered=_is_buffered(shard, layer))
        op.back(aside(shard, again), "weight", arrivals[-1])
    if narrow and casts_at_use(shard):
        op.back(requantised(weight, module, kept=True), "input")
        op.back(cast_for_product(y, module), "input")
    elif narrow and (behind or not (exchange.output and shard.sequence_parallel)):
        for kernel in casts(shard, y, module):
            op.back(kernel)
    for kernel in column_casts(shard, weight, module) if behind else ():
        op.back(kernel, "input")
    produced = tape.new_label()
    ins = [operand(y, narrow), operand(weight, narrow)]
    name = product_name(shard, narrow)
    op.back(compute(name, ins, [x], op_class="gemm", flops=flops, module=module), "input", produced)
    if adapter:
        produced = tape.new_label()
        op.back(compute("aten::add.Tensor", [x, x], [x], module=module), "input", produced)
    reduction: KernelLaunch | None = None
    if exchange.reduce_input_grad:
        if reorders(shard):
            produced = tape.new_label()
            op.back(in_order(shard, x, module), "input", produced)
        reduction = collective(exchange.reduce_input_grad, x, "tp", module=module)
    if reduction and shard.software.async_tp_reduce:
        reduced = tape.new_label()
        op.back(aside(shard, reduction), "input", reduced, (produced,))
        op.after.append(reduced)
    if trains:
        arrived = [x] if exchange.gathered_from is not None else []
        arrived += [y] if exchange.output and shard.sequence_parallel else []
        own = [y, *([x] if layer.cast_input else [])]
        if narrow and casts_at_use(shard):
            op.back(requantised(y, module, kept=False), "weight")
            op.back(requantised(x, module, kept=True), "weight")
        else:
            for kernel in turned(shard, own, arrived, module) if narrow else []:
                op.back(kernel, "weight", waits=tuple(arrivals))
        outside = layer.fp8 is False
        _weight_gradient(op, shard, x, weight, y, module, narrow, tuple(arrivals), outside=outside)
    elif exchange.output_grad:
        op.after.extend(exchange.output_grad)
    if layer.bias and layer.bias_apart:
        width = y.shape[-1]
        op.parameter(f"{module}.bias", width)
        if not shard.software.product_activation_fusion:
            op.back(compute("aten::sum.dim_IntList", [y], [y.like(width)], module=module), "weight")
        op.accumulate((width,), shard.wide_dtype, shard.main_grad_dtype, module)
    if reduction and not shard.software.async_tp_reduce:
        op.back(reduction, "input")


def _weight_gradient(
    op: Op, shard: Shard, x: Tensor, weight: Tensor, y: Tensor, module: str, narrow: str,
    waits: tuple[Hashable, ...], *, outside: bool = False,
) -> None:  # fmt: skip
    """``outside``: of a layer that is not Transformer Engine's.

    Autograd is handed a tensor that nobody reads where the gradient was added inside: of each such layer anew
    (LinearWithGradAccumulationAndAsyncCommunication of megatron/core/tensor_parallel/layers.py).
    """
    main_grad = Tensor(weight.shape, shard.main_grad_dtype)
    ins = [operand(y.like(y.shape[1], y.shape[0]), narrow), operand(x, narrow)]
    fused = shard.software.grad_accumulation_fusion
    name = weight_product_name(shard, narrow) if fused else product_name(shard, narrow)
    ins, outs = ([*ins, main_grad], [main_grad]) if fused else (ins, [weight])
    flops = 2 * y.numel * x.shape[-1]
    kernel = compute(name, ins, outs, op_class="gemm", flops=flops, module=module)
    unread = fused and outside and shard.software.transformer_engine
    op.back(replace(kernel, scratch_bytes=weight.num_bytes if unread else 0), "weight", waits=waits)
    if not fused:
        op.accumulate(weight.shape, shard.wide_dtype, shard.main_grad_dtype, module)


def _adapter(tape: OpTape, shard: Shard, x: Tensor, y: Tensor, module: str, kept: int) -> None:
    """A low-rank adapter (LoRA, arXiv 2106.09685): down, up, scaled and added to the layer's output."""
    rank = shard.lora_rank
    narrow = x.like(x.shape[0], rank)
    sizes = ((x, narrow, "lora_a", kept), (narrow, y, "lora_b", narrow.num_bytes))
    for source, target, name, saved in sizes:
        op, label = tape.op(), f"{module}.{name}"
        flops = 2 * target.numel * source.shape[-1]
        weight = source.like(source.shape[-1], target.shape[-1])
        op.run("aten::mm", [source, weight], [target], op_class="gemm", flops=flops, module=label,
               saved_inputs=saved, saved_for="weight")  # fmt: skip
        op.parameter(f"{label}.weight", target.shape[-1], source.shape[-1], tp_duplicated=True)
        ins = [target, weight.like(*reversed(weight.shape))]
        op.back(compute("aten::mm", ins, [source], op_class="gemm", flops=flops, module=label), "input")
        _weight_gradient(op, shard, source, weight.like(*reversed(weight.shape)), target, label, "", ())
    op = tape.op()
    op.run("aten::mul.Tensor", [y], [y], module=f"{module}.lora_b")
    op.run("aten::add.Tensor", [y, y], [y], module=f"{module}.lora_b")
    op.back(compute("aten::mul.Tensor", [y], [y], module=f"{module}.lora_b"), "input")
