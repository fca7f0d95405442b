"""A transformer layer as one piece."""

from __future__ import annotations

from workloads.models.attention import self_attention
from workloads.models.elementary import norm, residual_sum
from workloads.models.feed_forward import experts, feed_forward
from workloads.models.local import Shard
from workloads.models.pieces import Piece
from workloads.models.spec import ModelSpec
from workloads.models.tape import Tape


def has_experts(model: ModelSpec, index: int) -> bool:
    """Whether layer ``index`` has experts in place of the dense feed-forward block."""
    moe = model.moe
    return moe is not None and index >= moe.first_layer and (index - moe.first_layer) % moe.every == 0


def layer(model: ModelSpec, shard: Shard, index: int, *, recompute: bool) -> Piece:
    """Layer ``index``: attention and feed-forward block, each behind a norm, each added to the residual."""
    tape = Tape()
    name = f"decoder.layers.{index}"
    x = shard.tensor(shard.residual_tokens, model.hidden)
    norm(tape, shard, model, x, f"{name}.input_layernorm")
    self_attention(tape, shard, model, x, f"{name}.self_attention")
    residual_sum(tape, shard, model, x, name, bias=model.bias)
    norm(tape, shard, model, x, f"{name}.pre_mlp_layernorm")
    if has_experts(model, index):
        experts(tape, shard, model, x, f"{name}.mlp")
        residual_sum(tape, shard, model, x, name, bias=False)
    else:
        feed_forward(tape, shard, model, x, f"{name}.mlp")
        residual_sum(tape, shard, model, x, name, bias=model.bias)
    return tape.piece("layer", x, recompute_all=recompute, input_bytes=x.num_bytes)
