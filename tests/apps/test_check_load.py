"""The script that says what many jobs take: a process that keeps something of each job fails it."""

import importlib.util
from pathlib import Path

import pytest
from typer.testing import CliRunner

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_load.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("check_load", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(script, *arguments):
    return CliRunner().invoke(script.app, list(arguments))


def test_jobs_that_leave_nothing_pass(script, monkeypatch):
    monkeypatch.setattr(script, "_simulate", lambda job, out: bytearray(2**20))
    done = run(script, "many", "40")
    assert done.exit_code == 0, done.stdout
    assert "growth from job" in done.stdout


def test_jobs_that_leave_something_fail(script, monkeypatch):
    kept = []
    monkeypatch.setattr(script, "_simulate", lambda job, out: kept.append(bytes(range(256)) * 2**12))
    done = run(script, "many", "40")
    assert done.exit_code == 1
    growth = float(done.stdout.rpartition("on: ")[2].split()[0])
    assert growth == pytest.approx(1024, rel=0.1)  # KiB: 256 bytes, 4,096 times, of each job


def test_its_jobs_run_and_differ(script, tmp_path):
    settings = {str(script.settings_of(job)) for job in range(200)}
    assert len(settings) == 200
    script._simulate(4, tmp_path / "run")
    assert (tmp_path / "run" / "run.json").exists()
