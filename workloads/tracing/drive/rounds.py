"""Ranks in worker processes, a fresh one for each; those that wait for each other's messages get them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

from simcore.errors import InputError, SimcoreError
from workloads.tracing.drive import rank_run
from workloads.tracing.drive.fork_server import WorkerPool
from workloads.tracing.drive.framework_imports import Preparation
from workloads.tracing.drive.script_job import ScriptJob
from workloads.tracing.fake import device
from workloads.tracing.fake.mail import EVERYBODY, EVERYBODY_VALUES, Waiting, stays_away, who_waits
from workloads.tracing.record.assemble import RankTrace

#: ``(phase, done, total)``, called as ranks finish.
Progress = Callable[[str, int, int], None]

_LOOK_S = 0.05


class TracingError(SimcoreError):
    """A worker process died or the program under trace failed."""


def outcome(future: Future[RankTrace], rank: int, phase: str) -> RankTrace:
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
    num_workers: int | None = None,
    cache: Path | None = None,
    *,
    preparation: Preparation | None = None,
) -> Iterator[WorkerPool]:
    """Forks of one process that :func:`workloads.tracing.drive.rank_run.prepare` has readied;
    ``num_workers`` at a time, default one per core.

    FakeDeviceError when torch cannot be used here.
    """
    installed = device.find_torch()
    folder = cache or device.cache_folder()
    pool = WorkerPool(
        num_workers or len(os.sched_getaffinity(0)),
        rank_run.prepare,
        (device.choose_tier(installed, folder), str(folder), preparation or Preparation()),
        device.child_environment(),
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Rounds:
    """Records ranks, each as the job that ``job_of`` gives it, in one ``phase`` of tracing; ``mail`` is the
    folder of what they send each other, ``processes`` counts those started in each phase.

    When every rank that runs waits for a message, the sender that the lowest of them wants is run, too: a
    pipeline is followed from its first stage to its last.
    """

    def __init__(
        self,
        pool: WorkerPool,
        job_of: Callable[[int], ScriptJob],
        mail: Path,
        phase: str = "trace",
        progress: Progress | None = None,
        processes: dict[str, int] | None = None,
    ) -> None:
        self.seen: dict[int, RankTrace] = {}
        self._pool = pool
        self._job_of = job_of
        self._mail = mail
        self._phase = phase
        self._progress = progress
        self._running: dict[Future[RankTrace], int] = {}
        self._processes = {} if processes is None else processes

    def run(self, ranks: Sequence[int]) -> list[int]:
        """Record ``ranks`` and the senders that they wait for; returns all of these.

        InputError when ranks wait for each other in a circle, or for what nobody sends.
        """
        began = set(self.seen)
        for rank in ranks:
            self._start(rank)
        try:
            while self._running:
                self._report(began)
                done, _ = wait(self._running, _LOOK_S, FIRST_COMPLETED)
                for future in [one for one in self._running if one in done]:  # as they began
                    rank = self._running.pop(future)
                    self.seen[rank] = outcome(future, rank, self._phase)
                self._follow(who_waits(self._mail))
        finally:
            for future in self._running:
                future.cancel()
            self._running.clear()
            self._pool.lend(0)
        self._report(began)
        return sorted(set(self.seen) - began)

    def _start(self, rank: int) -> None:
        future = self._pool.submit(rank_run.run_rank, self._job_of(rank), rank, self._mail)
        self._running[future] = rank
        self._processes[self._phase] = self._processes.get(self._phase, 0) + 1

    def _follow(self, waiting: Sequence[Waiting]) -> None:
        self._pool.lend(len(waiting))
        stuck = [one for one in waiting if one.address.found(self._mail) is None]
        if not stuck or len(stuck) < len(self._running):
            return
        known = {*self.seen, *self._running.values()}
        shared = [one.address for one in stuck if one.address.shared]
        needed = [one.address.source for one in stuck if not one.address.shared]
        senders = [source for source in needed if source not in known]
        if senders:
            self._start(senders[0])
        elif shared:
            for address in shared:
                stays_away(address, self._mail)
        else:
            raise InputError(self._deadlock(stuck))

    def _report(self, began: set[int]) -> None:
        if self._progress is not None:
            done = len(self.seen) - len(began)
            self._progress(self._phase, done, done + len(self._running))

    def _deadlock(self, stuck: Sequence[Waiting]) -> str:
        lines = ["ranks wait for objects that nobody sends:"]
        for one in stuck:
            address = one.address
            how = "broadcast by" if address.target in (EVERYBODY, EVERYBODY_VALUES) else "from"
            state = "has run without sending it" if address.source in self.seen else "waits itself"
            lines.append(
                f"  rank {one.rank} at {one.site} waits for message {address.number} {how} rank "
                f"{address.source} in group {address.group!r}; rank {address.source} {state}"
            )
        lines.append("  what to do: send before receiving, on some rank of every circle")
        return "\n".join(lines)
