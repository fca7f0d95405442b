"""A Hugging Face ``config.json`` as a model.

Keys are those of the configuration classes of transformers; of models with experts they are read here, of
others in ``hugging_face_families.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from simcore.errors import InputError, nearest
from workloads.models.check import check_model
from workloads.models.hugging_face_families import FAMILIES, decoder, qwen2, qwen3, windowed, windows
from workloads.models.hugging_face_hybrids import HYBRIDS
from workloads.models.hugging_face_values import Values
from workloads.models.spec import ModelSpec


def _mixtral(v: Values) -> dict[str, Any]:
    experts = {
        "num_experts": v.number("num_local_experts"),
        "top_k": v.number("num_experts_per_tok"),
        "ffn": v.number("intermediate_size"),
    }
    if shared := v.number("shared_intermediate_size", 0):
        experts["shared_ffn"] = shared
    return {**windowed(v), "moe": experts}


def _minimax_m2(v: Values) -> dict[str, Any]:
    return {**_mixtral(v), "qk_norm": "all" if v.flag("use_qk_norm", default=True) else ""}


def _qwen_experts(v: Values) -> dict[str, Any]:
    v.empty("mlp_only_layers", "single layers without experts")
    shared = v.number("shared_expert_intermediate_size", 0)
    return {
        "num_experts": v.number("num_experts", or_key="num_local_experts"),
        "top_k": v.number("num_experts_per_tok"),
        "ffn": v.number("moe_intermediate_size"),
        "shared_ffn": shared,
        "shared_gate": shared > 0,
        "every": v.number("decoder_sparse_step", 1),
        "first_layer": v.number("decoder_sparse_step", 1) - 1,
    }


def _qwen3_moe(v: Values) -> dict[str, Any]:
    return {**qwen3(v), "moe": _qwen_experts(v)}


def _deepseek(v: Values) -> dict[str, Any]:
    latent = {
        "q_lora_rank": v.number("q_lora_rank", 0),
        "kv_lora_rank": v.number("kv_lora_rank"),
        "qk_nope_head_size": v.number("qk_nope_head_dim"),
        "qk_rope_head_size": v.number("qk_rope_head_dim"),
        "v_head_size": v.number("v_head_dim"),
    }
    return {**decoder(v), "kv_heads": 0, "head_size": 0, "mla": latent, "moe": _routed(v)}


def _routed(v: Values) -> dict[str, Any]:
    """DeepSeek's experts: shared ones beside them, dense first layers, groups."""
    width = v.number("moe_intermediate_size")
    experts = {
        "num_experts": v.number("n_routed_experts"),
        "top_k": v.number("num_experts_per_tok"),
        "ffn": width,
        "shared_ffn": width * v.number("n_shared_experts", 0),
        "first_layer": _dense_layers(v, v.number("first_k_dense_replace", 0)),
        "every": v.number("moe_layer_freq", 1),
    }
    if (groups := v.number("n_group", 1)) > 1:
        experts |= {"num_groups": groups, "top_groups": v.number("topk_group", groups)}
    return experts


def _dense_layers(v: Values, default: int) -> int:
    """How many layers at the front have no experts, by ``mlp_layer_types`` where it is said.

    Errors: InputError where a later layer has none either.
    """
    kinds = v.kinds("mlp_layer_types")
    front = kinds.index("sparse") if "sparse" in kinds else default
    if "dense" in kinds[front:]:
        raise v.not_modelled("mlp_layer_types", "dense layers behind the first with experts")
    return front


def _dots1(v: Values) -> dict[str, Any]:
    return {**qwen3(v), **windows(v, v.number("sliding_window", 4096)), "moe": _routed(v)}


def _solar_open(v: Values) -> dict[str, Any]:
    """Every layer has experts; a dense one's width, which no layer has, is not said."""
    experts = _routed(v)
    return {**decoder(v, ffn=experts["ffn"]), "moe": experts}


