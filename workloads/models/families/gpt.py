"""GPT and Llama: one stack of layers whose tokens attend to earlier ones only."""

from __future__ import annotations

from workloads.models.embeddings import embed_tokens
from workloads.models.family import Family, register
from workloads.models.heads import predict_tokens
from workloads.models.spec import ModelSpec


def _multiply_adds(model: ModelSpec, seq: int, decoder_seq: int, causal_once: bool) -> float:
    del decoder_seq, causal_once
    return seq * model.hidden * model.vocab


for _name in ("gpt", "llama"):
    register(Family(_name, embed_tokens, predict_tokens, _multiply_adds, causal=True))
