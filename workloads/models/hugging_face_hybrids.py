"""What Hugging Face's configurations of models with state-space layers say, as keys of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from workloads.models.hugging_face_values import Values

#: Letters of layers by the words of ``layers_block_type``, as transformers 5 writes patterns.
_LETTERS: Final = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}


def _pattern(v: Values, key: str, words: str) -> str:
    """A pattern's letters; transformers 5 has a list of words in its place."""
    listed = v.kinds(words)
    if not listed:
        return v.text(key, "")
    wrong = next((word for word in listed if word not in _LETTERS), None)
    if wrong is not None:
        raise v.not_modelled(words, f"layers of kind {wrong!r}")
    return "".join(_LETTERS[word] for word in listed)


def _nemotron_h(v: Values) -> dict[str, Any]:
    """A block a layer, by a pattern; layers that predict further tokens have one of their own."""
    pattern = _pattern(v, "hybrid_override_pattern", "layers_block_type")
    further = v.number("num_nextn_predict_layers", 0)
    mamba = {
        "heads": v.number("mamba_num_heads", 128), "head_size": v.number("mamba_head_dim", 64),
        "state": v.number("ssm_state_size", 128), "groups": v.number("n_groups", 8),
        "conv": v.number("conv_kernel", 4), "chunk": v.number("chunk_size", 128),
    }  # fmt: skip
    found = {
        "family": "gpt", "layers": v.number("num_hidden_layers", len(pattern)),
        "hidden": v.number("hidden_size"),
        "heads": v.number("num_attention_heads"), "kv_heads": v.number("num_key_value_heads", 0, least=1),
        "head_size": v.number("head_dim", 0, least=1, or_key="attention_head_dim"),
        "ffn": v.number("intermediate_size"), "vocab": v.number("vocab_size"), "norm": "rmsnorm",
        "activation": v.activation("mlp_hidden_act", "relu2"), "bias": v.flag("mlp_bias", default=False),
        "qkv_bias": v.flag("attention_bias", default=False) or None, "positions": "none",
        "tied_embeddings": v.flag("tie_word_embeddings", default=False),
        "dropout": v.share("hidden_dropout"), "layer_pattern": pattern, "mtp_layers": further,
        "mtp_pattern": _pattern(v, "mtp_hybrid_override_pattern", "mtp_layers_block_type") if further else "",
    }  # fmt: skip
    if "M" in pattern:
        found["mamba"] = mamba
    if "E" in pattern:
        found["moe"] = {
            "num_experts": v.number("n_routed_experts"), "top_k": v.number("num_experts_per_tok"),
            "ffn": v.number("moe_intermediate_size"),
            "shared_ffn": v.number("moe_shared_expert_intermediate_size", 0),
            "latent": v.number("moe_latent_size", 0),
        }  # fmt: skip
    return found


#: model_type -> the description of its configuration.
HYBRIDS: Final[dict[str, Callable[[Values], dict[str, Any]]]] = {"nemotron_h": _nemotron_h}
