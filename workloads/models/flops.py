"""Model flops and parameter counts: what the mathematics needs, whatever a build recomputes or pads."""

from __future__ import annotations

from workloads.models.block import block_of
from workloads.models.embeddings import CHANNELS
from workloads.models.spec import ModelSpec


def model_flops(model: ModelSpec, seq: int, *, causal_once: bool, decoder_seq: int = 0) -> float:
    """Forward and backward flops of one sample of ``seq`` tokens; a multiply-add counts 2.

    ``causal_once``: of a causal model's scores only the half that is not masked counts; else all (Megatron's
    convention, arXiv 2104.04473).  Backward counts twice the forward.  ``decoder_seq`` 0: as long.
    """
    seq = model.sequence(seq)
    total = sum(seq * _layer(model, index, seq, causal_once) for index in range(model.layers))
    if model.mtp_layers:
        further = _layer(model, model.layers - 1, seq, causal_once)
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
    each = decoder_seq * (
        own + crossed + block_of(model, "feed_forward", 0).multiply_adds(model, 0, seq, causal_once)
    )
    each += seq * hidden * 2 * model.num_kv_heads * size
    return model.decoder_layers * each + decoder_seq * hidden * model.vocab


def _layer(model: ModelSpec, index: int, seq: int, causal_once: bool) -> float:
    """Multiply-adds a token."""
    return sum(
        block_of(model, place, index).multiply_adds(model, index, seq, causal_once)
        for place in ("attention", "feed_forward")
    )
