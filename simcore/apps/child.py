"""This program in a new interpreter: what that takes, and what it answers."""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError
from simcore.records import dataclass

#: What runs ``run_sim`` alone; its arguments follow.
RUN_SIM: Final = ("-c", "from simcore.apps.process import alone; alone('simcore.apps.run.run_sim:run_sim')")


@dataclass(frozen=True)
class Spent:
    """What a process printed and took, from its start to its end: wall and CPU seconds, most memory."""

    stdout: str
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int


def run_python(arguments: Sequence[str], *, cwd: Path | None = None) -> Spent:
    """Run this Python with ``arguments`` and this program in reach; what it says on stderr passes through.

    Sources are compiled before, as when the project is set up: where Python is told to keep no bytecode
    (PYTHONDONTWRITEBYTECODE), every process would compile anew what has been edited since.

    SystemExit, with the process's code, when it fails: it has said why.
    """
    _compile()
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, cwd=cwd, env=_surroundings()
    )
    assert process.stdout is not None
    with process.stdout:
        stdout = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)  # it is reaped: nobody need wait again
    if process.returncode:
        raise SystemExit(process.returncode if process.returncode > 0 else 1)
    return Spent(stdout, wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


@cache
def _compile() -> None:
    import simcore

    for package in ("simcore", "workloads"):
        compileall.compile_dir(Path(simcore.__file__).parents[1] / package, quiet=2)


def ask_run_sim(arguments: Sequence[str]) -> dict[str, Any]:
    """The object that ``run_sim --json`` prints.  InputError, with what it said, when it prints none."""
    done = subprocess.run(
        [sys.executable, *RUN_SIM, *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=_surroundings(),
    )
    if done.returncode:
        raise InputError(done.stderr.strip()[-500:] or "no answer")
    return dict(json.loads(done.stdout))


def _surroundings() -> dict[str, str]:
    """The environment with this program in Python's reach."""
    import simcore

    root = str(Path(simcore.__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
