"""What a run does not import: each would cost it more time than simulating a small job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "job", [["bert-large", "--cluster", "h100-8"], ["gpt-13b-pp8-tp4-dp2"]], ids=["described", "traced"]
)
def test_a_run_starts_without_what_it_does_not_need(job: list[str], tmp_path: Path) -> None:
    program = (
        "import atexit, sys, numpy\n"
        "brought = set(sys.modules)\n"
        "from simcore.apps.process import alone\n"
        f"sys.argv = ['run', *{job}, '--json', '--out', 'run']\n"
        "@atexit.register\n"
        "def told():\n"
        "    found = set(sys.modules) - brought\n"
        "    found &= {'pandas', 'scipy', 'torch', 'matplotlib', 'workloads.imports', 'numpy.ma'}\n"
        "    print(sorted(found), file=sys.stderr)\n"
        "alone('simcore.apps.run.run_sim:run_sim')\n"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == "[]"
