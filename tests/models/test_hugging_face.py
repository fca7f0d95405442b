"""Hugging Face configurations, given by their published dimensions, against published parameter counts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from simcore.errors import InputError
from tests.models.published_keys import PUBLISHED_KEYS
from tests.models.test_parameters import num_parameters
from workloads.models.hugging_face import KNOWN, from_hugging_face, model_fields
from workloads.models.spec import ModelSpec

LLAMA3: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "hidden_act": "silu",
}  # fmt: skip
_DEEPSEEK: dict[str, Any] = {
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "num_experts_per_tok": 8, "moe_layer_freq": 1,
}  # fmt: skip

#: (configuration, parameters).
CONFIGS: list[tuple[dict[str, Any], int]] = [
    (LLAMA3, 8_030_261_248),
    (
        {**LLAMA3, "model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096},
        7_241_732_096,
    ),
    (
        {**LLAMA3, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8,
         "num_experts_per_tok": 2, "sliding_window": None},
        46_702_792_704,
    ),
    (
        {**LLAMA3, "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584,
         "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
         "vocab_size": 152064, "tie_word_embeddings": False},
        7_615_616_512,
    ),
    (
        {**LLAMA3, "model_type": "qwen3", "num_hidden_layers": 36, "head_dim": 128,
         "intermediate_size": 12288, "vocab_size": 151936},
        8_190_735_360,
    ),
    (
        {**LLAMA3, "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "head_dim": 128,
         "num_key_value_heads": 4, "intermediate_size": 6144, "moe_intermediate_size": 768,
         "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "vocab_size": 151936},
        30_532_122_624,
    ),
    (
        {**LLAMA3, "model_type": "qwen2_moe", "num_hidden_layers": 24, "hidden_size": 2048,
         "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 5632,
         "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts": 60,
         "num_experts_per_tok": 4, "vocab_size": 151936},
        14_315_784_192,
    ),
    (
        {**LLAMA3, **_DEEPSEEK, "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
         "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
         "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
         "first_k_dense_replace": 3, "q_lora_rank": 1536, "vocab_size": 129280},
        671_026_404_352,
    ),
    (
        {**LLAMA3, **_DEEPSEEK, "model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048,
         "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 10944,
         "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
         "num_experts_per_tok": 6, "first_k_dense_replace": 1, "q_lora_rank": None, "vocab_size": 102400},
        15_706_484_224,
    ),
    (
        {"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25, "n_positions": 1024,
         "vocab_size": 50257, "n_inner": None, "activation_function": "gelu_new", "resid_pdrop": 0.1},
        1_557_611_200,
    ),
    (
        {"model_type": "gpt_neox", "num_hidden_layers": 44, "hidden_size": 6144, "num_attention_heads": 64,
         "intermediate_size": 24576, "vocab_size": 50432},
        20_554_567_680,
    ),
    (
        {"model_type": "phi", "num_hidden_layers": 32, "hidden_size": 2560, "num_attention_heads": 32,
         "intermediate_size": 10240, "vocab_size": 51200},
        2_779_683_840,
    ),
    (
        {"model_type": "opt", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
         "ffn_dim": 16384, "vocab_size": 50272, "max_position_embeddings": 2048},
        6_658_473_984,
    ),
    (
        {"model_type": "bloom", "n_layer": 30, "hidden_size": 4096, "n_head": 32, "vocab_size": 250880},
        7_069_016_064,
    ),
    (
        {"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71,
         "vocab_size": 65024, "multi_query": True, "parallel_attn": True, "bias": False},
        6_921_720_704,
    ),
    (
        {**LLAMA3, "model_type": "gemma", "num_hidden_layers": 28, "hidden_size": 3072,
         "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "intermediate_size": 24576,
         "vocab_size": 256000},
        8_537_680_896,
    ),
    (
        {**LLAMA3, "model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584,
         "num_attention_heads": 16, "head_dim": 256, "vocab_size": 256000},
        9_241_705_984,
    ),
    (
        {"model_type": "bert", "num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16,
         "intermediate_size": 4096, "vocab_size": 30522, "max_position_embeddings": 512,
         "type_vocab_size": 2},
        336_226_108,
    ),
    (
        {"model_type": "t5", "num_layers": 24, "d_model": 1024, "num_heads": 128, "d_kv": 128, "d_ff": 65536,
         "vocab_size": 32128, "relative_attention_num_buckets": 32, "dropout_rate": 0.1},
        11_307_321_344,
    ),
    (
        {"model_type": "vit", "num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16,
         "intermediate_size": 4096, "image_size": 224, "patch_size": 16,
         "id2label": {str(k): "" for k in range(1000)}},
        304_326_632,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("config", "expected"), CONFIGS, ids=[c["model_type"] for c, _ in CONFIGS])
def test_published_count(config: dict[str, Any], expected: int) -> None:
    assert num_parameters(from_hugging_face(config)) == expected


@pytest.mark.parametrize("kind", sorted(KNOWN))
def test_a_missing_key_is_named(kind: str) -> None:
    with pytest.raises(InputError, match=r"config\.json: (\w+: )?key '\w+' is missing"):
        from_hugging_face({"model_type": kind})


def test_what_is_wrong_is_said() -> None:
    for change, message in (
        ({"model_type": "lama"}, "model_type 'lama' is not known; did you mean 'llama'"),
        ({"model_type": None}, "model_type is missing: this is no Hugging Face config"),
        ({"hidden_size": 4096.5}, r"hidden_size must be a whole number, not 4096\.5"),
        ({"hidden_act": "geluu"}, "hidden_act: unknown activation 'geluu'; did you mean 'gelu'"),
        (
            {"num_attention_heads": 33, "num_key_value_heads": 33},
            "hidden: 4096 is no multiple of heads 33; nearest: 4092 or 4125",
        ),
    ):
        with pytest.raises(InputError, match=message):
            from_hugging_face({**LLAMA3, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings must be true or false, not 'false'"),
        ({"attention_bias": 0}, "attention_bias must be true or false, not 0"),
        ({"text_config": [1]}, "text_config must be an object, not"),
        ({"model_type": ["llama"]}, "model_type must be a string, not"),
        ({"hidden_dropout": "0.1"}, "hidden_dropout must be a share, .*, not '0.1'"),
        ({"hidden_dropout": 1}, "hidden_dropout must be a share, .*, not 1"),
        ({"hidden_size": 2**63}, "hidden_size = 9223372036854775808 is more than any model has"),
        ({"num_key_value_heads": 0}, "num_key_value_heads must be at least 1, not 0"),
        ({"head_dim": -128}, "head_dim must be a whole number, not -128"),
        ({"vocab_size": True}, "vocab_size must be a whole number, not True"),
        ({"model_type": "vit", "image_size": 8, "patch_size": 4, "id2label": 7}, "id2label must be an obj"),
        ({"model_type": "mpt", "n_layers": 1, "d_model": 8, "attn_config": 0}, "attn_config must be an obj"),
    ],
)
def test_a_value_of_a_wrong_type_or_size_is_refused_with_its_key(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=rf"^config\.json: {message}"):
        from_hugging_face({**LLAMA3, **change})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("num_key_value_head", "num_key_value_heads"),
        ("num_kv_heads", "num_key_value_heads"),
        ("numKeyValueHeads", "num_key_value_heads"),
        ("head_dims", "head_dim"),
        ("haed_dim", "head_dim"),
        ("tie_embeddings", "tie_word_embeddings"),
        ("hidden_actt", "hidden_act"),
        ("mlp_bais", "mlp_bias"),
        ("attn_bias", "attention_bias"),
        ("hiden_dropout", "hidden_dropout"),
    ],
)
def test_a_key_near_a_missing_one_is_warned_of(key: str, meant: str) -> None:
    config = {name: value for name, value in LLAMA3.items() if name != meant}
    _, warnings = model_fields({**config, key: 8}, "config.json")
    assert warnings == (
        f"config.json: key {key!r} is not known and ignored; did you mean {meant!r}, which is missing?",
    )


def test_misspelt_keys_of_inner_objects_are_warned_of() -> None:
    _, warnings = model_fields({"model_type": "any", "text_config": {**LLAMA3, "head_dims": 1}}, "c")
    assert warnings == (
        "c: text_config: key 'head_dims' is not known and ignored;"
        " did you mean 'head_dim', which is missing?",
    )
    mpt = {"model_type": "mpt", "n_layers": 1, "d_model": 8, "n_heads": 1, "vocab_size": 8}
    _, warnings = model_fields({**mpt, "attn_config": {"kv_n_head": 4}}, "c")
    assert warnings[0].startswith("c: attn_config: key 'kv_n_head' is not known")


@pytest.mark.parametrize("kind", sorted(PUBLISHED_KEYS.keys() - {""}))
def test_no_key_of_a_published_configuration_is_taken_for_misspelt(kind: str) -> None:
    """All keys that the configuration classes have; what may be missing is (null), what may not is 8."""
    keys = f"{PUBLISHED_KEYS['']} {PUBLISHED_KEYS[kind]}".split()
    experts = {"ffn_hidden_size": 8, "moe_num_experts": 8, "moe_top_k": 1}
    config: dict[str, Any] = {**dict.fromkeys(keys), "model_type": kind, "ffn_config": experts}
    for _ in keys:
        try:
            found = model_fields(config, "c")
        except InputError as error:
            config[re.findall(r"key '(\w+)' is missing", str(error))[0]] = 8
    assert found[1] == ()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("jamba", "selective scans"),
        ("kimi_linear", "a gate for each channel"),
        ("rwkv", "recurrent"),
    ],
)
def test_layers_that_are_not_modelled_are_refused_by_kind(kind: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"model_type '{kind}': .*{reason}"):
        from_hugging_face({"model_type": kind})


def test_single_layers_without_experts_are_refused() -> None:
    qwen = next(config for config, _ in CONFIGS if config["model_type"] == "qwen2_moe")
    assert from_hugging_face({**qwen, "mlp_only_layers": []}) == from_hugging_face(qwen)
    with pytest.raises(
        InputError, match=r"mlp_only_layers = \[0, 3\]: single layers without experts are not"
    ):
        from_hugging_face({**qwen, "mlp_only_layers": [0, 3]})


def test_specs_made_in_python_are_refused_as_those_in_files_are() -> None:
    with pytest.raises(InputError, match=r"^ModelSpec\.layers = -1: must be more than 0"):
        ModelSpec(layers=-1, hidden=8)
