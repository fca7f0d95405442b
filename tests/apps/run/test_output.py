"""Where a run goes, and what happens when nobody can or wants to have it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import simcore.apps.run.beside
import simcore.apps.run.simulation

SCRIPT = Path(__file__).parents[3] / "scripts" / "run_sim.py"


def _unexpected(*_: object, **__: object) -> None:
    raise AssertionError("simulated although the run cannot be kept")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("", "working folder"),
        (".", "working folder"),
        ("..", "working folder"),
        ("a" * 300, "name too long"),
        ("taken", "taken is a file"),
        ("taken/run", "Not a directory"),
        ("/dev/null/run", "Not a directory"),
        ("nul\0", "null"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_at_once(
    run: Callable[..., Result], graph_dir: Path, monkeypatch: pytest.MonkeyPatch, out: str, message: str
) -> None:
    monkeypatch.setattr(simcore.apps.run.simulation, "run", _unexpected)
    Path("taken").write_text("mine")
    result = run("run-sim", graph_dir, "--out", out)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert [path.name for path in Path.cwd().iterdir()] == ["taken"]


def test_parents_come_and_go_with_the_run(
    run: Callable[..., Result], graph_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("kept").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(simcore.apps.run.beside, "write_perfetto", _unexpected)
        for out in ("new/deep/run", "kept/run"):
            assert run("run-sim", graph_dir, "--out", out).exit_code == 1
    assert [path.name for path in Path.cwd().rglob("*")] == ["kept"]
    assert run("run-sim", graph_dir, "--out", "new/deep/run").exit_code == 0
    assert Path("new/deep/run/run.json").is_file()


def test_a_link_to_a_run_is_followed(run: Callable[..., Result], graph_dir: Path) -> None:
    assert run("run-sim", graph_dir, "--out", "real").exit_code == 0
    Path("latest").symlink_to("real")
    assert run("run-sim", graph_dir, "--out", "latest", "--seed", "5", "--force").exit_code == 0
    assert Path("latest").is_symlink()
    assert '"seed": 5' in Path("real/run.json").read_text()


def said(stderr: str) -> list[str]:
    """Lines of stderr, without those that a slow machine's stages leave there."""
    return [line for line in stderr.splitlines() if not re.fullmatch(r"[a-zA-Z ]+: \d+\.\d s", line)]


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices of POSIX")
def test_output_that_nobody_takes(tmp_path: Path, graph_dir: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(graph_dir), "--out"]

    reading, writing = os.pipe()
    os.close(reading)  # the reader left before anything was printed, as head may
    piped = subprocess.run(
        [*command, "piped"], cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (piped.returncode, said(piped.stderr.decode())) == (141, [])
    assert (tmp_path / "piped" / "run.json").is_file()

    with Path("/dev/full").open("wb") as full:
        crowded = subprocess.run(
            [*command, "full"], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert crowded.returncode == 2
    assert crowded.stderr.strip().endswith(b"No space left on device")


def test_a_process_of_one_command_looks_for_no_garbage(tmp_path: Path, graph_dir: Path) -> None:
    program = f"""
import atexit, gc, os, sys
sys.path.insert(0, {str(SCRIPT.parents[1])!r})
from simcore.apps.process import alone
before = [generation["collections"] for generation in gc.get_stats()]
sys.argv = ["run_sim.py", {str(graph_dir)!r}, "--json", "--out", "run"]

@atexit.register
def told():
    after = [generation["collections"] for generation in gc.get_stats()]
    print(after == before, os.environ["OPENBLAS_NUM_THREADS"], file=sys.stderr)
class Last:
    def __del__(self):
        print("taken apart", file=sys.stderr)
last = Last()
alone("simcore.apps.run.run_sim:run_sim")
"""
    surroundings = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    for given in ({}, {"OPENBLAS_NUM_THREADS": "2"}):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path, env=surroundings | given, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert said(done.stderr) == [f"True {given.get('OPENBLAS_NUM_THREADS', '1')}"]
