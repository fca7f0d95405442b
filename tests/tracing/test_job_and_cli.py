"""Wrong input is refused before torch is imported, with exit code 2 and nothing written."""

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simcore.apps.errors import as_app
from simcore.errors import InputError
from simcore.graph import load_graph
from tests.tracing.small_jobs import NEEDS, job
from workloads.tracing.drive import cli, progress

app = as_app(cli.app)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 5}, "layers 5 is not divisible by pp"),
        ({"heads": 3}, "hidden 128 is not divisible by heads 3"),
        ({"tp": 8, "heads": 4}, "heads 4 is not divisible by tp 8"),
        ({"vocab": 255}, "vocab 255 is not divisible by tp 2"),
        ({"microbatches": 0}, "microbatches: 0 must be at least 1"),
        ({"tp": -1}, "tp: -1 must be at least 1"),
        ({"precision": "bf61"}, "did you mean 'bf16'?"),
        ({"recompute": "ful"}, "did you mean 'full'?"),
        ({"tp": 1, "sequence_parallel": True}, "sequence_parallel needs tp > 1"),
        ({"virtual_pipeline": 2, "microbatches": 1}, "microbatches 1 must be at least pp 2"),
        ({"virtual_pipeline": 2, "microbatches": 3}, "microbatches 3 is not divisible by pp 2"),
        ({"pp": 1, "virtual_pipeline": 2}, "virtual_pipeline needs pp > 1"),
        ({"overlap_param_gather": True}, "needs distributed_optimizer and overlap_grad_reduce"),
        ({"first_stage_layers": 4}, "do not fall evenly"),
        ({"precision": "fp8"}, "Transformer Engine, whose kernels need a GPU"),
        ({"cp": 2}, "cp 2 runs flash attention, which is for bf16"),
        ({"cp": 3, "precision": "bf16"}, "seq 64 is not divisible by 2 [*] cp [*] tp 12"),
        ({"ep": 2}, "ep 2 needs num_experts"),
        ({"num_experts": 4}, "experts and tp > 1 need sequence_parallel"),
        ({"num_experts": 6, "ep": 4, "dp": 4}, "num_experts 6 is not divisible by ep 4"),
        ({"num_experts": 1, "tp": 1}, "moe_top_k 2 is more than num_experts 1"),
    ],
)
def test_jobs_that_megatron_cannot_run(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        job(**changes)


def test_uneven_first_and_last_stage() -> None:
    # 80 = 5 + 10 * 7 + 5
    made = job(layers=80, pp=12, first_stage_layers=5, last_stage_layers=5)
    assert made.world_size == 24
    assert "--first-stage-layers 5 --last-stage-layers 5" in made.command()


def test_command_names_what_is_not_default() -> None:
    assert job(sequence_parallel=True, precision="bf16").command() == (
        "python scripts/trace_workload.py megatron-gpt --layers 4 --hidden 128 --heads 4 --seq 64 "
        "--vocab 256 --tp 2 --pp 2 --dp 1 --microbatches 9 --precision bf16 --sequence-parallel"
    )


BASE = ["megatron-gpt", "--layers", "4", "--hidden", "128", "--heads", "4", "--seq", "64", "--vocab", "256"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*BASE, "--pp", "3"], "layers 4 is not divisible"),
        ([*BASE, "--precision", "fp23"], "did you mean 'fp32'?"),
        ([*BASE, "--jobs", "-1"], "jobs: -1 must not be negative"),
        ([*BASE, "--jobs", "1000000"], "jobs: 1000000 must be at most 1024"),
        ([*BASE, "--seq", "1000000000000"], "seq: 1000000000000 must be at most 16777216"),
        ([*BASE, "--dp", "9999999", "--pp", "4"], "39999996 ranks; at most 16777216"),
        ([*BASE, "--micro-batches", "4"], "No such option"),
        (["megatron-gtp"], "No such command"),
    ],
)
def test_wrong_arguments_exit_with_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    target = tmp_path / "graph"
    ran = CliRunner().invoke(app, [*arguments, "--out", str(target)])
    assert ran.exit_code == 2
    assert message in ran.output
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_graph_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    ran = CliRunner().invoke(app, [*BASE, "--out", str(tmp_path)])
    assert ran.exit_code == 2 and "nothing is removed" in " ".join(ran.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_help_states_the_defaults() -> None:
    ran = CliRunner().invoke(app, ["megatron-gpt", "--help"])
    assert ran.exit_code == 0
    assert "FP32 without" in ran.output and "default: full" in ran.output


def test_progress_is_said_in_a_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.shown_progress() as show:
        for seconds, done in ((0, 0), (4, 1), (6, 1), (8, 2), (9, 4)):
            now[0] = 100.0 + seconds
            show("trace", done, 4)
        for done in (0, 1):  # two ranks more in a second round of the phase
            now[0] += 6
            show("trace", done, 2)
    # 8 s for two of four; then 21 s for five of six.
    assert capsys.readouterr().err.splitlines() == [
        "trace: 2 of 4 ranks, 8 s, about 8 s left",
        "trace: 4 of 6 ranks, 15 s, about 8 s left",
        "trace: 5 of 6 ranks, 21 s, about 4 s left",
    ]


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDS), reason="needs megatron-core"
)
def test_a_traced_job_is_a_graph_folder(tmp_path: Path) -> None:
    target = tmp_path / "tiny"
    arguments = [*BASE, "--layers", "1", "--microbatches", "2", "--jobs", "1", "--out", str(target)]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    assert "1 ranks in 1 classes" in ran.output
    assert "2 processes (1 fingerprint, 1 trace), " in ran.output
    assert json.loads((target / "trace.json").read_text())["processes"] == {"fingerprint": 1, "trace": 1}
    graph = load_graph(target)
    assert graph.workload.name == "tiny" and graph.workload.num_microbatches == 2
    assert graph.workload.tokens_per_step == 2 * 64
    assert str(tmp_path) not in (target / "graph.json").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]  # nothing half-written beside it
