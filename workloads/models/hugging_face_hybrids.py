"""What Hugging Face's configurations of models whose layers differ say, as keys of a model: state-space and
delta-rule layers beside attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from workloads.models.hugging_face_families import decoder
from workloads.models.hugging_face_values import Values

#: Letters of layers by the words of ``layers_block_type``, as transformers 5 writes patterns.
_LETTERS: Final = {
    "mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E",
}  # fmt: skip


def _pattern(v: Values, key: str, words: str) -> str:
    """A pattern's letters; transformers 5 has a list of words in its place."""
    listed = v.kinds(words)
    return _letters(v, words, listed, _LETTERS) if listed else v.text(key, "")


def _letters(v: Values, key: str, listed: list[str], known: dict[str, str]) -> str:
    wrong = next((word for word in listed if word not in known), None)
    if wrong is not None:
        raise v.not_modelled(key, f"layers of kind {wrong!r}")
    return "".join(known[word] for word in listed)


def _mixed(v: Values, other: str, kinds: list[str], behind: str) -> str:
    """Two letters a layer: attention or the ``other`` kind, by ``layer_types``, and what comes ``behind``."""
    known = {"full_attention": "*", "attention": "*", "linear_attention": other, "mamba": other}
    return "".join(f"{letter}{behind}" for letter in _letters(v, "layer_types", kinds, known))


def _each(v: Values, every: int) -> list[str]:
    """``layer_types`` as said, else full attention in each n-th layer."""
    layers = range(v.number("num_hidden_layers"))
    kinds = ["linear_attention" if (k + 1) % every else "full_attention" for k in layers]
    return v.kinds("layer_types") or kinds


def _delta(v: Values, heads: int | None = None, sizes: tuple[int, int] = (128, 128)) -> dict[str, Any]:
    return {
        "heads": v.number("linear_num_value_heads", heads or 32),
        "key_heads": v.number("linear_num_key_heads", heads or 16),
        "key_size": v.number("linear_key_head_dim", sizes[0]),
        "value_size": v.number("linear_value_head_dim", sizes[1]),
        "conv": v.number("linear_conv_kernel_dim", 4),
    }  # fmt: skip


def _qwen3_5(v: Values, behind: str = "-", ffn: int | None = None) -> dict[str, Any]:
    """Delta-rule layers; attention in each fourth, weighted by a gate."""
    return {
        **decoder(v, ffn=ffn), "head_size": v.number("head_dim", 256, least=1), "qk_norm": "head",
        "attention_gate": True, "delta": _delta(v),
        "layer_pattern": _mixed(v, "G", _each(v, v.number("full_attention_interval", 4)), behind),
    }  # fmt: skip


def _qwen3_next(v: Values) -> dict[str, Any]:
    """The same with experts in every layer."""
    v.empty("mlp_only_layers", "single layers without experts")
    if v.number("decoder_sparse_step", 1) != 1:
        raise v.not_modelled("decoder_sparse_step", "layers without experts")
    width, shared = v.number("moe_intermediate_size"), v.number("shared_expert_intermediate_size", 0)
    experts = {
        "num_experts": v.number("num_experts"), "top_k": v.number("num_experts_per_tok"), "ffn": width,
        "shared_ffn": shared, "shared_gate": shared > 0,
    }  # fmt: skip
    return {**_qwen3_5(v, "E", width), "moe": experts}


def _olmo_hybrid(v: Values) -> dict[str, Any]:
    """A norm behind attention's blocks in place of one before them: as many."""
    heads, hidden = v.number("num_attention_heads"), v.number("hidden_size")
    keys = 3 * hidden // (4 * v.number("linear_num_key_heads", heads))
    return {
        **decoder(v), "qk_norm": "all", "layer_pattern": _mixed(v, "G", _each(v, 4), "-"),
        "delta": _delta(v, heads, (keys, 2 * v.number("linear_key_head_dim", keys))),
    }  # fmt: skip


def _mamba(v: Values) -> dict[str, Any]:
    """Sizes as Bamba and Granite 4 name them."""
    heads, inner = v.number("mamba_n_heads", 128), v.number("mamba_expand", 2) * v.number("hidden_size")
    auto = v.said("mamba_d_head") in (None, "auto")
    return {
        "heads": heads, "head_size": inner // max(1, heads) if auto else v.number("mamba_d_head"),
        "state": v.number("mamba_d_state", 256), "groups": v.number("mamba_n_groups", 1),
        "conv": v.number("mamba_d_conv", 4), "chunk": v.number("mamba_chunk_size", 256),
    }  # fmt: skip