def _ernie4_5_moe(v: Values) -> dict[str, Any]:
    width, every = v.number("moe_intermediate_size", 1536), v.number("moe_layer_interval", 1)
    v.last("moe_layer_end_index", v.number("num_hidden_layers"), "dense layers behind those with experts")
    experts = {
        "num_experts": v.number("moe_num_experts", 64, or_key="num_experts"),
        "top_k": v.number("moe_k", 6, or_key="num_experts_per_tok"), "ffn": width,
        "shared_ffn": width * v.number("moe_num_shared_experts", 2), "every": every,
        "first_layer": v.number("moe_layer_start_index", 1),
    }  # fmt: skip
    return {**FAMILIES["ernie4_5"](v), "moe": experts}


def _hunyuan_v1_moe(v: Values) -> dict[str, Any]:
    width = v.number("intermediate_size")
    experts = {"num_experts": v.number("num_experts"), "top_k": v.number("moe_topk", 1), "ffn": width}
    return {**qwen3(v), "moe": {**experts, "shared_ffn": width}}


def _hy_v3(v: Values) -> dict[str, Any]:
    width = v.number("moe_intermediate_size")
    experts = {
        "num_experts": v.number("num_experts"), "top_k": v.number("num_experts_per_tok"), "ffn": width,
        "shared_ffn": width * v.number("num_shared_experts", 1), "first_layer": _dense_layers(v, 1),
    }  # fmt: skip
    return {**qwen3(v), "moe": experts}


def _glm4_moe(v: Values) -> dict[str, Any]:
    normed = v.flag("use_qk_norm", default=False)
    return {**decoder(v), "qk_norm": "head" if normed else "", "moe": _routed(v)}


def _gpt_oss(v: Values) -> dict[str, Any]:
    """Attention and experts add biases; every other layer attends to a window."""
    width = v.number("intermediate_size")
    return {
        **decoder(v), "bias": True, **windows(v, v.number("sliding_window", 128), 2),
        "moe": {
            "num_experts": v.number("num_local_experts"),
            "top_k": v.number("num_experts_per_tok", v.number("experts_per_token", 4)),
            "ffn": width, "bias": True, "clamp": True,
        },
    }  # fmt: skip


def _llama4(v: Values) -> dict[str, Any]:
    """One routed and one shared expert of the same width, in every ``interleave_moe_layer_step``-th layer."""
    width, step = v.number("intermediate_size"), v.number("interleave_moe_layer_step", 1)
    experts = {
        "num_experts": v.number("num_local_experts"), "top_k": v.number("num_experts_per_tok", 1),
        "ffn": width, "shared_ffn": width, "every": step, "first_layer": step - 1,
    }  # fmt: skip
    return {**decoder(v), "ffn": v.number("intermediate_size_mlp", width), "moe": experts}


def _olmoe(v: Values) -> dict[str, Any]:
    experts = {
        "num_experts": v.number("num_experts"), "top_k": v.number("num_experts_per_tok"),
        "ffn": v.number("intermediate_size"),
    }  # fmt: skip
    return {**decoder(v), "qk_norm": "all", "moe": experts}


def _phimoe(v: Values) -> dict[str, Any]:
    return {**_mixtral(v), "norm": "layernorm"}


def _dbrx(v: Values) -> dict[str, Any]:
    attention, block = v.inner("attn_config"), v.inner("ffn_config")
    width = block.number("ffn_hidden_size")
    return {
        "family": "llama", "layers": v.number("n_layers"), "hidden": v.number("d_model"),
        "heads": v.number("n_heads"), "kv_heads": attention.number("kv_n_heads", 0, least=1), "ffn": width,
        "vocab": v.number("vocab_size"), "gated": True, "activation": "silu", "norm": "layernorm",
        "bias": False, "positions": "rotary", "dropout": v.share("resid_pdrop"),
        "tied_embeddings": v.flag("tie_word_embeddings", default=False),
        "moe": {
            "num_experts": block.number("moe_num_experts"), "top_k": block.number("moe_top_k"), "ffn": width,
        },
    }  # fmt: skip


