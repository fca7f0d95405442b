"""Megatron-LM's flags of layers by a pattern, read and written."""

from __future__ import annotations

import pytest

from simcore.errors import InputError
from workloads.jobs.complete import complete
from workloads.jobs.launch import emitted, read_launch

FLAGS = (
    "--hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --micro-batch-size 1"
    " --global-batch-size 32 --bf16 --vocab-size 50257"
)


def model(flags: str, gpus: int = 8) -> dict[str, object]:
    """Settings of the model and its layout."""
    content = read_launch("megatron", f"{FLAGS} {flags}").on(gpus).content
    return {**content["model"], **content["parallel"]}


def test_a_pattern_says_layers_stages_and_further_tokens() -> None:
    found = model(
        "--hybrid-layer-pattern M-M*|M-M-|M-M*|M-M-/*-/*- --mtp-use-repeated-layer"
        " --pipeline-model-parallel-size 2 --mamba-num-heads 64 --mamba-state-dim 64"
    )
    assert (found["layers"], found["layer_pattern"]) == (16, "M-M*M-M-M-M*M-M-")
    assert (found["stage_layers"], found["virtual_stages"]) == ((4, 4, 4, 4), 2)
    assert (found["mtp_layers"], found["mtp_pattern"], found["mtp_shared"]) == (2, "*-", True)
    assert found["mamba"] == {"heads": 64, "head_size": 64, "state": 64, "groups": 8, "chunk": 128}


def test_what_megatron_takes_unasked() -> None:
    """Twice the width in heads of 64: 2 x 1024 / 64 = 32."""
    found = model("--hybrid-override-pattern M-M* --num-layers 4 --is-hybrid-model")
    assert found["mamba"]["heads"] == 32  # type: ignore[index]
    assert "mamba" not in model("--num-layers 4")


def test_layers_of_the_delta_rule() -> None:
    """Qwen3-Next's flags (yanring/Megatron-MoE-ModelZoo, model_configs/benchmarking)."""
    found = model(
        "--num-layers 4 --experimental-attention-variant gated_delta_net --linear-attention-freq 4"
        " --attention-output-gate --num-experts 8 --moe-ffn-hidden-size 64 --linear-num-value-heads 32"
    )
    assert (found["layers"], found["layer_pattern"], found["attention_gate"]) == (4, "GEGEGE*E", True)
    sizes = {"heads": 32, "key_heads": 16, "key_size": 128, "value_size": 128, "conv": 4}
    assert found["delta"] == sizes == model("--hybrid-layer-pattern G-*-")["delta"]
    assert "delta" not in model("--num-layers 4")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--num-layers 4 --experimental-attention-variant dsa", "only gated_delta_net"),
        ("--num-layers 4 --experimental-attention-variant gated_delta_net", "give a whole number, such as 4"),
        ("--hybrid-layer-pattern M-M* --num-layers 5", "the pattern has 4 layers"),
        ("--hybrid-layer-pattern M-/*/-", "the same letters"),
        ("--hybrid-layer-pattern M-|M-|M- --pipeline-model-parallel-size 2", "3 stages of the pattern"),
        ("--num-layers 4 --is-hybrid-model", "give --hybrid-layer-pattern"),
    ],
)
def test_patterns_that_cannot_be_are_refused(flags: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model(flags)


def test_a_job_is_written_as_flags_that_are_read_back_as_the_same() -> None:
    said = {
        "model": {"model": "nemotron3-super-120b"},
        "parallel": {"tp": 2, "pp": 2, "ep": 8, "stage_layers": [40, 48], "sequence_parallel": True},
        "training": {"seq": 8192, "global_batch": 64}, "software": {"preset": "megatron-core-moe-2026"},
    }  # fmt: skip
    job = complete(said, "super", num_gpus=64, generation="hopper")
    text, _ = emitted("megatron", job, ())
    back = read_launch("megatron", text.partition("FLAGS=(")[2].partition("\n)")[0]).on(64)
    assert "pretrain_hybrid.py" in text
    assert not back.not_understood
    again = complete(back.content, "super", num_gpus=64, generation="hopper")
    named = {"name": job.model.name, "head_size": 128}  # 4096 / 32, which goes without saying
    assert again.model.model_copy(update=named) == job.model
    assert again.parallel.stage_layers == job.parallel.stage_layers
