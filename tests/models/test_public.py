"""Public models: their sizes, and how tables may write their names."""

from __future__ import annotations

import re

import pytest

from simcore.errors import InputError
from workloads.models.check import check_model
from workloads.models.public import find_model, model_names, named_model
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec, transformer_of
from workloads.parallel.job import Job
from workloads.parallel.spec import ParallelSpec, TrainingSpec

#: Parameters as the checkpoints on huggingface.co count them, or as the papers round them.
_COUNTS = {
    "bert-base": 110_106_428, "bert-large": 336_226_108, "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896, "gpt2-small": 124_439_808, "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200, "llama-30b": 32_528_943_616,
    "llama2-7b": 6_738_415_616, "llama3-8b": 8_030_261_248, "llama3-70b": 70_553_706_496,
    "llama3.2-1b": 1_235_814_400, "llama3.2-3b": 3_212_749_824, "olmo2-7b": 7_298_617_344,
    "phi-2": 2_779_683_840, "phi-3-mini": 3_821_079_552, "qwen2.5-7b": 7_615_616_512,
    "qwen3-14b": 14_768_307_200, "t5-3b": 2_851_598_336, "t5-11b": 11_307_321_344, "t5-base": 222_903_552,
    "t5-large": 737_668_096, "vit-base": 86_567_656, "vit-large": 304_326_632, "vit-huge": 632_045_800,
    "deepseek-v2-lite": 15_706_484_224, "deepseek-v2": 235.7e9, "deepseek-v3": 671e9, "kimi-k2": 1.026e12,
    "glm-4.5": 355e9, "glm-4.5-air": 106.9e9, "llama4-scout": 107.8e9, "llama4-maverick": 400.7e9,
    "mixtral-8x7b": 46.7e9, "mixtral-8x22b": 140.6e9, "phi-3-medium": 14e9, "phi-4": 14.7e9,
    "gpt-1t": 1.008e12,
    # llm-foundry's names round: 12 l h^2 and the vocabulary
    "mpt-1b": 24 * 12 * 2048**2 + 50368 * 2048, "mpt-3b": 32 * 12 * 2560**2 + 50368 * 2560,
    "mpt-70b": 80 * 12 * 8192**2 + 50368 * 8192,
}  # fmt: skip


#: Lists of blocks have tests of their own.
TRANSFORMERS = [name for name in model_names() if isinstance(named_model(name), ModelSpec)]


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_model_has_the_size_that_is_published_or_in_its_name(name: str) -> None:
    model = transformer_of(named_model(name), name)
    check_model(model, name)
    job = Job(model, ParallelSpec(), TrainingSpec(seq=512), SoftwareSpec(vocab_multiple=1))
    count = job.numel(job.pieces.all_pieces)
    if name in _COUNTS:
        assert count == pytest.approx(_COUNTS[name], rel=0.01)
        return
    number, unit = re.findall(r"(?<![\d.a-z])([\d.]+)([bm])(?!\w)", name)[0]
    # names round: 6.9 billion parameters are called 7b, 13.9 are called 13b
    assert count == pytest.approx(float(number) * {"b": 1e9, "m": 1e6}[unit], rel=0.11)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_model_is_found_by_its_own_name(name: str) -> None:
    found = find_model(name)
    sections = ("moe", "mla", "mamba", "delta")
    assert found and {key: getattr(named_model(name), key) for key in found if key not in sections} == {
        key: value for key, value in found.items() if key not in sections
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Meta-Llama-3.1-8B-Instruct", "llama3-8b"), ("LLaMA 65B", "llama-65b"), ("llama-7b", "llama2-7b"),
        ("Llama 3.3 70B", "llama3-70b"), ("Mixtral 8x7B", "mixtral-8x7b"), ("Mistral_7B_v0.1", "mistral-7b"),
        ("Qwen3 MoE 30B", "qwen3-30b-a3b"), ("Qwen/Qwen2-7B", "qwen2.5-7b"), ("DeepSeek R1", "deepseek-v3"),
        ("GPT-NeoX-20B", "gpt-neox-20b"), ("gpt3 175B", "gpt3-175b"), ("GPT-174.6B", "gpt3-175b"),
        ("GPT-OSS 20B", "gpt-oss-20b"), ("gpt2", "gpt2-small"), ("GPT-2 XL", "gpt2-xl"),
        ("MT-NLG-530B", "gpt-530b"), ("opt_6.7b", "opt-6.7b"), ("BERT", "bert-base"),
        ("ViT-L/16", "vit-large"),
        ("nemotron4-340b", "nemotron4-340b"), ("Gemma 2 9B", "gemma2-9b"), ("Falcon-180B", "falcon-180b"),
        ("Llama 3.2 11B Vision", ""), ("GPT 200B", ""), ("LLaMA-3 1.8B", ""), ("Zebra-9", ""),
    ],
)  # fmt: skip
def test_names_as_tables_write_them(text: str, name: str) -> None:
    found = find_model(text)
    if not name:
        assert not found
        return
    wanted = named_model(name)
    assert (found["layers"], found["hidden"], found["ffn"]) == (wanted.layers, wanted.hidden, wanted.ffn)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="llama3-70b"):
        named_model("llama3-70")
