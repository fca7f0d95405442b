"""Model flops and parameter counts: what the mathematics needs, whatever a build recomputes or pads."""

from __future__ import annotations

from workloads.models.embeddings import CHANNELS
from workloads.models.spec import ModelSpec


def model_flops(model: ModelSpec, seq: int, *, causal_once: bool, decoder_seq: int = 0) -> float:
    """Forward and backward flops of one sample of ``seq`` tokens; a multiply-add counts 2.

    ``causal_once``: of a causal model's scores only the half that is not masked counts; else all (Megatron's
    convention, arXiv 2104.04473).  Backward counts twice the forward.  ``decoder_seq`` 0: as long.
    """
    seq = model.sequence(seq)
    total = sum(
        seq * (_attention(model, index, seq, causal_once) + _feed_forward(model, index))
        for index in range(model.layers)
    )
    if model.mtp_layers:
        last = model.layers - 1
        further = _attention(model, last, seq, causal_once) + _feed_forward(model, last)
        total += seq * model.mtp_layers * (further + 2 * model.hidden**2 + model.hidden * model.vocab)
    if model.decoder_layers:
        total += _decoder(model, seq, decoder_seq or seq, causal_once)
    elif model.family == "vit":
        total += model.num_patches * CHANNELS * model.patch_size**2 * model.hidden
        total += model.hidden * model.num_classes
    else:
        transform = model.hidden**2 if model.family == "bert" else 0
        total += seq * (model.hidden * model.vocab + transform)
    return 6.0 * total


def _decoder(model: ModelSpec, seq: int, decoder_seq: int, causal_once: bool) -> float:
    """Multiply-adds of decoder layers with cross-attention, and of the logits."""
    size, hidden = model.size_per_head, model.hidden
    scores = model.heads * decoder_seq * size * (1.0 if causal_once else 2.0)
    own = hidden * (model.heads + 2 * model.num_kv_heads) * size + model.heads * size * hidden + scores
    crossed = 2 * model.heads * size * hidden + model.heads * seq * size * 2.0
    each = decoder_seq * (own + crossed + _feed_forward(model, 0))
    each += seq * hidden * 2 * model.num_kv_heads * size
    return model.decoder_layers * each + decoder_seq * hidden * model.vocab


def _attention(model: ModelSpec, index: int, seq: int, causal_once: bool) -> float:
    """Multiply-adds a token."""
    hidden, heads = model.hidden, model.heads
    if model.mla is not None:
        mla = model.mla
        qk_size, v_size = mla.qk_nope_head_size + mla.qk_rope_head_size, mla.v_head_size
        query = hidden * heads * qk_size
        if mla.q_lora_rank:
            query = hidden * mla.q_lora_rank + mla.q_lora_rank * heads * qk_size
        keys = hidden * (mla.kv_lora_rank + mla.qk_rope_head_size)
        keys += mla.kv_lora_rank * heads * (mla.qk_nope_head_size + v_size)
        weights = query + keys + heads * v_size * hidden
    else:
        qk_size = v_size = model.size_per_head
        weights = hidden * (heads + 2 * model.num_kv_heads) * qk_size + heads * v_size * hidden
    window = model.window(index) or seq
    reach = float(min(seq, window))
    if model.causal and causal_once:
        reach -= reach**2 / (2 * seq)  # the first rows see fewer
    return weights + heads * reach * (qk_size + v_size)


def _feed_forward(model: ModelSpec, index: int) -> float:
    """Multiply-adds a token."""
    products = 3 if model.gated else 2
    moe = model.moe
    if moe is not None and model.has_experts(index):
        width = moe.top_k * moe.ffn + moe.shared_ffn
        return products * model.hidden * width + model.hidden * moe.num_experts
    return products * model.hidden * model.ffn