def _falcon_h1(v: Values) -> dict[str, Any]:
    """Both kinds of heads in every layer, and a feed-forward block."""
    for key in ("projectors_bias", "mamba_proj_bias"):
        if v.flag(key, default=False):
            raise v.not_modelled(key, "biases of mixers")
    heads, inner = v.number("mamba_n_heads", 128), v.number("mamba_d_ssm", 0)
    inner = inner or v.number("mamba_expand", 2) * v.number("hidden_size")
    sizes = {"head_size": inner // max(1, heads), "normed": v.flag("mamba_rms_norm", default=False)}
    return {
        **decoder(v), "mamba": {**_mamba(v), **sizes}, "layer_pattern": "H-" * v.number("num_hidden_layers"),
    }  # fmt: skip


def _bamba(v: Values) -> dict[str, Any]:
    attends = v.indices("attn_layer_indices")
    layers = range(v.number("num_hidden_layers"))
    kinds = ["attention" if k in attends else "mamba" for k in layers]
    return {**decoder(v), "mamba": _mamba(v), "layer_pattern": _mixed(v, "M", kinds, "-")}


def _granite(v: Values) -> dict[str, Any]:
    """Experts and a shared block beside them, or without experts that block alone."""
    layers, experts = v.number("num_hidden_layers"), v.number("num_local_experts", 0)
    shared = v.number("shared_intermediate_size", 1024)
    kinds = v.kinds("layer_types") or v.kinds("layers_block_type") or ["mamba"] * layers
    found = {
        **decoder(v), "ffn": shared, "mamba": _mamba(v),
        "positions": "rotary" if v.text("position_embedding_type", "") == "rope" else "none",
        "layer_pattern": _mixed(v, "M", kinds, "E" if experts else "-"),
    }  # fmt: skip
    if experts:
        width = v.number("intermediate_size")
        found["moe"] = {"num_experts": experts, "top_k": v.number("num_experts_per_tok", 2), "ffn": width,
                        "shared_ffn": shared}  # fmt: skip
    return found


def _mamba2(v: Values) -> dict[str, Any]:
    """State-space layers alone; no layer has the heads of attention or the width that a model must name."""
    heads, size = v.number("num_heads"), v.number("head_dim", 64)
    layers, hidden = v.number("num_hidden_layers"), v.number("hidden_size")
    return {
        "family": "gpt", "layers": layers, "hidden": hidden, "heads": 1, "ffn": 4 * hidden,
        "vocab": v.number("vocab_size"), "norm": "rmsnorm", "bias": False, "positions": "none",
        "tied_embeddings": v.flag("tie_word_embeddings", default=False), "layer_pattern": "M" * layers,
        "mamba": {
            "heads": heads, "head_size": size, "state": v.number("state_size", 128),
            "groups": v.number("n_groups", 8), "conv": v.number("conv_kernel", 4),
            "chunk": v.number("chunk_size", 256),
        },
    }  # fmt: skip


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


def _lfm2(v: Values) -> dict[str, Any]:
    """Gated convolutions but for some layers of attention; a feed-forward block behind each, or experts."""
    layers = v.number("num_hidden_layers")
    if v.flag("conv_bias", default=False):
        raise v.not_modelled("conv_bias", "biases of gated convolutions")
    attends = v.indices("full_attn_idxs") or range(layers)
    kinds = v.kinds("layer_types") or ["full_attention" if k in attends else "conv" for k in range(layers)]
    letters = _letters(v, "layer_types", kinds, {"conv": "C", "full_attention": "*"})
    width, experts = v.number("intermediate_size", or_key="block_ff_dim"), v.number("num_experts", 0)
    dense = v.number("num_dense_layers", 2) if experts else layers
    if not experts and v.flag("block_auto_adjust_ff_dim", default=True):
        width = int(v.factor("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        each = v.number("block_multiple_of", 256, least=1)
        width = -(-width // each) * each
    found = {
        **decoder(v, ffn=width), "ffn": width, "qk_norm": "head",
        "gated_conv": {"tokens": v.number("conv_L_cache", 3)},
        "tied_embeddings": v.flag("tie_word_embeddings", default=True),
        "layer_pattern": "".join(f"{letter}{'-' if k < dense else 'E'}" for k, letter in enumerate(letters)),
    }  # fmt: skip
    if experts:
        found["moe"] = {"num_experts": experts, "top_k": v.number("num_experts_per_tok", 4),
                        "ffn": v.number("moe_intermediate_size")}  # fmt: skip
    return found


#: model_type -> the description of its configuration.
HYBRIDS: Final[dict[str, Callable[[Values], dict[str, Any]]]] = {
    "nemotron_h": _nemotron_h, "qwen3_next": _qwen3_next, "qwen3_5_text": _qwen3_5,
    "qwen3_5_moe_text": _qwen3_next, "olmo_hybrid": _olmo_hybrid, "bamba": _bamba,
    "granitemoehybrid": _granite, "mamba2": _mamba2, "lfm2": _lfm2, "lfm2_moe": _lfm2,
    "falcon_h1": _falcon_h1,
}  # fmt: skip
