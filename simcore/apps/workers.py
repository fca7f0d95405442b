"""Worker processes: what each job gives, as it comes, whatever becomes of a worker."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import TypeVar

from simcore.errors import InputError

Job = TypeVar("Job")
Found = TypeVar("Found")


def each(
    function: Callable[[Job], Found], jobs: Iterable[Job], count: int, name: Callable[[Job], str]
) -> Generator[Found, None, None]:
    """``function`` of each job, in ``count`` forks of this process, in the order in which they end.

    The next job is asked for when a fork is free: it may depend on what others gave.  ``function`` raises no
    exception.  A job whose worker is killed is done again, once.  Close the generator to end the workers.
    Errors: InputError, with the job's ``name``, when its worker is killed twice.
    """
    context = multiprocessing.get_context("fork")
    queue: deque[Job] = deque()
    coming = iter(jobs)
    again: list[Job] = []
    idle: list[tuple[ForkProcess, Connection]] = []
    running: dict[Connection, tuple[ForkProcess, Job]] = {}
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
                running[connection] = process, job
                with suppress(OSError):  # a dead one is told of below
                    connection.send(job)
            if not running:
                return
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                process, job = running.pop(ready)
                try:
                    found: Found = ready.recv()
                except (EOFError, OSError):
                    ready.close()
                    process.join()
                    if any(job is one for one in again):
                        raise _killed(name(job), process.exitcode) from None
                    again.append(job)
                    queue.appendleft(job)
                else:
                    idle.append((process, ready))
                    yield found
    finally:
        for connection, process in [(c, p) for p, c in idle] + [(c, p) for c, (p, _) in running.items()]:
            process.kill()
            process.join()
            connection.close()


def _killed(name: str, code: int | None) -> InputError:
    how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
    return InputError(
        f"{name}: its worker process was ended twice, the last time {how}; when memory is short, the system"
        " does so: give it fewer cores (taskset -c 0) or more memory"
    )


def _work(function: Callable[[Job], Found], connection: Connection, inherited: Sequence[Connection]) -> None:
    """Do the jobs that arrive until the other end closes, which nobody but the parent may hold open."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    for other in inherited:
        other.close()
    try:
        while True:
            connection.send(function(connection.recv()))
    except (EOFError, OSError):
        return
