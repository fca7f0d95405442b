"""Further Hugging Face configurations, by their published dimensions, against counts of the checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from tests.models.test_parameters import num_parameters
from workloads.models.hugging_face import from_hugging_face, model_fields


def _sizes(
    kind: str, layers: int, hidden: int, heads: int, ffn: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": kind, "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "intermediate_size": ffn, "vocab_size": vocab, **more,
    }  # fmt: skip


#: (configuration, parameters of the checkpoint on huggingface.co).
CONFIGS: list[tuple[dict[str, Any], float]] = [
    ({"model_type": "gptj", "n_layer": 28, "n_embd": 4096, "n_head": 16, "vocab_size": 50400}, 6_050_882_784),
    (
        {"model_type": "gpt_neo", "num_layers": 32, "hidden_size": 2560, "num_heads": 20, "vocab_size": 50257,
         "max_position_embeddings": 2048},
        2_651_307_520,
    ),
    (
        {"model_type": "gpt_bigcode", "n_layer": 40, "n_embd": 6144, "n_head": 48, "vocab_size": 49152,
         "n_positions": 8192, "multi_query": True, "activation_function": "gelu"},
        15_517_456_384,
    ),
    (
        _sizes("starcoder2", 30, 3072, 24, 12288, 49152, num_key_value_heads=2, use_bias=True,
               sliding_window=4096, hidden_act="gelu_pytorch_tanh"),
        3_030_371_328,
    ),
    (
        {"model_type": "mpt", "n_layers": 32, "d_model": 4096, "n_heads": 32, "vocab_size": 50432,
         "no_bias": True, "attn_config": {"alibi": True}},
        6_649_286_656,
    ),
    (_sizes("olmo2", 32, 4096, 32, 11008, 100352, num_key_value_heads=32), 7_298_617_344),
    (
        _sizes("cohere", 40, 8192, 64, 22528, 256000, num_key_value_heads=64),
        34_980_831_232,
    ),
    (_sizes("stablelm", 32, 2560, 32, 6912, 50304, num_key_value_heads=32), 2_795_443_200),
    (
        _sizes("nemotron", 32, 6144, 48, 24576, 256000, num_key_value_heads=8, hidden_act="relu2"),
        15.629e9,  # arXiv 2402.16819: 12.5e9 and 3.1e9 of embeddings
    ),
    (
        {"model_type": "dbrx", "n_layers": 40, "d_model": 6144, "n_heads": 48, "vocab_size": 100352,
         "attn_config": {"kv_n_heads": 8},
         "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
        131_596_523_520,
    ),
    (
        _sizes("gpt_oss", 24, 2880, 64, 2880, 201088, num_key_value_heads=8, head_dim=64,
               num_local_experts=32, num_experts_per_tok=4, sliding_window=128),
        20_914_757_184,
    ),
    (
        _sizes("olmoe", 16, 2048, 16, 1024, 50304, num_key_value_heads=16, num_experts=64,
               num_experts_per_tok=8),
        6_919_161_856,
    ),
    (
        _sizes("phimoe", 32, 4096, 32, 6400, 32064, num_key_value_heads=8, num_local_experts=16,
               num_experts_per_tok=2, attention_bias=True),
        41_873_153_344,
    ),
    (
        _sizes("glm4_moe", 46, 4096, 96, 10944, 151552, num_key_value_heads=8, head_dim=128,
               attention_bias=True, n_routed_experts=128, num_experts_per_tok=8, moe_intermediate_size=1408,
               n_shared_experts=1, first_k_dense_replace=1),
        106.85e9,  # without the layer that predicts a second token
    ),
    (
        {"model_type": "llama4",
         "text_config": _sizes("llama4_text", 48, 5120, 40, 8192, 202048, num_key_value_heads=8,
                               head_dim=128, num_local_experts=16, intermediate_size_mlp=16384,
                               interleave_moe_layer_step=1)},
        107.77e9,  # text alone
    ),
    (
        {"model_type": "mt5", "d_model": 2048, "d_kv": 64, "d_ff": 5120, "num_layers": 24, "num_heads": 32,
         "vocab_size": 250112, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        3_742_619_648,
    ),
]  # fmt: skip

#: (configuration, parameters that transformers 5.24 makes of it): each class's own sizes in few layers.
MADE: list[tuple[dict[str, Any], int]] = [
    (_sizes("ernie4_5", 4, 1024, 16, 3072, 103424, num_key_value_heads=2, head_dim=128), 162_538_496),
    (_sizes("exaone4", 4, 4096, 32, 16384, 102400,
            layer_types=[*["sliding_attention"] * 3, "full_attention"]), 1_912_640_512),
    (_sizes("helium", 4, 2560, 20, 7040, 48000, head_dim=128), 566_909_440),
    (_sizes("arcee", 4, 2560, 32, 18432, 32000, hidden_act="relu2"), 646_208_000),
    (_sizes("ministral3", 4, 4096, 32, 14336, 131072, num_key_value_heads=8, head_dim=128), 1_946_193_920),
    (_sizes("hunyuan_v1_dense", 4, 4096, 32, 11008, 290943, num_key_value_heads=8, head_dim=128),
     3_092_280_320),
    (_sizes("qwen3_moe", 4, 2048, 32, 6144, 151936, num_key_value_heads=4, moe_intermediate_size=768,
            num_local_experts=128, num_experts_per_tok=8), 3_077_065_216),
    (_sizes("qwen3_vl_moe_text", 4, 2048, 16, 5632, 151936, num_key_value_heads=16,
            moe_intermediate_size=1408, num_experts=60, num_experts_per_tok=4, tie_word_embeddings=True),
     2_454_965_248),
    (_sizes("minimax_m2", 4, 3072, 48, 1536, 200064, num_key_value_heads=8, head_dim=128,
            num_local_experts=256, num_experts_per_tok=8), 15_904_070_656),
    ({"model_type": "solar_open", "num_hidden_layers": 4, "hidden_size": 4096, "num_attention_heads": 64,
      "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 196608, "moe_intermediate_size": 1280,
      "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8}, 10_030_714_880),
    (_sizes("ernie4_5_moe", 4, 2560, 20, 12288, 103424, num_key_value_heads=4), 2_758_269_632),
    (_sizes("hunyuan_v1_moe", 4, 1024, 32, 2048, 290943, num_key_value_heads=8, head_dim=128, num_experts=8,
            moe_topk=2), 864_329_728),
    (_sizes("hy_v3", 4, 4096, 64, 13312, 120832, num_key_value_heads=8, head_dim=128, num_experts=192,
            num_experts_per_tok=8, moe_intermediate_size=1536, mlp_layer_types=["dense", *["sparse"] * 3]),
     12_386_079_744),
    (_sizes("dots1", 4, 4608, 32, 10944, 152064, num_key_value_heads=32, moe_intermediate_size=1408,
            n_routed_experts=16, n_shared_experts=2, num_experts_per_tok=4, first_k_dense_replace=1),
     2_943_780_480),
    (_sizes("glm4_moe_lite", 4, 2048, 20, 10240, 154880, moe_intermediate_size=1536, n_routed_experts=64,
            n_shared_experts=1, num_experts_per_tok=4, q_lora_rank=768, kv_lora_rank=512, qk_rope_head_dim=64,
            qk_nope_head_dim=192, v_head_dim=256, mlp_layer_types=["dense", *["sparse"] * 3]), 2_625_002_496),
]  # fmt: skip


@pytest.mark.parametrize(("config", "expected"), CONFIGS, ids=lambda value: str(value)[:30])
def test_published_count(config: dict[str, Any], expected: float) -> None:
    # Biases and norms that a class leaves out of one layer are a ten-thousandth.
    assert num_parameters(from_hugging_face(config)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("config", "expected"), MADE, ids=lambda value: str(value)[:30])
def test_a_few_layers_have_the_parameters_of_the_class(config: dict[str, Any], expected: int) -> None:
    # Router's biases, which only balance, are a ten-millionth.
    assert num_parameters(from_hugging_face(config)) == pytest.approx(expected, rel=1e-6)


def test_windows_are_those_of_layer_types() -> None:
    near, far = "sliding_attention", "full_attention"
    sizes = _sizes("qwen3", 4, 64, 4, 128, 512)
    config = {**sizes, "model_type": "gemma3_text", "sliding_window": 16}
    third = from_hugging_face({**config, "layer_types": [near, near, far, near]})
    assert [third.window(layer) for layer in range(4)] == [16, 16, 0, 16]
    assert from_hugging_face({**config, "layer_types": [far] * 4}).window(0) == 0
    for kinds, why in (
        ([far, near, near, near], "another order"),
        ([near, "linear_attention"], "other than"),
    ):
        with pytest.raises(InputError, match=f"{why}.* are not modelled"):
            from_hugging_face({**config, "layer_types": kinds})


def test_what_lies_beside_the_text_is_left_out_and_said() -> None:
    text = _sizes("qwen2_5_vl_text", 4, 64, 4, 128, 512)
    whole = {
        "model_type": "qwen2_5_vl",
        "tie_word_embeddings": True,
        "text_config": text,
        "vision_config": {"depth": 2},
    }
    fields, remarks = model_fields(whole, "config.json")
    assert fields["tied_embeddings"] and fields["qkv_bias"]
    assert remarks == ("config.json: the model of texts alone; what vision_config says is left out",)


def test_an_indexer_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"deepseek_v32.*choose which tokens.* are not modelled"):
        from_hugging_face(_sizes("deepseek_v32", 4, 64, 4, 128, 512))


def test_windows_and_blocks_are_those_of_the_class() -> None:
    neo = from_hugging_face(CONFIGS[1][0])
    assert (neo.window(0), neo.window(1)) == (256, 0)
    cohere = from_hugging_face(CONFIGS[6][0])
    assert cohere.parallel_block and cohere.shared_norm and cohere.norm == "layernorm"
    oss = from_hugging_face(CONFIGS[10][0])
    assert oss.moe is not None and oss.moe.bias and oss.window(0) == 128


def test_a_part_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(InputError, match="attn_config must be an object, not 8"):
        from_hugging_face({**CONFIGS[4][0], "attn_config": 8})
    with pytest.raises(InputError, match="ffn_config: key 'moe_top_k' is missing"):
        from_hugging_face({**CONFIGS[9][0], "ffn_config": {"ffn_hidden_size": 8, "moe_num_experts": 2}})
