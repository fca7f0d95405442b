"""The script that says what many cases take: a sweep that keeps something of each case fails it."""

import importlib.util
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from simcore.apps.sweep.spec import sweep_spec
from simcore.apps.sweep.sweeping import asked

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_load.py"
#: Notes a case every tenth of a second, and keeps so many KiB of each.
PROGRAM = """
import sys, time
kept = []
for _ in range(int(sys.argv[2])):
    kept.append(bytes(range(256)) * 4 * int(sys.argv[3]))
    open(sys.argv[1], "a").write("{}\\n")
    time.sleep(0.1)
"""


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("check_load", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def swept(script, monkeypatch):
    """What the script says of a sweep that keeps so many KiB of each of 20 cases."""

    def run(kib, cases=20):
        def sweeping(spec, out):
            out.mkdir()
            return [sys.executable, "-c", PROGRAM, str(out / "simulations.jsonl"), str(cases), str(kib)]

        monkeypatch.setattr(script, "_sweeping", sweeping)
        return CliRunner().invoke(script.app, ["sweep", "20"])

    return run


def test_cases_that_leave_nothing_pass(swept):
    done = swept(0)
    assert done.exit_code == 0, done.stdout
    assert "growth from case" in done.stdout


def test_cases_that_leave_something_fail(swept):
    done = swept(1024)
    assert done.exit_code == 1
    growth = float(done.stdout.rpartition("on: ")[2].split()[0])
    assert growth == pytest.approx(1024, rel=0.1)


def test_a_sweep_that_does_not_do_all_fails(swept):
    done = swept(0, cases=19)
    assert done.exit_code == 1
    assert "19 of 20 cases" in done.stdout


def test_its_cases_can_be_and_differ(script, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(script.spec_of(200)))
    keys = [case.key for case in asked(sweep_spec(path)).cases]
    assert "" not in keys
    assert len(set(keys)) == 200
