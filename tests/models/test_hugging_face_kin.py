"""Further Hugging Face configurations, by their published dimensions, against counts of the checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from tests.models.test_parameters import num_parameters
from workloads.models.hugging_face import from_hugging_face


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


@pytest.mark.parametrize(("config", "expected"), CONFIGS, ids=lambda value: str(value)[:30])
def test_published_count(config: dict[str, Any], expected: float) -> None:
    # Biases and norms that a class leaves out of one layer are a ten-thousandth.
    assert num_parameters(from_hugging_face(config)) == pytest.approx(expected, rel=1e-3)


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
