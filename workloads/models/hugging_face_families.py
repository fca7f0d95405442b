"""What each of Hugging Face's configuration classes says, as keys of a model.

Where a key is missing, the class's default holds if it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from workloads.models.hugging_face_values import Values


def decoder(v: Values, ffn: int | None = None) -> dict[str, Any]:
    """What Llama and its kin share: RMSNorm, rotary positions, a gated block, no biases."""
    return {
        "family": "llama",
        "layers": v.number("num_hidden_layers"),
        "hidden": v.number("hidden_size"),
        "heads": v.number("num_attention_heads"),
        "kv_heads": v.number("num_key_value_heads", 0, least=1),
        "head_size": v.number("head_dim", 0, least=1),
        "ffn": v.number("intermediate_size", ffn),
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


def windows(v: Values, window: int, every: int = 0) -> dict[str, Any]:
    """Which layers attend to the last ``window`` tokens alone: ``layer_types``, else all but each n-th.

    Errors: InputError for layers of another kind, and for an order that is not "each n-th to everything".
    """
    kinds = v.kinds("layer_types")
    if any(kind not in ("full_attention", "sliding_attention") for kind in kinds):
        raise v.not_modelled("layer_types", "layers that do other than attend")
    near = [kind == "sliding_attention" for kind in kinds]
    if not any(near):
        return {"sliding_window": 0} if near else {"sliding_window": window, "global_every": every}
    if all(near):
        return {"sliding_window": window}
    every = near.index(False) + 1
    if near != [(index + 1) % every != 0 for index in range(len(near))]:
        raise v.not_modelled("layer_types", "windows in another order than all layers but each n-th")
    return {"sliding_window": window, "global_every": every}


def windowed(v: Values) -> dict[str, Any]:
    """Llama's with a sliding window, unless it is switched off."""
    window = v.number("sliding_window", 0)
    return {**decoder(v), **windows(v, window * v.flag("use_sliding_window", default=True))}


def qwen2(v: Values) -> dict[str, Any]:
    """Llama's with biases on queries, keys and values; the window only where it is switched on."""
    window = v.number("sliding_window", 0) * v.flag("use_sliding_window", default=False)
    return {**decoder(v), "qkv_bias": True, **windows(v, window)}


def qwen3(v: Values) -> dict[str, Any]:
    """Llama's with norms of queries and keys."""
    return {**decoder(v), "qk_norm": "head"}


def _ernie4_5(v: Values) -> dict[str, Any]:
    biased = v.flag("use_bias", default=False)
    tied = v.flag("tie_word_embeddings", default=True)
    return {**decoder(v), "bias": biased, "qkv_bias": biased or None, "tied_embeddings": tied}


def _internlm3(v: Values) -> dict[str, Any]:
    biased = v.flag("qkv_bias", default=False)
    return {**decoder(v), "bias": v.flag("bias", default=False), "qkv_bias": biased or None}


def _exaone4(v: Values) -> dict[str, Any]:
    """Norms of queries and keys, and of a sublayer's output in place of its input."""
    return {**qwen3(v), **windows(v, v.number("sliding_window", 4096))}


def _arcee(v: Values) -> dict[str, Any]:
    """Llama's with one product and a squared ReLU in place of the gated block."""
    return {**decoder(v), "gated": False, "activation": v.activation("hidden_act", "relu2")}


def _gemma(v: Values) -> dict[str, Any]:
    return {
        **decoder(v),
        "activation": "gelu",
        "head_size": v.number("head_dim", 256, least=1),
        "tied_embeddings": v.flag("tie_word_embeddings", default=True),
    }


def _gemma2(v: Values) -> dict[str, Any]:
    return {
        **_gemma(v),
        "post_norms": True,
        **windows(v, v.number("sliding_window", 4096), 2),
    }


