"""Hugging Face ``config.json`` as a model: one reader per family of architectures.

Keys are those of ``transformers``' configuration classes, defaults too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from simcore.errors import InputError, nearest
from workloads.descriptions.named import LLAMA

_ACTIVATIONS: Final = {
    "silu": "silu", "swish": "silu", "relu": "relu", "relu2": "squared_relu", "gelu": "gelu",
    "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu",
}  # fmt: skip


@dataclass(frozen=True)
class _Config:
    """A configuration and where it stands, for messages."""

    content: Mapping[str, Any]
    where: str

    def whole(self, *keys: str, default: int | None = None) -> int:
        """The first of ``keys`` that is given, a whole number.  InputError when it is missing or none."""
        for key in keys:
            value = self.content.get(key)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                    raise InputError(f"{self.where}: {key} must be a whole number, not {value!r}")
                return value
        if default is None:
            raise InputError(f"{self.where}: {keys[0]} is missing")
        return default

    def share(self, *keys: str) -> float:
        """A probability, 0 when not given."""
        for key in keys:
            value = self.content.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        return 0.0

    def activation(self, key: str, default: str) -> str:
        """An activation by the name that the simulator has for it."""
        name = str(self.content.get(key) or default)
        if name not in _ACTIVATIONS:
            raise InputError(f"{self.where}: {key}: unknown activation {name!r}{nearest(name, _ACTIVATIONS)}")
        return _ACTIVATIONS[name]


def model_fields(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fields of a :class:`ModelSpec`.  InputError for an unknown ``model_type`` or missing dimensions."""
    kind = content.get("model_type")
    if not isinstance(kind, str):
        raise InputError(f"{where}: model_type is missing: this is no Hugging Face config.json")
    if kind not in _READERS:
        raise InputError(f"{where}: model_type {kind!r} is not known{nearest(kind, _READERS)}")
    return _READERS[kind](_Config(content, where))


def _llama(config: _Config) -> dict[str, Any]:
    content = config.content
    heads = config.whole("num_attention_heads")
    windowed = content.get("use_sliding_window", content.get("model_type") in ("mistral", "mixtral"))
    return {
        **LLAMA,
        "layers": config.whole("num_hidden_layers"),
        "hidden": config.whole("hidden_size"),
        "heads": heads,
        "kv_heads": config.whole("num_key_value_heads", default=heads),
        "head_size": config.whole("head_dim", default=0),
        "ffn": config.whole("intermediate_size"),
        "activation": config.activation("hidden_act", "silu"),
        "vocab": config.whole("vocab_size"),
        "tied_embeddings": bool(content.get("tie_word_embeddings", False)),
        "sliding_window": config.whole("sliding_window", default=0) if windowed else 0,
    }


def _mixtral(config: _Config) -> dict[str, Any]:
    moe = {
        "num_experts": config.whole("num_local_experts"),
        "top_k": config.whole("num_experts_per_tok"),
        "ffn": config.whole("intermediate_size"),
    }
    return {**_llama(config), "moe": moe}


def _qwen_moe(config: _Config) -> dict[str, Any]:
    moe = {
        "num_experts": config.whole("num_experts"),
        "top_k": config.whole("num_experts_per_tok"),
        "ffn": config.whole("moe_intermediate_size"),
        "shared_ffn": config.whole("shared_expert_intermediate_size", default=0),
        "every": config.whole("decoder_sparse_step", default=1),
    }
    return {**_llama(config), "moe": moe}


def _deepseek(config: _Config) -> dict[str, Any]:
    width = config.whole("moe_intermediate_size")
    fields = _llama(config)
    fields["head_size"] = 0
    if config.content.get("n_routed_experts"):
        fields["moe"] = {
            "num_experts": config.whole("n_routed_experts"),
            "top_k": config.whole("num_experts_per_tok"),
            "ffn": width,
            "shared_ffn": config.whole("n_shared_experts", default=0) * width,
            "first_layer": config.whole("first_k_dense_replace", default=0),
            "every": config.whole("moe_layer_freq", default=1),
        }
    fields["mla"] = {
        "q_lora_rank": config.whole("q_lora_rank", default=0),
        "kv_lora_rank": config.whole("kv_lora_rank"),
        "qk_nope_head_size": config.whole("qk_nope_head_dim"),
        "qk_rope_head_size": config.whole("qk_rope_head_dim"),
        "v_head_size": config.whole("v_head_dim"),
    }
    return fields


