"""Calls in forks of one prepared process."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.rounds import TracingError, outcome
from workloads.tracing.fake.device import child_environment


def executor(prepare: Callable[..., Any] = os.getpid, *arguments: Any, count: int = 2) -> WorkerPool:
    return WorkerPool(count, prepare, arguments, child_environment())


def test_every_call_starts_from_the_prepared_state() -> None:
    with executor(os.chdir, "/usr") as running:
        running.submit(os.chdir, "/").result()
        assert running.submit(os.getcwd).result() == "/usr"
        processes = {running.submit(os.getpid).result() for _ in range(3)}
    assert len(processes) == 3 and os.getpid() not in processes


def test_a_call_that_fails_and_a_process_that_dies_say_how() -> None:
    with executor(count=1) as running:
        with pytest.raises(ValueError, match="invalid literal"):
            running.submit(int, "x").result()
        with pytest.raises(BrokenProcessPool, match="exit code 7"):
            running.submit(os._exit, 7).result()
        with pytest.raises(BrokenProcessPool, match="signal 6"):
            running.submit(os.abort).result()
        assert running.submit(len, "abc").result() == 3  # the others are not affected
        with pytest.raises(TracingError, match=r"rank 4 \(trace\): its process ended with exit code 7"):
            outcome(running.submit(os._exit, 7), 4, "trace")


def test_a_process_that_cannot_be_prepared_fails_every_call() -> None:
    with executor(os._exit, 1) as running:
        for _ in range(2):
            with pytest.raises(BrokenProcessPool, match="could not start"):
                running.submit(len, "abc").result()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a signal at a parent's death")
def test_a_killed_server_takes_what_it_runs_with_it(tmp_path: Path) -> None:
    running = executor()
    server = running.submit(os.getppid).result()
    slow = running.submit(_say_and_sleep, tmp_path / "child")
    while not (tmp_path / "child").exists():
        time.sleep(0.01)
    child = int((tmp_path / "child").read_text())
    os.kill(server, signal.SIGKILL)
    with pytest.raises(BrokenProcessPool, match="has ended"):
        slow.result(timeout=10)
    running.shutdown()
    until = time.monotonic() + 10
    while _lives(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _lives(child)


def _say_and_sleep(path: Path) -> None:
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    time.sleep(60)


def _lives(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_calls_wait_for_a_free_process_and_may_be_cancelled() -> None:
    running = executor(count=1)
    slow = running.submit(time.sleep, 60.0)
    waiting = running.submit(len, "abc")
    assert not waiting.done()
    running.shutdown(cancel_futures=True)
    assert waiting.cancelled() and isinstance(slow.exception(), BrokenProcessPool)
