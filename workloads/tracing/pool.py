"""Worker processes that trace, a fresh one for every rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from simcore.errors import SimcoreError
from workloads.tracing import fake_device
from workloads.tracing.fork_server import ForkExecutor

#: ``(phase, done, total)``, called as ranks finish.
Progress = Callable[[str, int, int], None]

Found = TypeVar("Found")


class TracingError(SimcoreError):
    """A worker process died or the program under trace failed."""


class WorkerPool:
    """Worker processes in which torch is patched; see :func:`workers`."""

    def __init__(self, executor: ForkExecutor) -> None:
        self._executor = executor

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of ``function``, a module's own, run in one worker."""
        return self._executor.submit(function, *args).result()

    def ranks(
        self,
        function: Callable[..., Found],
        calls: Sequence[tuple[Any, ...]],
        rank_of: Callable[[tuple[Any, ...]], int],
        phase: str = "trace",
        progress: Progress | None = None,
    ) -> list[Found]:
        """``function(*call)`` for each call, results in any order of completion.

        A SimcoreError of a worker is raised as it is; TracingError, naming the rank, for anything else.
        """
        pending = {self.start(function, *call): rank_of(call) for call in calls}
        total, found = len(pending), []
        waiting: set[Future[Found]] = set(pending)
        if progress is not None:
            progress(phase, 0, total)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    found.append(outcome(future, pending[future], phase))
                except SimcoreError:
                    for other in waiting:
                        other.cancel()
                    raise
                if progress is not None:
                    progress(phase, len(found), total)
        return found

    def start(self, function: Callable[..., Found], *args: Any) -> Future[Found]:
        """``function``, a module's own, begun in a worker; :func:`outcome` gives its result."""
        return self._executor.submit(function, *args)

    def lend(self, count: int) -> None:
        """Run ``count`` calls more at a time: as many as wait for others."""
        self._executor.lend(count)


def outcome(future: Future[Found], rank: int, phase: str) -> Found:
    """What a worker that was ``rank`` found.  A SimcoreError as it is; TracingError for anything else."""
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise TracingError(
            f"rank {rank} ({phase}): its process {error} before it was done\n  what to do: see whether the "
            f"program ends itself (os._exit, a crash in C code) or memory ran out (fewer --jobs)"
        ) from None
    except SimcoreError:
        raise
    except Exception as error:
        raise TracingError(f"rank {rank} ({phase}): {type(error).__name__}: {error}") from error


@contextmanager
def workers(
    prepare: Callable[..., None],
    num_workers: int | None = None,
    cache: Path | None = None,
    arguments: tuple[Any, ...] = (),
) -> Iterator[WorkerPool]:
    """Forks of one process in which ``prepare(tier, cache folder, *arguments)`` has run.

    FakeDeviceError when torch cannot be used here.
    """
    installed = fake_device.find_torch()
    folder = cache or fake_device.cache_folder()
    tier = fake_device.choose_tier(installed, folder)
    executor = ForkExecutor(
        num_workers or len(os.sched_getaffinity(0)),
        prepare,
        (tier, str(folder), *arguments),
        fake_device.child_environment(),
    )
    try:
        yield WorkerPool(executor)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
