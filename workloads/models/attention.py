"""Attention blocks: projections, positions, attention proper, the output projection."""

from __future__ import annotations

from workloads.models.attention_core import Core
from workloads.models.context_parallel import distributed_attention
from workloads.models.elementary import norm, rotary
from workloads.models.fp8 import keep_narrow
from workloads.models.linear import Linear, column_parallel, columns_apart, linear, row_parallel
from workloads.models.local import Shard
from workloads.models.spec import ModelSpec
from workloads.models.tape import Tape
from workloads.models.tensors import Tensor, compute


def self_attention(
    tape: Tape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, index: int = 0,
    causal: bool | None = None,
) -> Tensor:  # fmt: skip
    """``x [tokens, hidden]`` to the same; a fused residual sum adds the bias.

    ``index`` of the layer decides on its window; ``causal`` None: as the model is.
    """
    causal = model.causal if causal is None else causal
    if model.mla is not None:
        core = _latent_projections(tape, shard, model, x, module)
    else:
        core = _projections(tape, shard, model, x, module, index=index, causal=causal)
    return _output(tape, shard, model, x, core, module)


def cross_attention(
    tape: Tape, shard: Shard, model: ModelSpec, x: Tensor, memory: Tensor, module: str
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
    return _output(tape, shard, model, x, core, module)


def _output(tape: Tape, shard: Shard, model: ModelSpec, x: Tensor, core: Core, module: str) -> Tensor:
    distributed_attention(tape, shard, core)
    merged = x.like(shard.tokens, core.heads * core.v_size)
    keep_narrow(tape, shard, merged, 12, core.module)
    # A fused kernel keeps its output, which is the projection's input too, unless it runs again.
    keeps = shard.software.attention == "unfused" or shard.recomputes_attention
    layer = block_output(shard, model, f"{module}.linear_proj", save_input=keeps)
    return row_parallel(tape, shard, merged, model.hidden, layer)


def block_output(shard: Shard, model: ModelSpec, module: str, *, save_input: bool = True) -> Linear:
    """The last linear layer of a block, whose bias a fused residual sum adds."""
    fused = shard.software.bias_dropout_fusion and not model.post_norms
    return Linear(
        module, bias=model.bias, bias_apart=not fused, bias_sum=model.dropout == 0, save_input=save_input
    )


def _projections(
    tape: Tape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, index: int, causal: bool
) -> Core:
    size, tp = model.size_per_head, shard.tp
    heads, kv_heads = model.heads // tp, max(1, model.num_kv_heads // tp)
    bias = model.has_qkv_bias
    if shard.software.fused_qkv:
        width = (heads + 2 * kv_heads) * size * tp
        column_parallel(tape, shard, x, width, Linear(f"{module}.linear_qkv", bias=bias))
        if shard.software.qkv_grad_copy:
            joined = x.like(shard.tokens, width // tp)
            tape.op().back(compute("aten::cat", [joined], [joined], module=module), "input")
    else:
        widths = (("linear_q", heads), ("linear_k", kv_heads), ("linear_v", kv_heads))
        layers = [
            (count * size * tp, Linear(f"{module}.linear_qkv.{name}", bias=bias)) for name, count in widths
        ]
        columns_apart(tape, shard, x, layers)
    tokens = shard.tokens
    query, key = x.like(tokens, heads, size), x.like(tokens, kv_heads, size)
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


def _latent_projections(tape: Tape, shard: Shard, model: ModelSpec, x: Tensor, module: str) -> Core:
    """Compressed queries, keys and values (arXiv 2405.04434); the small projections are on every rank."""
    mla = model.mla
    assert mla is not None
    heads, qk_size = model.heads // shard.tp, mla.qk_nope_head_size + mla.qk_rope_head_size
    tokens, query = shard.tokens, x
    if mla.q_lora_rank:
        down = Linear(f"{module}.linear_q_down_proj", replicated=True)
        query = linear(tape, shard, x, mla.q_lora_rank, down)
        norm(tape, shard, model, query, f"{module}.q_layernorm", residual=False)
        column_parallel(tape, shard, query, model.heads * qk_size, Linear(f"{module}.linear_q_up_proj"))
    else:
        column_parallel(tape, shard, query, model.heads * qk_size, Linear(f"{module}.linear_q_proj"))
    down = Linear(f"{module}.linear_kv_down_proj", replicated=True, save_input=False)
    tape.op().back(compute("aten::add.Tensor", [x, x], [x], module=module), "input")
    linear(tape, shard, x, mla.kv_lora_rank + mla.qk_rope_head_size, down)
    latent = x.like(x.shape[0], mla.kv_lora_rank)
    norm(tape, shard, model, latent, f"{module}.kv_layernorm", residual=False)
    up = model.heads * (mla.qk_nope_head_size + mla.v_head_size)
    column_parallel(tape, shard, latent, up, Linear(f"{module}.linear_kv_up_proj"))
    turned = [x.like(tokens, count, mla.qk_rope_head_size) for count in (heads, 1)]
    rotary(tape, shard, turned, module)
    # The rotary part of the key is copied to every head beside the other.
    op, key = tape.op(), x.like(tokens, heads, qk_size)
    op.run("aten::cat", [key], [key], module=module)
    op.back(compute("aten::clone", [key], [key], module=module))
    return Core(
        batch=shard.micro_batch, heads=heads, kv_heads=heads, seq=shard.local_seq, qk_size=qk_size,
        v_size=mla.v_head_size, causal=model.causal, module=f"{module}.core_attention",
        dropout=model.dropout > 0,
    )  # fmt: skip
