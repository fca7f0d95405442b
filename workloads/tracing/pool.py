"""Worker processes that trace: spawned, never forked, because autograd's threads do not survive a fork."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from simcore.errors import SimcoreError
from workloads.tracing import fake_device

#: ``(phase, done, total)``, called as ranks finish.
Progress = Callable[[str, int, int], None]

Found = TypeVar("Found")


class TracingError(SimcoreError):
    """A worker process died or the program under trace failed."""


class WorkerPool:
    """Worker processes in which torch is patched; see :func:`workers`."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
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
        pending = {self._executor.submit(function, *call): rank_of(call) for call in calls}
        total, found = len(pending), []
        waiting: set[Future[Found]] = set(pending)
        if progress is not None:
            progress(phase, 0, total)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    found.append(future.result())
                except BrokenProcessPool:
                    raise TracingError(
                        f"a worker process died while it was rank {pending[future]} ({phase}); "
                        f"out of memory, or an unsupported torch build"
                    ) from None
                except Exception as error:
                    for other in waiting:
                        other.cancel()
                    if isinstance(error, SimcoreError):
                        raise
                    raise TracingError(
                        f"rank {pending[future]} ({phase}): {type(error).__name__}: {error}"
                    ) from error
                if progress is not None:
                    progress(phase, len(found), total)
        return found


@contextmanager
def workers(
    prepare: Callable[[str, str], None], num_workers: int | None = None, cache: Path | None = None
) -> Iterator[WorkerPool]:
    """Spawned processes in which ``prepare(tier, cache folder)`` has run.

    FakeDeviceError when torch cannot be used here.
    """
    installed = fake_device.find_torch()
    folder = cache or fake_device.cache_folder()
    tier = fake_device.choose_tier(installed, folder)
    count = num_workers or len(os.sched_getaffinity(0))
    with _environment(fake_device.child_environment()):
        executor = ProcessPoolExecutor(
            count, mp_context=get_context("spawn"), initializer=prepare, initargs=(tier, str(folder))
        )
        try:
            yield WorkerPool(executor)
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Spawned processes inherit the environment of the moment in which they start."""
    before: dict[str, Any] = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
