"""Model flops and parameter counts: what the mathematics needs, whatever a build recomputes or pads."""

from __future__ import annotations

from simcore.elementary import plain_sum
from workloads.models.block import blocks_of
from workloads.models.family import FAMILIES
from workloads.models.spec import ModelSpec


def model_flops(model: ModelSpec, seq: int, *, causal_once: bool, decoder_seq: int = 0) -> float:
    """Forward and backward flops of one sample of ``seq`` tokens; a multiply-add counts 2.

    ``causal_once``: of a causal model's scores only the half that is not masked counts; else all (Megatron's
    convention, arXiv 2104.04473).  Backward counts twice the forward.  ``decoder_seq`` 0: as long.
    """
    seq = model.sequence(seq)
    total = plain_sum(seq * _layer(model, index, seq, causal_once) for index in range(model.layers))
    if model.mtp_layers:
        further = _layer(model, model.layers - 1, seq, causal_once, model.mtp_pattern or None)
        total += seq * model.mtp_layers * (further + 2 * model.hidden**2 + model.hidden * model.vocab)
    total += FAMILIES[model.family].multiply_adds(model, seq, decoder_seq or seq, causal_once)
    return 6.0 * total


def _layer(model: ModelSpec, index: int, seq: int, causal_once: bool, letters: str | None = None) -> float:
    """Multiply-adds a token."""
    return plain_sum(
        block.multiply_adds(model, index, seq, causal_once) for block in blocks_of(model, index, letters)
    )
