"""--emit and --from-megatron: what a run or a plan leaves starts the job, and is the job when read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import simcore

JOB = """
model: {layers: 4, hidden: 512, heads: 8, ffn: 2048, vocab: 4096}
parallel: {tp: 2, pp: 2}
training: {seq: 256, global_batch: 16}
cluster: h100-8
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def seconds(capsys: pytest.CaptureFixture[str], *arguments: object) -> float:
    capsys.readouterr()
    assert simcore("run-sim", *arguments, "--json", "--no-perfetto") == 0
    return float(json.loads(capsys.readouterr().out)["step_time_s"])


def test_a_run_read_back_takes_as_long(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = seconds(capsys, job, "--emit", "megatron", "--out", tmp_path / "run")
    script = tmp_path / "run" / "launch.megatron.sh"
    assert f"predicted by stepsim: {first:.4g} s a step, 80% band" in script.read_text()
    again = seconds(capsys, "--from-megatron", script, "--cluster", "h100-8", "--out", tmp_path / "again")
    assert again == first


def test_what_is_not_understood_is_said(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--num-layers 2 --hidden-size 512 --num-attention-heads 8 --seq-length 256 --vocab-size 4096"
    flags += " --micro-batch-size 1 --bf16 --sequence-paralel"
    given = ("--from-megatron", flags, "--cluster", "h100-8", "--out", tmp_path / "run", "--no-perfetto")
    assert simcore("run-sim", *given) == 0
    told = "the flags: not understood: --sequence-paralel; did you mean '--sequence-parallel'?"
    assert told in capsys.readouterr().err
    assert told in json.loads((tmp_path / "run" / "run.json").read_text())["warnings"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--emit", "megatorn"),
        ("--from-megatron", "--num-layers 2"),  # beside a workload
        ("--emit", "torchtitan"),  # has no configuration of this model
    ],
)
def test_what_cannot_be_is_refused(job: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert simcore("run-sim", job, "--out", tmp_path / "run", *arguments) == 2
    assert not (tmp_path / "run").exists()


def test_a_plan_leaves_scripts(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = simcore(
        "plan", job, "--search", "tp=1:2", "--emit", "megatron", "--out", tmp_path / "plan", "--json"
    )
    assert found == 0
    best = json.loads(capsys.readouterr().out)["best"]
    text = (tmp_path / "plan" / "best" / "1.megatron.sh").read_text()
    assert f"predicted by stepsim: {best['step_time_s']:.4g} s a step, 80% band" in text
    assert ("--tensor-model-parallel-size 2" in text) == (best["job"]["parallel"]["tp"] == 2)
