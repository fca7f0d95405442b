"""Overrides for Megatron-Bridge and NeMo, and DeepSpeed's file: written and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simcore.errors import InputError
from workloads.jobs import Description, complete
from workloads.jobs.launch import emitted, read_launch
from workloads.jobs.launch.dialect import settled


def told(text: str) -> list[str]:
    """What a file says that it cannot say."""
    return [line.partition(": ")[2] for line in text.splitlines() if line.startswith("# not expressible")]


def job(**said: Any) -> Description:
    return complete({"model": "llama3-8b", **said}, "a job", num_gpus=64)


def test_bridge_says_all_of_its_own_build() -> None:
    layout = {"tp": 4, "pp": 4, "virtual_stages": 2}
    training = {"precision": "fp8", "recompute": "selective", "recompute_modules": ["core_attn", "mlp"]}
    dtypes = {"grad_dtype": "bf16", "grad_reduce_dtype": "bf16"}
    ours = job(parallel=layout, training={**training, **dtypes}, software="megatron-bridge")
    text, suffix = emitted("megatron-bridge", ours, [])
    assert (told(text), suffix) == ([], ".sh")
    assert "    mixed_precision=bf16_with_fp8_current_scaling_mixed\n" in text
    assert "    model.virtual_pipeline_model_parallel_size=2\n" in text
    assert "    'model.recompute_modules=[core_attn,mlp]'\n" in text
    launch = read_launch("megatron-bridge", text).on(64)
    back = complete(launch.content, "back", num_gpus=64)
    assert settled(back) == settled(ours)
    assert launch.not_understood == ()


def test_nemo_names_what_it_has_no_keys_for() -> None:
    """Its vocabulary is the tokenizer's, and its loss has no key."""
    text, _ = emitted("nemo", job(parallel={"tp": 8}, software="nemo-dgxc"), [])
    assert "model.vocab=128256" in told(text)
    assert "    model.optim.name=mcore_distributed_optim\n" in text
    assert "    model.activation=fast-swiglu\n" in text
    assert "    trainer.num_nodes=8\n" in text  # 64 GPUs


def test_deepspeed_reads_its_own_file(tmp_path: Path) -> None:
    training = {"sharding": "zero2", "micro_batch": 2, "global_batch": 512, "overlap_grad_reduce": True}
    ours = job(training=training, software="deepspeed")
    text, suffix = emitted("deepspeed", ours, ["predicted"])
    file = tmp_path / f"ds{suffix}"
    file.write_text(text)
    found = read_launch("deepspeed", str(file)).on(64).content["training"]
    assert '"gradient_accumulation_steps": 4' in text  # 512 / 64 / 2
    assert {key: found[key] for key in training} == training
    assert '"predicted"' in text


@pytest.mark.parametrize(
    ("framework", "said", "reason"),
    [
        ("deepspeed", {"parallel": {"tp": 2}, "software": "deepspeed"}, "data parallelism alone"),
        ("nemo", {"parallel": {"pp": 2, "schedule": "gpipe"}}, "schedule=gpipe"),
        ("megatorn", {}, "did you mean 'megatron'"),
    ],
)
def test_what_cannot_be_is_refused(framework: str, said: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        emitted(framework, job(**said), [])
