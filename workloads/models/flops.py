"""Model flops: what the mathematics needs, whatever a build recomputes or pads."""

from __future__ import annotations

from workloads.models.layers import has_experts
from workloads.models.spec import ModelSpec


def model_flops(model: ModelSpec, seq: int, *, causal_once: bool) -> float:
    """Forward and backward flops of one sample of ``seq`` tokens; a multiply-add counts 2.

    ``causal_once``: of a causal model's scores only the half that is not masked counts; else all (Megatron's
    convention, arXiv 2104.04473).  Backward counts twice the forward.
    """
    forward = sum(_layer(model, seq, index, causal_once) for index in range(model.layers))
    forward += 2.0 * seq * model.hidden * model.vocab
    return 3.0 * forward


def _layer(model: ModelSpec, seq: int, index: int, causal_once: bool) -> float:
    hidden, heads = model.hidden, model.heads
    if model.mla is not None:
        mla = model.mla
        qk_size, v_size = mla.qk_nope_head_size + mla.qk_rope_head_size, mla.v_head_size
        query = hidden * mla.q_lora_rank + mla.q_lora_rank * heads * qk_size if mla.q_lora_rank else (
            hidden * heads * qk_size
        )  # fmt: skip
        keys = hidden * (mla.kv_lora_rank + mla.qk_rope_head_size)
        keys += mla.kv_lora_rank * heads * (mla.qk_nope_head_size + v_size)
        weights = query + keys + heads * v_size * hidden
    else:
        qk_size = v_size = model.size_per_head
        weights = hidden * (heads + 2 * model.num_kv_heads) * qk_size + heads * v_size * hidden
    reach = min(seq, model.sliding_window) if model.sliding_window else seq
    scores = float(heads * reach * (qk_size + v_size))  # multiply-adds a token
    if model.causal and causal_once and reach == seq:
        scores /= 2
    up = 2 if model.gated else 1
    if has_experts(model, index) and model.moe is not None:
        width = model.moe.top_k * model.moe.ffn + model.moe.shared_ffn
        ffn = (up + 1) * hidden * width + hidden * model.moe.num_experts
    else:
        ffn = (up + 1) * hidden * model.ffn
    return 2.0 * seq * (weights + scores + ffn)
