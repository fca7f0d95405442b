"""Gated delta-rule layers (Gated DeltaNet): projection, a short convolution, the rule, a gated norm.

As Megatron-Core builds them (megatron/core/ssm/gated_delta_net/): the projection is column parallel, heads
are dealt out over tensor-parallel ranks.  With context parallelism one all_to_all trades tokens for heads
before the convolution, another back behind the norm; columns are put by rank before, and slices of the
sequence from both its ends in order.
"""

from __future__ import annotations

from dataclasses import replace

from workloads.models.block import LayerBlock, register
from workloads.models.check import multiple
from workloads.models.chunk_scan import transposed
from workloads.models.delta_rule import DeltaSizes, delta_rule
from workloads.models.elementary import norm_of_kind
from workloads.models.linear import Linear, column_parallel, row_parallel
from workloads.models.local import Shard
from workloads.models.op_tape import OpTape, TapedLaunch
from workloads.models.spec import DeltaSpec, ModelSpec
from workloads.models.tensors import Tensor, collective, compute


def _delta_net(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, index: int, causal: bool
) -> Tensor:
    del index, causal  # all layers are alike, and every state is of earlier tokens
    delta = model.delta
    assert delta is not None
    joined = column_parallel(tape, shard, x, delta.projected, Linear(f"{module}.in_proj"))
    ranks = shard.tp * shard.cp
    if shard.cp > 1:
        _traded(tape, joined, module, before="aten::index_select", behind="aten::cat")
    tokens, heads = shard.micro_batch * shard.seq, delta.heads // ranks
    whole = joined.like(tokens, delta.projected // ranks)
    _convolved(tape, shard, delta, whole, module)
    _prepared(tape, delta, whole, ranks, module)
    sizes = DeltaSizes(shard.micro_batch, shard.seq, heads, delta.key_size, delta.value_size)
    values = delta_rule(tape, sizes, joined.dtype, module)
    norm_of_kind(tape, shard, values.like(tokens * heads, delta.value_size), f"{module}.out_norm", model.norm)
    op = tape.op()
    op.run("silu_gate_fwd", [values, values], [values], op_class="elementwise", module=module,
           saved_inputs=2 * values.num_bytes)  # fmt: skip
    op.back(compute("silu_gate_bwd", [values] * 3, [values, values], op_class="elementwise", module=module))
    out = values.like(tokens, heads * delta.value_size)
    transposed(tape, shard, out, module)
    if shard.cp > 1:
        _traded(tape, out, module, before="aten::cat")
        out = out.like(shard.tokens, delta.inner // shard.tp)
    return row_parallel(tape, shard, out, model.hidden, Linear(f"{module}.out_proj"))


def _traded(tape: OpTape, part: Tensor, module: str, *, before: str, behind: str = "") -> None:
    """all_to_all over context-parallel ranks between copies of these names, if any."""
    op, exchange = tape.op(), collective("all_to_all", part, "cp", module=module)
    op.run(before, [part], [part], module=module)
    op.launch(TapedLaunch(exchange))
    if behind:
        op.run(behind, [part], [part], module=module)
        op.back(compute(behind, [part], [part], module=module))
    op.back(exchange)
    op.back(compute("aten::index_add_" if "index" in before else before, [part], [part], module=module))


def _convolved(tape: OpTape, shard: Shard, delta: DeltaSpec, joined: Tensor, module: str) -> None:
    """Queries, keys and values of a few tokens, channel by channel, where they lie in what was projected."""
    ranks = shard.tp * shard.cp
    channels = joined.like(joined.shape[0], delta.channels // ranks)
    filters = joined.like(delta.channels // ranks, delta.conv)
    op = tape.op()
    forward = compute("causal_conv1d_fwd_kernel", [channels, filters], [channels], op_class="short_conv",
                      module=module)  # fmt: skip
    op.launch(TapedLaunch(forward, saved_inputs=joined.num_bytes))
    wide = replace(filters, dtype="float32")
    op.back(compute("causal_conv1d_bwd_kernel", [channels, channels, filters], [channels, wide],
                    op_class="short_conv", module=module))  # fmt: skip
    op.back(compute("aten::cat", [joined], [joined], module=module))  # the gradient of what was projected
    filters_of_rank, of_heads = (delta.channels // shard.tp, 1, delta.conv), (delta.heads // shard.tp,)
    for name, sizes in (("conv1d.weight", filters_of_rank), ("dt_bias", of_heads), ("A_log", of_heads)):
        op.parameter(f"{module}.{name}", *sizes)
        op.accumulate(sizes, joined.dtype, shard.main_grad_dtype, module)


def _prepared(tape: OpTape, delta: DeltaSpec, joined: Tensor, ranks: int, module: str) -> None:
    """Queries and keys normed and repeated for the heads that share them, values and gates apart."""
    tokens, heads, key_heads = joined.shape[0], delta.heads // ranks, delta.key_heads // ranks
    asked = joined.like(tokens * 2 * key_heads, delta.key_size)
    spread = joined.like(tokens, heads, delta.key_size)
    values = joined.like(tokens, heads, delta.value_size)
    gate, decay = joined.like(tokens, heads), joined.like(tokens, heads, dtype="float32")
    rstd = joined.like(asked.shape[0], dtype="float32")

    op = tape.op()
    op.run("aten::clone", [asked], [asked], module=module)
    op.run("l2norm_fwd_kernel", [asked], [asked, rstd], op_class="elementwise", module=module,
           saved_outputs=asked.num_bytes + rstd.num_bytes)  # fmt: skip
    op.back(compute("l2norm_bwd_kernel", [asked, asked, rstd], [asked], op_class="elementwise",
                    module=module))  # fmt: skip
    # The gradient of what the convolution wrote.
    op.back(compute("aten::cat", [asked, values], [asked, values], module=module))
    op = tape.op()
    name, back = ("aten::repeat_interleave", "aten::sum.dim_IntList")
    if heads == key_heads:
        name, back = "aten::clone", "aten::cat"
    op.run(name, [asked], [spread, spread], module=module, saved_outputs=2 * spread.num_bytes)
    for _ in ("values", "output gate"):
        op.run("aten::clone", [values], [values], module=module, saved_outputs=values.num_bytes)
    op.run("delta_gates_fwd", [gate, gate], [decay, gate], op_class="elementwise", module=module,
           saved_outputs=gate.num_bytes)  # fmt: skip
    op.back(compute(back, [spread, spread], [asked], module=module))
    op.back(compute("delta_gates_bwd", [decay, gate, gate, gate], [gate, gate], op_class="elementwise",
                    module=module))  # fmt: skip


def _multiply_adds(model: ModelSpec, *_: object) -> float:
    """As Megatron-LM counts them (megatron/training/training.py, gdn_layer_flops): four products a state."""
    delta = model.delta
    assert delta is not None
    rule = 4 * delta.heads * delta.value_size**2 + delta.conv * delta.channels
    return model.hidden * (delta.projected + delta.inner) + rule


def _check(model: ModelSpec, where: str) -> None:
    delta = model.delta
    if delta is not None:
        multiple(f"{where}.delta.heads", delta.heads, "key_heads", delta.key_heads)


register(
    LayerBlock(
        "delta_net", "attention", _delta_net, _multiply_adds, key="delta", spec=DeltaSpec,
        check=_check, adds_bias=False, symbol="G",
    )
)  # fmt: skip
