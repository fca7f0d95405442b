"""Multi-head latent attention: compressed queries, keys and values (DeepSeek-V2, arXiv 2405.04434)."""

from __future__ import annotations

from workloads.models.attention_core import Core
from workloads.models.block import LayerBlock, register
from workloads.models.blocks.attention import attended, weights_and_scores
from workloads.models.elementary import norm, rotary
from workloads.models.linear import Linear, column_parallel, linear
from workloads.models.local import Shard
from workloads.models.op_tape import OpTape
from workloads.models.spec import MlaSpec, ModelSpec
from workloads.models.tensors import Tensor, compute


def _latent_attention(
    tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str, *, index: int, causal: bool
) -> Tensor:
    del index, causal  # it has no window, and is causal where the model is
    return attended(tape, shard, model, _projections(tape, shard, model, x, module), module)


def _projections(tape: OpTape, shard: Shard, model: ModelSpec, x: Tensor, module: str) -> Core:
    """The small projections are on every rank."""
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


def _multiply_adds(model: ModelSpec, index: int, seq: int, causal_once: bool) -> float:
    mla, hidden, heads = model.mla, model.hidden, model.heads
    assert mla is not None
    qk_size, v_size = mla.qk_nope_head_size + mla.qk_rope_head_size, mla.v_head_size
    query = hidden * heads * qk_size
    if mla.q_lora_rank:
        query = hidden * mla.q_lora_rank + mla.q_lora_rank * heads * qk_size
    keys = hidden * (mla.kv_lora_rank + mla.qk_rope_head_size)
    keys += mla.kv_lora_rank * heads * (mla.qk_nope_head_size + v_size)
    weights = query + keys + heads * v_size * hidden
    return weights_and_scores(model, index, seq, causal_once, weights=weights, width=qk_size + v_size)


register(
    LayerBlock(
        "latent_attention", "attention", _latent_attention, _multiply_adds, key="mla", spec=MlaSpec,
        is_in=lambda model, _: model.mla is not None, symbol="*",
    )
)  # fmt: skip
