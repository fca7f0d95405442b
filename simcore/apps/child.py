"""Python processes that measure: this program in a new interpreter, and what that took."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer


@dataclass(frozen=True)
class Spent:
    """What a process printed and took, from its start to its end: wall and CPU seconds, most memory."""

    stdout: str
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int


def run_python(arguments: Sequence[str], *, cwd: Path | None = None) -> Spent:
    """Run this Python with ``arguments`` and this program in reach; what it says on stderr passes through.

    typer.Exit, with the process's code, when it fails: it has said why.
    """
    import simcore

    root = str(Path(simcore.__file__).parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert process.stdout is not None
    with process.stdout:
        stdout = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)  # it is reaped: nobody need wait again
    if process.returncode:
        raise typer.Exit(process.returncode if process.returncode > 0 else 1)
    return Spent(stdout, wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
