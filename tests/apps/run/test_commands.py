"""The console script: every command is there, and answers without what it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.files import write_manifest
from tests.synthetic import write_two_stage_run

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["run-sim"], "--cluster"),
        (["report"], "--perfetto"),
        (["report"], "Perfetto also shows the host's calls and waits; left out otherwise."),
        (["compare"], "--top"),
        (["bench", "run"], "--shortcuts"),
        (["validate"], "--kernels"),
    ],
)
def test_help(command: list[str], told: str) -> None:
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert told in result.output


def test_all_commands_are_listed() -> None:
    listed = CliRunner().invoke(app, ["--help"]).output
    for command in ("run-sim", "report", "compare", "bench", "trace-workload", "validate"):
        assert command in listed


def test_help_needs_neither_torch_nor_numpy() -> None:
    program = (
        "import atexit, sys\nsys.argv = ['simcore', '--help']\nfrom simcore.apps.process import main\n"
        "@atexit.register\ndef told():\n"
        "    found = [m for m in ('torch', 'numpy', 'pyarrow', 'simpy') if m in sys.modules]\n"
        "    print(found, file=sys.stderr)\n"
        "main()\n"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True)
    assert found.stderr.decode().strip() == "[]"


def test_no_command_needs_torch_to_explain_itself() -> None:
    """Whoever installed the package without its extras asks what ``trace-workload`` would do."""
    program = (
        "import sys\nsys.modules['torch'] = None\nfrom typer.testing import CliRunner\n"
        "from simcore.apps.main import app\n"
        "for command in CliRunner().invoke(app, ['--help']).output.split():\n"
        "    if command in ('trace-workload', 'profile-gpu', 'calibrate', 'validate', 'plan', 'replay'):\n"
        "        found = CliRunner().invoke(app, [command, '--help'])\n"
        "        print(command, found.exit_code, found.exception or '')"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert len(set(found.stdout.splitlines())) == 6
    assert all(line.endswith(" 0 ") for line in found.stdout.splitlines()), found.stdout


def test_validate_passes_its_exit_code_on() -> None:
    assert CliRunner().invoke(app, ["validate", "--kernels", "nosuch.csv"]).exit_code == 2


def test_profiler_traces_need_the_name_of_a_file(tmp_path: Path) -> None:
    write_two_stage_run(tmp_path / "a")
    found = CliRunner().invoke(app, ["report", str(tmp_path / "a"), "--kineto", "."])
    assert (found.exit_code, found.stderr) == (2, "error: '.' is no name of a file for profiler traces\n")


def test_a_run_compared_with_itself_and_with_a_slower_one(tmp_path: Path) -> None:
    write_two_stage_run(tmp_path / "a")
    run = str(tmp_path / "a")
    same = CliRunner().invoke(app, ["compare", run, run])
    assert same.exit_code == 0, same.output
    assert "same workload, cluster, settings and version" in same.stdout
    assert "every op takes the same time" in same.stdout

    slower = tmp_path / "b"
    write_two_stage_run(slower)
    facts = json.loads((slower / "run.json").read_text())
    facts["step_ps"] *= 2
    facts["cluster"]["gpu"]["name"] = "tinier"
    (slower / "run.json").write_text(json.dumps(facts))
    write_manifest(slower, "run")
    found = json.loads(CliRunner().invoke(app, ["compare", run, str(slower), "--json"]).stdout)
    # 300,000 ps against twice that: half the speed.
    assert found["step_time_s"] == pytest.approx([300e-9, 600e-9])
    assert found["speedup"] == pytest.approx(0.5)
    assert found["inputs"] == {"cluster.gpu.name": ["tiny", "tinier"]}


def test_compare_refuses_what_is_no_run(tmp_path: Path) -> None:
    write_two_stage_run(tmp_path / "a")
    result = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path)])
    assert result.exit_code == 2
    assert "not a run folder" in " ".join(result.stderr.split())
