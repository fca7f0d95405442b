"""Worker processes: what each job gives, as it comes, whatever becomes of a worker.

Executors of libraries end as a whole when one of their workers is killed, and take jobs ahead of time; here
a killed worker costs its job alone, and a job is chosen when a worker is free, by all that is known then.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import TypeVar

from simcore.apps.process import collect_for_long
from simcore.errors import InputError

Job = TypeVar("Job")
Found = TypeVar("Found")


class LocalWorkers:
    """``count`` forks of this process (None: one for each core that it may use)."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or max(1, len(os.sched_getaffinity(0)))

    def each(
        self,
        function: Callable[[Job], Found],
        jobs: Iterable[Job],
        name: Callable[[Job], str],
        *,
        lost: Callable[[Job, str], Found] | None = None,
        limit_s: float = math.inf,
        alone: bool = False,
    ) -> Generator[Found, None, None]:
        """As :func:`each`; ``alone``: one after the other."""
        return each(function, jobs, 1 if alone else self.count, name, lost=lost, limit_s=limit_s)

    def incumbent(self, gap: float, step_s: float = math.inf) -> KnownToParent:  # noqa: ARG002
        """Nothing to share: this process, which has the results, chooses each job when a fork is free."""
        return KnownToParent()


class KnownToParent:
    """The best so far of jobs that a process chooses which knows it."""

    def excludes(self, bound_s: float) -> bool:  # noqa: ARG002
        """Nothing: it would not have been chosen."""
        return False

    def learn(self, step_s: float) -> None:
        """The parent does."""


def each(
    function: Callable[[Job], Found],
    jobs: Iterable[Job],
    count: int,
    name: Callable[[Job], str],
    *,
    lost: Callable[[Job, str], Found] | None = None,
    limit_s: float = math.inf,
) -> Generator[Found, None, None]:
    """``function`` of each job, in ``count`` forks of this process, in the order in which they end.

    The next job is asked for when a fork is free: it may depend on what others gave.  ``function`` raises no
    exception.  A job whose worker is killed is done again, once.  Close the generator to end the workers.
    ``lost``: what a job gives, and how its worker ended, instead of being done again.  ``limit_s``: a worker
    that needs longer for a job is killed; only with ``lost``.
    Errors: InputError, with the job's ``name``, when its worker is killed twice.
    """
    context = multiprocessing.get_context("fork")
    queue: deque[Job] = deque()
    coming = iter(jobs)
    again: list[Job] = []
    idle: list[tuple[ForkProcess, Connection]] = []
    running: dict[Connection, tuple[ForkProcess, Job, float]] = {}
    try:
        while True:
            while len(running) < count and (queue := queue or deque(islice(coming, 1))):
                if not idle:
                    ours, theirs = context.Pipe()
                    # Nobody is idle here, so these are all ends of ours that it would hold open.
                    process = context.Process(target=_work, args=(function, theirs, (ours, *running)))
                    process.start()
                    theirs.close()
                    idle.append((process, ours))
                process, connection = idle.pop()
                job = queue.popleft()
                running[connection] = process, job, time.monotonic() + limit_s
                with suppress(OSError):  # a dead one is told of below
                    connection.send(job)
            if not running:
                return
            for ready in _ready(running):
                process, job, until = running.pop(ready)
                try:
                    found: Found = ready.recv()
                except (EOFError, OSError):
                    ready.close()
                    process.join()
                    if lost is not None:
                        late = time.monotonic() >= until
                        yield lost(job, f"after {limit_s:g} s" if late else _how(process.exitcode))
                        continue
                    if any(job is one for one in again):
                        raise _killed(name(job), process.exitcode) from None
                    again.append(job)
                    queue.appendleft(job)
                else:
                    idle.append((process, ready))
                    yield found
    finally:
        for connection, process in [(c, p) for p, c in idle] + [(c, p) for c, (p, *_) in running.items()]:
            process.kill()
            process.join()
            connection.close()


def _ready(running: Mapping[Connection, tuple[ForkProcess, object, float]]) -> list[Connection]:
    """Connections of workers that gave something or ended; those that need too long are killed for it."""
    until = min(one[2] for one in running.values())
    found = wait(list(running), timeout=None if until == math.inf else max(0.0, until - time.monotonic()))
    ready = [one for one in found if isinstance(one, Connection)]
    for connection, (process, _, end) in running.items():
        if time.monotonic() >= end and connection not in ready:
            process.kill()
            ready.append(connection)
    return ready


def _how(code: int | None) -> str:
    return f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"


def _killed(name: str, code: int | None) -> InputError:
    return InputError(
        f"{name}: its worker process was ended twice, the last time {_how(code)}; when memory is short, the"
        " system does so: give it fewer cores (taskset -c 0) or more memory"
    )


def _work(function: Callable[[Job], Found], connection: Connection, inherited: Sequence[Connection]) -> None:
    """Do the jobs that arrive until the other end closes, which nobody but the parent may hold open."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    gc.freeze()  # what it shares with its parent is not looked through
    collect_for_long()
    for other in inherited:
        other.close()
    try:
        while True:
            connection.send(function(connection.recv()))
    except (EOFError, OSError):
        return
