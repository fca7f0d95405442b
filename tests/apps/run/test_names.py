"""Names that commands take can be listed, completed by a shell, and are told where they were meant."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

import simcore
from simcore.apps.main import app
from simcore.apps.progress import as_started
from simcore.apps.run.names import KINDS
from simcore.apps.run.scenario import resolve_scenario
from simcore.hardware import load_cluster, load_gpu

Run = Callable[..., Result]


def rows(run: Run, *words: str) -> list[dict[str, object]]:
    result = run("list", *words, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, object]] = json.loads(result.stdout)[words[0]]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_fits_a_terminal_and_says_more_than_names(run: Run, kind: str) -> None:
    text = run("list", kind).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert all(row["about"] and str(row["name"]) in text for row in rows(run, kind))


def test_what_is_listed_can_be_said(run: Run) -> None:
    (model,) = rows(run, "models", "llama3-405b")
    assert (model["layers"], model["hidden"], model["seq"]) == (126, 16384, 8192)
    assert resolve_scenario("llama3-405b", settings={}).described is not None
    for row in rows(run, "clusters"):
        assert load_cluster(str(row["name"])).num_gpus == row["num_gpus"]
    assert {load_gpu(str(row["name"])).name for row in rows(run, "gpus")} == {
        row["gpu"] for row in rows(run, "gpus")
    }
    keys = {row["name"]: row["about"] for row in rows(run, "settings")}
    assert keys["parallel.tp"] == "whole number; default 1"
    assert keys["training.recompute"] == "none|selective|full|ops; default none"
    assert keys["workload.kernels"] == "unfused|megatron|flash|cudnn"
    assert "400Gb/s" in str(keys["gpu.hbm_bytes_per_s"])


def test_what_cannot_be_listed_is_refused_with_the_nearest_name(run: Run) -> None:
    refused = run("list", "model")
    assert refused.exit_code == 2 and "did you mean 'models'?" in refused.stderr
    nobody = run("list", "models", "llama3-8x")
    assert nobody.exit_code == 2 and "did you mean 'llama3-8b'?" in nobody.stderr


@pytest.mark.parametrize(
    ("words", "hints"),
    [
        (("run-sim", "x", "--num-layers", "24"), ("--set model.layers=24", "--edit layers=24")),
        (("run-sim", "x", "--tp=8"), ("--set parallel.tp=8", "--edit tp=8")),
        (("run-sim", "x", "--tensor-model-parallel-size", "4"), ("--set parallel.tp=4",)),
        (("plan", "x", "--seq-length", "4096"), ("--set training.seq=4096",)),
        (("run-sim", "x", "--plot", "a.png"), ("an option of report",)),
        (("trace-workload", "megatron-gpt", "--num-layers", "2"), ("--layers",)),
        (("run_sim", "x"), ("run-sim",)),
    ],
)
def test_an_option_of_another_place_is_told_of(
    run: Run, words: tuple[str, ...], hints: tuple[str, ...]
) -> None:
    refused = run(*words)
    said = " ".join(refused.output.replace("│", " ").split())
    assert refused.exit_code == 2
    for hint in hints:
        assert hint in said, said


def test_version_and_module() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"simcore {simcore.__version__}\n"
    done = subprocess.run(
        [sys.executable, "-m", "simcore", "list", "gpus", "v100"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("v100")


def test_a_shell_completes_names() -> None:
    def completed(words: str, at: int) -> list[str]:
        asked = {"COMP_WORDS": words, "COMP_CWORD": str(at), "_SIMCORE_COMPLETE": "complete_bash"}
        return CliRunner().invoke(app, [], prog_name="simcore", env=asked).stdout.split()

    assert "llama3-8b" in completed("simcore run-sim llama3-", 2)
    assert "h100-efa" in completed("simcore run-sim --cluster h100-", 3)
    assert "--show-schedule" in completed("simcore run-sim --show", 2)


@pytest.mark.parametrize(
    ("started", "hint"),
    [
        ("scripts/run_sim.py", "python scripts/report.py RUN --list; as run_sim.py has it"),
        ("/usr/bin/simcore", "simcore report RUN --list; as simcore run-sim has it"),
        (
            "/lib/simcore/__main__.py",
            "python -m simcore report RUN --list; as python -m simcore run-sim has it",
        ),
    ],
)
def test_hints_name_the_commands_that_the_user_has(
    monkeypatch: pytest.MonkeyPatch, started: str, hint: str
) -> None:
    monkeypatch.setattr("sys.argv", [started])
    assert as_started("python scripts/report.py RUN --list; as run_sim.py has it") == hint
    listing = "simcore list models" if started.endswith("simcore") else "python -m simcore list models"
    assert as_started("python -m simcore list models") == listing
