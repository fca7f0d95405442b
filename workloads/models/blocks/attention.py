"""Attention of many heads: projections, positions, attention proper, the output projection."""

from __future__ import annotations

from workloads.models.attention_core import Core
from workloads.models.block import LayerBlock, register
from workloads.models.blocks.feed_forward import block_output
from workloads.models.check import multiple
from workloads.models.context_parallel import distributed_attention
from workloads.models.elementary import norm, rotary
from workloads.models.fp8 import keep_narrow
from workloads.models.linear import Linear, column_parallel, columns_apart, row_parallel
from workloads.models.local import Shard
from workloads.models.op_tape import OpTape
from workloads.models.spec import ModelSpec
from workloads.models.tensors import Tensor, compute


def self_attention(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, index: int, causal: bool
) -> Tensor:
    """Attention of a layer, whose ``index`` decides on its window; a fused residual sum adds the bias."""
    core = _projections(tape, shard, model, x, module, index=index, causal=causal)
    return attended(tape, shard, model, core, module)


def cross_attention(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, memory: Tensor, module: str
) -> Tensor:
    """Queries from ``x``, keys and values from ``memory``: the encoder's output, ``[tokens, hidden]``.

    ``shard`` is the decoder's; all tokens of ``memory`` are attended to.
    """
    size, tp = model.size_per_head, shard.tp
    heads, kv_heads = model.heads // tp, max(1, model.num_kv_heads // tp)
    bias = model.has_qkv_bias
    column_parallel(tape, shard, x, model.heads * size, Linear(f"{module}.linear_q", bias=bias))
    encoder = shard.of_encoder()
    column_parallel(tape, encoder, memory, 2 * kv_heads * size * tp, Linear(f"{module}.linear_kv", bias=bias))
    core = Core(
        batch=shard.micro_batch, heads=heads, kv_heads=kv_heads, seq=shard.local_seq, qk_size=size,
        v_size=size, causal=False, module=f"{module}.core_attention", keys=encoder.local_seq,
        dropout=model.dropout > 0,
    )  # fmt: skip
    # The gradient of the encoder's output is a sum over the decoder's layers.
    tape.op().back(compute("aten::add.Tensor", [memory, memory], [memory], module=module), "input")
    return attended(tape, shard, model, core, module)


def attended(tape: OpTape, shard: Shard, model: ModelSpec, core: Core, module: str) -> Tensor:
    """Attention proper over projected heads, and the output projection."""
    distributed_attention(tape, shard, core)
    merged = shard.tensor(shard.tokens, core.heads * core.v_size)
    if model.attention_gate:
        _weighted(tape, merged, module)
    keep_narrow(tape, shard, merged, 12, core.module)
    # A fused kernel keeps its output, which is the projection's input too, unless it runs again; flash
    # kernels have samples first, so that where there are several the projection reads a copy.
    software = shard.software
    copied = software.attention.startswith("flash") and not software.batch_first and shard.micro_batch > 1
    keeps = software.attention == "unfused" or shard.recomputes_attention or copied or model.attention_gate
    layer = block_output(shard, model, f"{module}.linear_proj", save_input=keeps)
    return row_parallel(tape, shard, merged, model.hidden, layer)


def _weighted(tape: OpTape, out: Tensor, module: str) -> None:
    """``out`` times a sigmoid of the gate beside the queries, which is kept; attention keeps ``out``."""
    op, name = tape.op(), "sigmoid_gate"
    op.run(f"{name}_fwd", [out, out], [out], op_class="elementwise", module=module,
           saved_inputs=out.num_bytes)  # fmt: skip
    op.back(compute(f"{name}_bwd", [out, out, out], [out, out], op_class="elementwise", module=module))


def _projections(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, index: int, causal: bool
) -> Core:
    size, tp = model.size_per_head, shard.tp
    heads, kv_heads = model.heads // tp, max(1, model.num_kv_heads // tp)
    bias, asked = model.has_qkv_bias, heads * (1 + model.attention_gate)
    if shard.software.fused_qkv:
        width = (asked + 2 * kv_heads) * size * tp
        column_parallel(tape, shard, x, width, Linear(f"{module}.linear_qkv", bias=bias))
        if shard.software.qkv_grad_copy:
            joined = shard.tensor(shard.tokens, width // tp)
            tape.op().back(compute("aten::cat", [joined], [joined], module=module), "input")
            if shard.software.qkv_grad_copy == "turned":  # stacked by part, wanted by token
                tape.ops[-1].back(compute("aten::clone", [joined], [joined], module=module), "input")
    else:
        widths = (("linear_q", asked), ("linear_k", kv_heads), ("linear_v", kv_heads))
        layers = [
            (count * size * tp, Linear(f"{module}.linear_qkv.{name}", bias=bias)) for name, count in widths
        ]
        columns_apart(tape, shard, x, layers)
    tokens = shard.tokens
    query, key = shard.tensor(tokens, heads, size), shard.tensor(tokens, kv_heads, size)
    if model.qk_norm:
        for tensor, name in ((query, "q_norm"), (key, "k_norm")):
            rows = (tokens, tensor.shape[1] * size)
            flat = tensor.like(tokens * tensor.shape[1], size) if model.qk_norm == "head" else (
                tensor.like(*rows)
            )  # fmt: skip
            norm(tape, shard, model, flat, f"{module}.{name}", residual=False)
    if model.positions == "rotary":
        rotary(tape, shard, [query, key], module)
    return Core(
        batch=shard.micro_batch, heads=heads, kv_heads=kv_heads, seq=shard.local_seq, qk_size=size,
        v_size=size, causal=causal, module=f"{module}.core_attention", window=model.window(index),
        dropout=model.dropout > 0, alibi=model.positions in ("alibi", "relative"),
    )  # fmt: skip


def weights_and_scores(
    model: ModelSpec, index: int, seq: int, causal_once: bool, *, weights: float, width: int
) -> float:
    """Multiply-adds a token: ``weights`` of the projections, and scores and values, ``width`` of a head."""
    window = model.window(index) or seq
    reach = float(min(seq, window))
    if model.causal and causal_once:
        reach -= reach**2 / (2 * seq)  # the first rows see fewer
    return weights + model.heads * reach * width


def attention_multiply_adds(model: ModelSpec, index: int, seq: int, causal_once: bool) -> float:
    """Of projections, scores and values."""
    hidden, heads, size = model.hidden, model.heads, model.size_per_head
    asked = heads * (1 + model.attention_gate)
    weights = hidden * (asked + 2 * model.num_kv_heads) * size + heads * size * hidden
    return weights_and_scores(model, index, seq, causal_once, weights=weights, width=2 * size)


def _check(model: ModelSpec, where: str) -> None:
    if model.positions == "rotary" and model.mla is None:
        multiple(f"{where}.head_size", model.size_per_head, "a pair of", 2)


register(
    LayerBlock("attention", "attention", self_attention, attention_multiply_adds, check=_check, symbol="*")
)