#: model_type -> the description of its configuration.
_WITH_EXPERTS: Final[dict[str, Callable[[Values], dict[str, Any]]]] = {
    "mixtral": _mixtral, "granitemoe": _mixtral, "phimoe": _phimoe, "dbrx": _dbrx, "olmoe": _olmoe,
    "qwen2_moe": lambda v: {**qwen2(v), "moe": _qwen_experts(v)},
    "qwen3_moe": _qwen3_moe, "qwen3_vl_moe_text": _qwen3_moe,
    "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "kimi_k2": _deepseek, "sarvam_mla": _deepseek,
    "glm4_moe_lite": _deepseek, "glm4_moe": _glm4_moe, "glm4v_moe_text": _glm4_moe, "sarvam_moe": _glm4_moe,
    "solar_open": _solar_open, "dots1": _dots1, "ernie4_5_moe": _ernie4_5_moe, "hy_v3": _hy_v3,
    "hunyuan_v1_moe": _hunyuan_v1_moe, "minimax_m2": _minimax_m2, "granitemoeshared": _mixtral,
    "flex_olmo": _olmoe,
    "gpt_oss": _gpt_oss, "llama4_text": _llama4,
}  # fmt: skip

#: model_type -> the description of its configuration.
KNOWN: Final = {**FAMILIES, **_WITH_EXPERTS, **HYBRIDS}

#: Kinds of layers that are not modelled, by a pattern on ``model_type``.
_NOT_MODELLED: Final = (
    (r"^mamba$|falcon_mamba|jamba|zamba$|plamo2", "selective scans of Mamba's first version"),
    (r"zamba2", "blocks of attention that several layers share"),
    (r"kimi_linear", "delta-rule layers with a gate for each channel"),
    (r"deepseek_v32|glm_moe_dsa|deepseek_v4", "layers that choose which tokens to attend to (an indexer)"),
    (r"rwkv|xlstm|recurrent_gemma|griffin|retnet", "recurrent layers"),
)


def from_hugging_face(config: Mapping[str, Any], where: str = "config.json") -> ModelSpec:
    """The model of a configuration's values.

    Errors: InputError as for :func:`model_fields`, and for sizes that do not fit each other.
    """
    model = ModelSpec(**model_fields(config, where)[0])
    check_model(model, where)
    return model


def longest_sequence(config: Mapping[str, Any]) -> int:
    """Tokens that a configuration's model takes at most; 0 where it does not say."""
    inner = config.get("text_config")
    values = inner if isinstance(inner, Mapping) and inner else config
    for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def model_fields(config: Mapping[str, Any], where: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Fields of a :class:`ModelSpec`, and warnings of keys that seem misspelt; ``where`` begins messages.

    Errors: InputError for an unknown ``model_type`` (with the nearest known one) or a missing or wrong value.
    """
    values = Values(config, where)
    if config.get("text_config") not in (None, {}):
        values = values.inner("text_config", "tie_word_embeddings")
    beside = [key for key in ("vision_config", "audio_config") if config.get(key)]
    alone = [f"{where}: the model of texts alone; what {key} says is left out" for key in beside]
    kind = values.text("model_type", "")
    if not kind:
        raise InputError(f"{where}: model_type is missing: this is no Hugging Face config.json")
    for pattern, layers in _NOT_MODELLED:
        if re.search(pattern, kind):
            raise InputError(f"{where}: model_type {kind!r}: {layers} are not modelled")
    if kind not in KNOWN:
        raise InputError(f"{where}: model_type {kind!r} is not known{nearest(kind, KNOWN)}")
    fields = {"name": kind, **KNOWN[kind](values)}
    return fields, (*alone, *sorted(values.misspelt()))
