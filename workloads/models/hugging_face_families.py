"""What each of Hugging Face's configuration classes says, as keys of a model.

Where a key is missing, the class's default holds if it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from workloads.models.hugging_face_values import Values


def _decoder(v: Values) -> dict[str, Any]:
    """What Llama and its kin share: RMSNorm, rotary positions, a gated block, no biases."""
    return {
        "family": "llama",
        "layers": v.number("num_hidden_layers"),
        "hidden": v.number("hidden_size"),
        "heads": v.number("num_attention_heads"),
        "kv_heads": v.number("num_key_value_heads", 0),
        "head_size": v.number("head_dim", 0),
        "ffn": v.number("intermediate_size"),
        "vocab": v.number("vocab_size"),
        "gated": True,
        "activation": v.activation("hidden_act", "silu"),
        "norm": "rmsnorm",
        "bias": v.flag("mlp_bias", default=False),
        "qkv_bias": v.flag("attention_bias", default=False) or None,
        "positions": "rotary",
        "tied_embeddings": v.flag("tie_word_embeddings", default=False),
        "dropout": v.share("hidden_dropout"),
    }


def _windowed(v: Values) -> dict[str, Any]:
    window = v.number("sliding_window", 0) if v.flag("use_sliding_window", default=True) else 0
    return {**_decoder(v), "sliding_window": window}


def _qwen2(v: Values) -> dict[str, Any]:
    window = v.number("sliding_window", 0) if v.flag("use_sliding_window", default=False) else 0
    return {**_decoder(v), "qkv_bias": True, "sliding_window": window}


def _qwen3(v: Values) -> dict[str, Any]:
    return {**_decoder(v), "qk_norm": "head"}


def _mixtral(v: Values) -> dict[str, Any]:
    experts = {
        "num_experts": v.number("num_local_experts"),
        "top_k": v.number("num_experts_per_tok"),
        "ffn": v.number("intermediate_size"),
    }
    return {**_windowed(v), "moe": experts}


def _qwen_experts(v: Values) -> dict[str, Any]:
    shared = v.number("shared_expert_intermediate_size", 0)
    return {
        "num_experts": v.number("num_experts"),
        "top_k": v.number("num_experts_per_tok"),
        "ffn": v.number("moe_intermediate_size"),
        "shared_ffn": shared,
        "shared_gate": shared > 0,
        "every": v.number("decoder_sparse_step", 1),
        "first_layer": v.number("decoder_sparse_step", 1) - 1,
    }


def _deepseek(v: Values) -> dict[str, Any]:
    latent = {
        "q_lora_rank": v.number("q_lora_rank", 0),
        "kv_lora_rank": v.number("kv_lora_rank"),
        "qk_nope_head_size": v.number("qk_nope_head_dim"),
        "qk_rope_head_size": v.number("qk_rope_head_dim"),
        "v_head_size": v.number("v_head_dim"),
    }
    width = v.number("moe_intermediate_size")
    experts = {
        "num_experts": v.number("n_routed_experts"),
        "top_k": v.number("num_experts_per_tok"),
        "ffn": width,
        "shared_ffn": width * v.number("n_shared_experts", 0),
        "first_layer": v.number("first_k_dense_replace", 0),
        "every": v.number("moe_layer_freq", 1),
    }
    if (groups := v.number("n_group", 1)) > 1:
        experts |= {"num_groups": groups, "top_groups": v.number("topk_group", groups)}
    return {**_decoder(v), "kv_heads": 0, "head_size": 0, "mla": latent, "moe": experts}


def _gemma(v: Values) -> dict[str, Any]:
    return {
        **_decoder(v),
        "activation": "gelu",
        "head_size": v.number("head_dim", 256),
        "tied_embeddings": v.flag("tie_word_embeddings", default=True),
    }


def _gemma2(v: Values) -> dict[str, Any]:
    return {
        **_gemma(v),
        "post_norms": True,
        "sliding_window": v.number("sliding_window", 4096),
        "global_every": 2,
    }


def _gemma3(v: Values) -> dict[str, Any]:
    return {
        **_gemma(v), "post_norms": True, "qk_norm": "head",
        "sliding_window": v.number("sliding_window", 4096),
        "global_every": v.number("sliding_window_pattern", 6),
    }  # fmt: skip


def _gpt2(v: Values) -> dict[str, Any]:
    hidden = v.number("n_embd")
    return {
        "layers": v.number("n_layer"), "hidden": hidden, "heads": v.number("n_head"),
        "ffn": v.number("n_inner", 4 * hidden), "vocab": v.number("vocab_size"),
        "max_positions": v.number("n_positions"), "dropout": v.share("resid_pdrop"),
        "activation": v.activation("activation_function", "gelu_new"),
        "tied_embeddings": v.flag("tie_word_embeddings", default=True),
    }  # fmt: skip


def _gpt_neox(v: Values) -> dict[str, Any]:
    return {
        **_plain(v), "positions": "rotary", "parallel_block": v.flag("use_parallel_residual", default=True),
        "tied_embeddings": v.flag("tie_word_embeddings", default=False),
        "activation": v.activation("hidden_act", "gelu"), "dropout": v.share("hidden_dropout"),
    }  # fmt: skip


def _plain(v: Values) -> dict[str, Any]:
    """LayerNorm, biases, a plain block."""
    return {
        "layers": v.number("num_hidden_layers"), "hidden": v.number("hidden_size"),
        "heads": v.number("num_attention_heads"), "ffn": v.number("intermediate_size"),
        "vocab": v.number("vocab_size"),
    }  # fmt: skip


def _phi(v: Values) -> dict[str, Any]:
    return {
        **_plain(v), "kv_heads": v.number("num_key_value_heads", 0), "positions": "rotary",
        "parallel_block": True, "shared_norm": True, "tied_embeddings": False, "head_bias": True,
        "activation": v.activation("hidden_act", "gelu_new"), "dropout": v.share("resid_pdrop"),
    }  # fmt: skip


def _opt(v: Values) -> dict[str, Any]:
    return {
        "layers": v.number("num_hidden_layers"), "hidden": v.number("hidden_size"),
        "heads": v.number("num_attention_heads"), "ffn": v.number("ffn_dim"), "vocab": v.number("vocab_size"),
        # OPT's table has two rows more than positions.
        "max_positions": v.number("max_position_embeddings") + 2,
        "activation": v.activation("activation_function", "relu"), "dropout": v.share("dropout"),
        "tied_embeddings": v.flag("tie_word_embeddings", default=True),
    }  # fmt: skip


def _bloom(v: Values) -> dict[str, Any]:
    hidden = v.number("hidden_size", v.number("n_embed", 0)) or v.number("hidden_size")
    return {
        "layers": v.number("n_layer"), "hidden": hidden, "heads": v.number("n_head"), "ffn": 4 * hidden,
        "vocab": v.number("vocab_size"), "positions": "alibi", "embedding_norm": True,
        "dropout": v.share("hidden_dropout"), "tied_embeddings": v.flag("tie_word_embeddings", default=True),
    }  # fmt: skip


def _falcon(v: Values) -> dict[str, Any]:
    hidden, new = v.number("hidden_size"), v.flag("new_decoder_architecture", default=False)
    heads = v.number("num_attention_heads")
    kv_heads = heads if not v.flag("multi_query", default=True) else 1
    if new:
        kv_heads = v.number("num_kv_heads", heads)
    return {
        "layers": v.number("num_hidden_layers"), "hidden": hidden, "heads": heads, "kv_heads": kv_heads,
        "ffn": v.number("ffn_hidden_size", 4 * hidden), "vocab": v.number("vocab_size"),
        "bias": v.flag("bias", default=False), "parallel_block": v.flag("parallel_attn", default=True),
        "shared_norm": not new, "positions": "alibi" if v.flag("alibi", default=False) else "rotary",
        "dropout": v.share("hidden_dropout"), "tied_embeddings": v.flag("tie_word_embeddings", default=True),
    }  # fmt: skip


def _bert(v: Values) -> dict[str, Any]:
    return {
        **_plain(v), "family": "bert", "max_positions": v.number("max_position_embeddings"),
        "token_types": v.number("type_vocab_size", 2), "activation": v.activation("hidden_act", "gelu"),
        "dropout": v.share("hidden_dropout_prob"),
    }  # fmt: skip


def _t5(v: Values) -> dict[str, Any]:
    layers = v.number("num_layers")
    how = v.text("feed_forward_proj", "relu")
    name = {"gated-gelu": "gelu", "gated-silu": "silu"}.get(how, how)
    return {
        "family": "t5", "layers": layers, "decoder_layers": v.number("num_decoder_layers", layers),
        "hidden": v.number("d_model"), "heads": v.number("num_heads"), "head_size": v.number("d_kv"),
        "ffn": v.number("d_ff"), "vocab": v.number("vocab_size"), "gated": how.startswith("gated"),
        "activation": name, "norm": "rmsnorm", "bias": False, "positions": "relative",
        "relative_buckets": v.number("relative_attention_num_buckets", 32),
        "dropout": v.share("dropout_rate"), "tied_embeddings": v.flag("tie_word_embeddings", default=True),
    }  # fmt: skip


def _vit(v: Values) -> dict[str, Any]:
    return {
        "family": "vit", "layers": v.number("num_hidden_layers"), "hidden": v.number("hidden_size"),
        "heads": v.number("num_attention_heads"), "ffn": v.number("intermediate_size"),
        "image_size": v.number("image_size"), "patch_size": v.number("patch_size"), "positions": "none",
        "num_classes": v.labels(), "activation": v.activation("hidden_act", "gelu"),
        "dropout": v.share("hidden_dropout_prob"),
    }  # fmt: skip


#: model_type -> the description of its configuration.
FAMILIES: Final[dict[str, Callable[[Values], dict[str, Any]]]] = {
    "llama": _decoder, "mistral": _windowed, "mixtral": _mixtral, "qwen2": _qwen2, "qwen3": _qwen3,
    "qwen2_moe": lambda v: {**_qwen2(v), "moe": _qwen_experts(v)},
    "qwen3_moe": lambda v: {**_qwen3(v), "moe": _qwen_experts(v)},
    "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "kimi_k2": _deepseek, "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3, "gpt2": _gpt2, "gpt_neox": _gpt_neox, "phi": _phi, "phi3": _windowed, "opt": _opt,
    "bloom": _bloom, "falcon": _falcon, "bert": _bert, "t5": _t5, "vit": _vit,
}  # fmt: skip
