"""Presets: files that are whole, refusals, and which one a run belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.errors import InputError
from workloads.jobs.presets import load_preset, preset_names, recognise
from workloads.jobs.presets.page import page
from workloads.jobs.presets.preset import parse_preset
from workloads.parallel.spec import ParallelSpec, TrainingSpec


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_makes_valid_specs(name: str) -> None:
    preset = load_preset(name)
    preset.software()
    TrainingSpec(**preset.values("training"))
    ParallelSpec(**preset.values("parallel"))
    assert all(bool(s.source) != bool(s.inferred) for _, _, s in preset.settings())


def test_a_preset_keeps_what_it_extends_and_changes_the_rest() -> None:
    # BLOOM's build is Megatron-DeepSpeed (ZeRO-1) on Megatron-LM of 2021 (unfused attention).
    bloom = load_preset("megatron-deepspeed-bloom")
    assert bloom.values("model")["positions"] == "alibi"
    assert bloom.values("training")["sharding"] == "zero1"
    assert bloom.software().attention == "unfused"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('description = "x"\n[softwear]\n', "software"),
        ('description = "x"\n[software]\natention = { value = "flash2", source = "s" }\n', "attention"),
        ('description = "x"\n[software]\nattention = { value = "flash2" }\n', "source"),
        (
            'description = "x"\n[software]\nattention = { value = "f", source = "s", inferred = "w" }\n',
            "either",
        ),
        ('description = "x"\n[software]\nattention = "flash2"\n', "value"),
        ("[software]\n", "description"),
        ('extends = "megatron-coer"\ndescription = "x"\n', "megatron-core"),
    ],
)
def test_a_malformed_preset_says_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_preset("mine", text)


@pytest.mark.parametrize(
    ("columns", "preset"),
    [
        ({"family": "vtrain_multi"}, "megatron-deepspeed-vtrain"),
        ({"family": "mosaic_a100", "zero_fsdp": "FSDP FULL_SHARD mp_mode=PURE"}, "mosaic-fsdp"),
        ({"family": "mosaic_h100", "zero_fsdp": "FSDP FULL_SHARD mp_mode=DEFAULT"}, "mosaic-fsdp-torch2"),
        ({"family": "sc21_tab2", "zero_fsdp": "ZeRO-3 (DeepSpeed, no model parallelism)"}, "deepspeed-zero3"),
        (
            {"family": "dgxc_gpt3175b", "model": "gpt3-175b", "source_location": "x@v25.02.02 README"},
            "nemo-dgxc-gpt3",
        ),
        (
            {"family": "dgxc_grok314b", "model": "grok1-314b", "source_location": "x@v25.05.05 README"},
            "nemo-dgxc",
        ),
        ({"family": "new", "zero_fsdp": "FSDP2"}, "torchtitan-fsdp2"),
        ({"family": "new", "source_repo_or_paper": "our DeepSpeed runs", "tp": "4.0"}, "megatron-deepspeed"),
        ({"family": "new", "source_repo_or_paper": "our DeepSpeed runs"}, "deepspeed"),
        ({"family": "new", "gpu_type": "A100-80GB"}, "megatron-lm-2023"),
        ({}, "megatron-core"),
    ],
)
def test_sources_and_words_name_the_software(columns: dict[str, str], preset: str) -> None:
    assert recognise(columns) == preset


def test_the_page_is_current() -> None:
    written = Path(__file__).parents[3] / "docs" / "presets.md"
    assert written.read_text(encoding="utf-8") == page()