def _gemma3(v: Values) -> dict[str, Any]:
    return {
        **_gemma(v), "post_norms": True, "qk_norm": "head",
        **windows(v, v.number("sliding_window", 4096), v.number("sliding_window_pattern", 6)),
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
        **_plain(v), "kv_heads": v.number("num_key_value_heads", 0, least=1), "positions": "rotary",
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
        kv_heads = v.number("num_kv_heads", heads, least=1)
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


def _gptj(v: Values) -> dict[str, Any]:
    hidden = v.number("n_embd")
    return {
        "layers": v.number("n_layer"), "hidden": hidden, "heads": v.number("n_head"),
        "ffn": v.number("n_inner", 4 * hidden), "vocab": v.number("vocab_size"), "positions": "rotary",
        "parallel_block": True, "shared_norm": True, "qkv_bias": False, "head_bias": True,
        "activation": v.activation("activation_function", "gelu_new"), "dropout": v.share("resid_pdrop"),
        "tied_embeddings": v.flag("tie_word_embeddings", default=False),
    }  # fmt: skip


def _gpt_neo(v: Values) -> dict[str, Any]:
    """Every other layer attends to a window, the first to all."""
    hidden = v.number("hidden_size")
    return {
        "layers": v.number("num_layers"), "hidden": hidden, "heads": v.number("num_heads"),
        "ffn": v.number("intermediate_size", 4 * hidden), "vocab": v.number("vocab_size"), "qkv_bias": False,
        "max_positions": v.number("max_position_embeddings"), "sliding_window": v.number("window_size", 256),
        "global_every": 2, "activation": v.activation("activation_function", "gelu_new"),
        "dropout": v.share("resid_dropout"), "tied_embeddings": v.flag("tie_word_embeddings", default=True),
    }  # fmt: skip


def _gpt_bigcode(v: Values) -> dict[str, Any]:
    heads = v.number("n_head")
    return {**_gpt2(v), "kv_heads": 1 if v.flag("multi_query", default=True) else heads}


def _starcoder2(v: Values) -> dict[str, Any]:
    return {
        **_plain(v), "kv_heads": v.number("num_key_value_heads", 2, least=1), "positions": "rotary",
        "bias": v.flag("use_bias", default=True), "sliding_window": v.number("sliding_window", 0),
        "activation": v.activation("hidden_act", "gelu_pytorch_tanh"), "dropout": v.share("residual_dropout"),
        "tied_embeddings": v.flag("tie_word_embeddings", default=True),
    }  # fmt: skip


def _mpt(v: Values) -> dict[str, Any]:
    hidden, attention = v.number("d_model"), v.inner("attn_config")
    return {
        "layers": v.number("n_layers"), "hidden": hidden, "heads": v.number("n_heads"),
        "kv_heads": attention.number("kv_n_heads", 0, least=1),
        "ffn": v.number("expansion_ratio", 4) * hidden,
        "vocab": v.number("vocab_size"), "bias": not v.flag("no_bias", default=True),
        "positions": "alibi" if attention.flag("alibi", default=True) else "learned",
        "dropout": v.share("resid_pdrop"), "tied_embeddings": v.flag("tie_word_embeddings", default=True),
    }  # fmt: skip


def _nemotron(v: Values) -> dict[str, Any]:
    return {
        **decoder(v), "family": "gpt", "gated": False, "activation": v.activation("hidden_act", "relu2"),
        "norm": "layernorm",
    }  # fmt: skip


def _layer_normed(v: Values) -> dict[str, Any]:
    return {**decoder(v), "norm": "layernorm"}


def _stablelm(v: Values) -> dict[str, Any]:
    return {
        **_layer_normed(v), "qkv_bias": v.flag("use_qkv_bias", default=False),
        "parallel_block": v.flag("use_parallel_residual", default=False),
        "shared_norm": v.flag("use_parallel_residual", default=False),
    }  # fmt: skip


def _cohere(v: Values) -> dict[str, Any]:
    return {
        **_layer_normed(v), "parallel_block": True, "shared_norm": True,
        "qk_norm": "head" if v.flag("use_qk_norm", default=False) else "",
        "tied_embeddings": v.flag("tie_word_embeddings", default=True),
    }  # fmt: skip


def _cohere2(v: Values) -> dict[str, Any]:
    return {
        **_cohere(v),
        **windows(v, v.number("sliding_window", 4096), v.number("sliding_window_pattern", 4)),
    }


def _glm4(v: Values) -> dict[str, Any]:
    return {**decoder(v), "post_norms": True}


#: model_type -> the description of its configuration.
FAMILIES: Final[dict[str, Callable[[Values], dict[str, Any]]]] = {
    "llama": decoder, "granite": decoder, "smollm3": decoder, "seed_oss": decoder, "internlm2": decoder,
    "helium": decoder, "internlm3": _internlm3, "ernie4_5": _ernie4_5, "exaone4": _exaone4, "arcee": _arcee,
    "glm": decoder, "glm4": _glm4, "glm4v_text": lambda v: {**_glm4(v), "qkv_bias": True},
    "mistral": windowed, "ministral": windowed, "ministral3": windowed, "phi3": windowed,
    "qwen2": qwen2, "qwen2_vl": qwen2, "qwen2_vl_text": qwen2, "qwen2_5_vl": qwen2, "qwen2_5_vl_text": qwen2,
    "qwen3": qwen3, "qwen3_vl_text": qwen3, "hunyuan_v1_dense": qwen3,
    "gemma": _gemma, "gemma2": _gemma2, "gemma3_text": _gemma3, "olmo": _layer_normed,
    "vaultgemma": lambda v: {**_gemma2(v), "post_norms": False},
    "olmo2": lambda v: {**decoder(v), "qk_norm": "all"}, "olmo3": lambda v: {**windowed(v), "qk_norm": "all"},
    "nemotron": _nemotron, "stablelm": _stablelm, "cohere": _cohere, "cohere2": _cohere2,
    "gpt2": _gpt2, "gptj": _gptj, "gpt_neo": _gpt_neo, "gpt_neox": _gpt_neox, "gpt_bigcode": _gpt_bigcode,
    "starcoder2": _starcoder2, "phi": _phi, "opt": _opt, "bloom": _bloom, "falcon": _falcon, "mpt": _mpt,
    "bert": _bert, "roberta": _bert, "xlm-roberta": _bert, "camembert": _bert, "t5": _t5, "mt5": _t5,
    "umt5": _t5, "vit": _vit, "deit": _vit,
}  # fmt: skip
