"""``run-sim`` with described jobs: files, names, memory, schedules, steady state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Run = Callable[..., Result]

JOB = """
model: {name: tiny, family: llama, layers: 4, hidden: 512, heads: 8, ffn: 1024, vocab: 8000}
parallel: {tp: 2, pp: 2}
training: {seq: 512, global_batch: 24}
software: megatron-core
cluster: h100-8
"""


@pytest.fixture
def described(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def shown(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_yaml_file_runs(run: Run, described: Path, tmp_path: Path) -> None:
    found = shown(run("run-sim", described, "--json", "--out", tmp_path / "out"))
    assert found["gpus"] == 8  # dp = 2 fills the cluster
    # Tokens are 24 x 512 a step.
    assert found["tokens_per_s"] == pytest.approx(24 * 512 / found["step_time_s"])
    info = json.loads((tmp_path / "out" / "run.json").read_text())
    assert any("megatron-core" in line for line in info["assumptions"])
    # Model flops, causal attention once: 3 (2 s (4 (4 h^2 + 2 h f + s h) + h v)) for each of 24 samples.
    layer = 4 * 512**2 + 2 * 512 * 1024 + 512 * 512
    assert info["flops"]["model_causal"] == 24 * 6 * 512 * (4 * layer + 512 * 8000)


def test_a_config_json_runs_with_settings(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    content = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "vocab_size": 1000,
               "num_attention_heads": 4, "num_hidden_layers": 2}  # fmt: skip
    path.write_text(json.dumps(content))
    settings = ("--set", "parallel.tp=2", "--set", "training.seq=128", "--set", "gpu.num_sms=100")
    found = shown(run("run-sim", path, "--cluster", "h100-8", *settings, "--json", "--out", tmp_path / "out"))
    assert found["gpus"] == 8
    info = json.loads((tmp_path / "out" / "run.json").read_text())
    assert info["settings"]["parallel.tp"] == "2"


def test_a_schedule_is_printed(run: Run, described: Path) -> None:
    settings = ("--set", "training.global_batch=4")
    result = run("run-sim", described, "--show-schedule", *settings)
    # dp = 2: two microbatches on two stages.
    assert result.stdout.splitlines()[:2] == [
        "stage 0  F0 F1 .  .  B0 -- .  B1 --",
        "stage 1  .  F0 B0 -- F1 B1 --",
    ]
    assert "bubble: 50.0% of the work" in result.stdout
    found = shown(run("run-sim", described, "--show-schedule", "--json", *settings))
    assert found["stages"] == [["F0", "F1", "B0", "B1"], ["F0", "B0", "F1", "B1"]]
    assert found["grid"] == result.stdout.splitlines()[:2]
    assert found["bubble"] == 0.5
    # 130 microbatches take 130 * 3 + 3 columns: blocks of them below each other, nothing lost.
    text = run("run-sim", described, "--show-schedule", "--set", "training.global_batch=260").stdout
    assert max(map(len, text.splitlines())) <= 80
    second = [cell for row in text.splitlines() if row.startswith("stage 1") for cell in row.split()[2:]]
    assert [cell for cell in second if cell[0] == "B"] == [f"B{number}" for number in range(130)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"parallel.schedule": "zero_bubble"},
        {"parallel.virtual_stages": 2},
        {"parallel.virtual_stages": 2, "training.global_batch": 80, "model.hidden": 4096, "model.ffn": 8192},
    ],
    ids=["1f1b", "zero bubble", "interleaved", "long"],
)
def test_steady_state_is_the_whole_step(
    run: Run, described: Path, tmp_path: Path, settings: dict[str, object]
) -> None:
    pairs = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    arguments = [described, *pairs, "--json", "--force", "--out", tmp_path / "out"]
    whole = shown(run("run-sim", *arguments))
    continued = shown(run("run-sim", *arguments, "--steady-state"))
    is_long = "training.global_batch" in settings  # the others are simulated whole
    assert is_long == any("straight line" in line for line in continued["warnings"])
    for key in ("step_time_s", "mfu", "tokens_per_s", "peak_memory_bytes"):
        assert continued[key] == pytest.approx(whole[key], rel=1e-3)
    for key in ("low_s", "high_s"):
        assert continued["band"][key] == pytest.approx(whole["band"][key], rel=2e-2)


def test_a_run_states_its_band_and_the_nearest_measured_runs(
    run: Run, described: Path, tmp_path: Path
) -> None:
    found = shown(run("run-sim", described, "--json", "--out", tmp_path / "out"))
    band = found["band"]
    assert band["low_s"] < found["step_time_s"] < band["high_s"]
    assert band["level"] == 0.8
    assert len(found["nearest"]) == 5
    assert {"id", "differs", "predicted_s", "measured_s", "error"} <= set(found["nearest"][0])
    info = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (info["band"], info["nearest"]) == (band, found["nearest"])
    assert not any("does not cover" in reason for reason in band["reasons"])
    settings = ("--set", "rank.1.gpu.clock=0.8", "--network", "alphabeta")
    slower = shown(run("run-sim", described, *settings, "--json", "--out", tmp_path / "slower"))
    assert slower["band"]["reasons"][-2:] == [
        "the band does not cover rank.1.gpu.clock: nobody measured such a machine",
        "the band is that of the fluid network, not of alphabeta",
    ]
    edited = shown(
        run("run-sim", described, "--edit", "class.gemm.speed=2", "--json", "--out", tmp_path / "edited")
    )
    assert edited["band"]["reasons"][-1].startswith("the band does not cover edits")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--set", "parallel.tpp=2"], "did you mean 'tp'"),
        (["--set", "tp=2"], "did you mean 'parallel.tp'"),
        (["--set", "workload.recompute=full"], "did you mean 'training.recompute'"),
        (["--set", "trainig.seq=128"], "did you mean 'training.seq'"),
        (["--set", "training.fp8_recipe=mxfp8"], "did you mean 'software.fp8_recipe'"),
        (["--set", "workload.kernels=flash"], "a described job has software"),
        (["--set", "training.global_batch=5"], "nearest: 4 or 6"),
    ],
)
def test_refused(run: Run, described: Path, more: list[str], reason: str) -> None:
    result = run("run-sim", described, *more)
    assert result.exit_code == 2
    assert reason in result.stderr


def test_a_traced_graph_has_no_schedule_to_show(run: Run) -> None:
    result = run("run-sim", "--show-schedule")
    assert result.exit_code == 2
    assert "needs a described job" in result.stderr


def test_tf32_multiplies_on_tensor_cores(run: Run, described: Path, tmp_path: Path) -> None:
    """H100: 494 TFLOP/s dense in tf32, 67 in fp32 (datasheet); a small job, half of it is not products."""

    def step_s(precision: str) -> float:
        arguments = ("--set", f"training.precision={precision}", "--json", "--out", tmp_path / precision)
        return float(shown(run("run-sim", described, *arguments))["step_time_s"])

    assert step_s("bf16") < step_s("tf32") < 0.9 * step_s("fp32")
    info = json.loads((tmp_path / "tf32" / "run.json").read_text())
    assert "fp32 matrix products in tf32 math" in info["assumptions"]