def _gpt2(config: _Config) -> dict[str, Any]:
    hidden = config.whole("n_embd")
    return {
        "layers": config.whole("n_layer"),
        "hidden": hidden,
        "heads": config.whole("n_head"),
        "ffn": config.whole("n_inner", default=4 * hidden),
        "activation": config.activation("activation_function", "gelu_new"),
        "dropout": config.share("resid_pdrop"),
        "max_positions": config.whole("n_positions", default=0),
        "vocab": config.whole("vocab_size"),
        "tied_embeddings": bool(config.content.get("tie_word_embeddings", True)),
    }


def _gpt_neox(config: _Config) -> dict[str, Any]:
    return {
        "layers": config.whole("num_hidden_layers"),
        "hidden": config.whole("hidden_size"),
        "heads": config.whole("num_attention_heads"),
        "ffn": config.whole("intermediate_size"),
        "activation": config.activation("hidden_act", "gelu"),
        "positions": "rotary",
        "vocab": config.whole("vocab_size"),
        "tied_embeddings": bool(config.content.get("tie_word_embeddings", False)),
    }


def _opt(config: _Config) -> dict[str, Any]:
    return {
        "layers": config.whole("num_hidden_layers"),
        "hidden": config.whole("hidden_size"),
        "heads": config.whole("num_attention_heads"),
        "ffn": config.whole("ffn_dim"),
        "activation": config.activation("activation_function", "relu"),
        "dropout": config.share("dropout"),
        "max_positions": config.whole("max_position_embeddings", default=0),
        "vocab": config.whole("vocab_size"),
    }


def _bloom(config: _Config) -> dict[str, Any]:
    hidden = config.whole("hidden_size", "n_embed")
    return {
        "layers": config.whole("n_layer", "num_hidden_layers"),
        "hidden": hidden,
        "heads": config.whole("n_head", "num_attention_heads"),
        "ffn": 4 * hidden,
        "positions": "alibi",
        "dropout": config.share("hidden_dropout"),
        "vocab": config.whole("vocab_size"),
    }


def _bert(config: _Config) -> dict[str, Any]:
    return {
        "family": "bert",
        "layers": config.whole("num_hidden_layers"),
        "hidden": config.whole("hidden_size"),
        "heads": config.whole("num_attention_heads"),
        "ffn": config.whole("intermediate_size"),
        "activation": config.activation("hidden_act", "gelu"),
        "dropout": config.share("hidden_dropout_prob"),
        "max_positions": config.whole("max_position_embeddings", default=0),
        "vocab": config.whole("vocab_size"),
    }


def _t5(config: _Config) -> dict[str, Any]:
    layers = config.whole("num_layers")
    words = str(config.content.get("feed_forward_proj", "relu")).split("-")
    return {
        "family": "t5",
        "layers": layers,
        "decoder_layers": config.whole("num_decoder_layers", default=layers),
        "hidden": config.whole("d_model"),
        "heads": config.whole("num_heads"),
        "head_size": config.whole("d_kv", default=0),
        "ffn": config.whole("d_ff"),
        "gated": words[0] == "gated",
        "activation": _Config({"feed_forward_proj": words[-1]}, config.where).activation(
            "feed_forward_proj", "relu"
        ),
        "norm": "rmsnorm",
        "bias": False,
        "positions": "none",
        "dropout": config.share("dropout_rate"),
        "vocab": config.whole("vocab_size"),
        "tied_embeddings": bool(config.content.get("tie_word_embeddings", True)),
    }


def _vit(config: _Config) -> dict[str, Any]:
    labels = config.content.get("id2label")
    return {
        "family": "vit",
        "layers": config.whole("num_hidden_layers"),
        "hidden": config.whole("hidden_size"),
        "heads": config.whole("num_attention_heads"),
        "ffn": config.whole("intermediate_size"),
        "activation": config.activation("hidden_act", "gelu"),
        "dropout": config.share("hidden_dropout_prob"),
        "image_size": config.whole("image_size"),
        "patch_size": config.whole("patch_size"),
        "num_classes": len(labels) if isinstance(labels, dict) else config.whole("num_labels", default=1000),
        "tied_embeddings": False,
    }


_READERS: Final[dict[str, Callable[[_Config], dict[str, Any]]]] = {
    "bert": _bert, "bloom": _bloom, "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "gpt2": _gpt2,
    "gpt_neox": _gpt_neox, "kimi_k2": _deepseek, "llama": _llama, "mistral": _llama, "mixtral": _mixtral,
    "opt": _opt, "qwen2": _llama, "qwen2_moe": _qwen_moe, "qwen3": _llama, "qwen3_moe": _qwen_moe, "t5": _t5,
    "vit": _vit,
}  # fmt: skip
