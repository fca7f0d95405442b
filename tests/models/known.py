"""Models with published dimensions and parameter counts."""

from __future__ import annotations

from typing import Any

from workloads.models import MlaSpec, ModelSpec, MoeSpec

_LLAMA: dict[str, Any] = {
    "family": "llama", "gated": True, "activation": "silu", "norm": "rmsnorm", "bias": False,
    "positions": "rotary", "tied_embeddings": False,
}  # fmt: skip


def llama(**sizes: Any) -> ModelSpec:
    """A Llama-like model."""
    return ModelSpec(**{**_LLAMA, **sizes})


GPT3 = ModelSpec(
    layers=96, hidden=12288, heads=96, ffn=49152, vocab=50257, max_positions=2048, name="gpt3-175b"
)
LLAMA3_8B = llama(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
MIXTRAL_8X7B = llama(
    layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000,
    moe=MoeSpec(num_experts=8, top_k=2, ffn=14336),
)  # fmt: skip
DEEPSEEK_V3 = llama(
    layers=61, hidden=7168, heads=128, ffn=18432, vocab=129280,
    mla=MlaSpec(
        q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_size=128, qk_rope_head_size=64, v_head_size=128
    ),
    moe=MoeSpec(num_experts=256, top_k=8, ffn=2048, shared_ffn=2048, first_layer=3),
)  # fmt: skip
BERT_LARGE = ModelSpec(
    family="bert", layers=24, hidden=1024, heads=16, ffn=4096, vocab=30522, max_positions=512, token_types=2
)
T5_11B = ModelSpec(
    family="t5", layers=24, decoder_layers=24, hidden=1024, heads=128, head_size=128, ffn=65536, vocab=32128,
    bias=False, norm="rmsnorm", activation="relu", positions="relative", relative_buckets=32,
)  # fmt: skip
VIT_L = ModelSpec(
    family="vit", layers=24, hidden=1024, heads=16, ffn=4096, image_size=224, patch_size=16, num_classes=1000,
    positions="none",
)  # fmt: skip

#: Name -> (model, parameters as published or as the published dimensions give).
COUNTS: dict[str, tuple[ModelSpec, int]] = {
    # 12 l h^2 + 13 l h + (V + s) h + 2h with the dimensions of arXiv 2005.14165, table 2.1.
    "gpt3-175b": (GPT3, 96 * (12 * 12288**2 + 13 * 12288) + (50257 + 2048) * 12288 + 2 * 12288),
    "llama2-7b": (llama(layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000), 6_738_415_616),
    "llama2-70b": (
        llama(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=32000), 68_976_648_192,
    ),
    "llama3-8b": (LLAMA3_8B, 8_030_261_248),
    "llama3-70b": (
        llama(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256), 70_553_706_496,
    ),
    "llama3-405b": (
        llama(layers=126, hidden=16384, heads=128, kv_heads=8, ffn=53248, vocab=128256), 405_853_388_800,
    ),
    "mixtral-8x7b": (MIXTRAL_8X7B, 46_702_792_704),
    "mixtral-8x22b": (
        llama(layers=56, hidden=6144, heads=48, kv_heads=8, ffn=16384, vocab=32768,
              moe=MoeSpec(num_experts=8, top_k=2, ffn=16384)),
        140_630_071_296,
    ),
    "deepseek-v3": (DEEPSEEK_V3, 671_026_404_352),
    # The encoder with pooler is 335,141,888; dense + norm of the token head, its bias, two classes on top.
    "bert-large": (BERT_LARGE, 335_141_888 + 1024**2 + 3 * 1024 + 30522 + 2 * 1024 + 2),
    "t5-11b": (T5_11B, 11_307_321_344),
    "vit-l-16": (VIT_L, 304_326_632),
    "qwen2.5-7b": (
        llama(layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, vocab=152064, qkv_bias=True),
        7_615_616_512,
    ),
    "qwen3-8b": (
        llama(layers=36, hidden=4096, heads=32, kv_heads=8, head_size=128, ffn=12288, vocab=151936,
              qk_norm="head"),
        8_190_735_360,
    ),
    "gpt2-xl": (
        ModelSpec(layers=48, hidden=1600, heads=25, ffn=6400, vocab=50257, max_positions=1024),
        1_557_611_200,
    ),
    "gpt-neox-20b": (
        ModelSpec(layers=44, hidden=6144, heads=64, ffn=24576, vocab=50432, positions="rotary",
                  parallel_block=True, tied_embeddings=False),
        20_554_567_680,
    ),
    "gemma2-9b": (
        llama(layers=42, hidden=3584, heads=16, kv_heads=8, head_size=256, ffn=14336, vocab=256000,
              tied_embeddings=True, post_norms=True, activation="gelu", sliding_window=4096, global_every=2),
        9_241_705_984,
    ),
}  # fmt: skip
