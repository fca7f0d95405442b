"""Run ranks that wait for each other's messages, each alone, so that all are answered."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from simcore.errors import InputError
from workloads.tracing.mail import EVERYBODY, Waiting, who_waits
from workloads.tracing.pool import Progress, WorkerPool, outcome
from workloads.tracing.script import rank_script
from workloads.tracing.script.job import ScriptJob
from workloads.tracing.script.rank_script import ScriptTrace

_LOOK_S = 0.05


class Rounds:
    """Records ranks of ``job``; ``mail`` is the folder of what they send each other.

    When every rank that runs waits for a message, the sender that the lowest of them wants is run, too: a
    pipeline is followed from its first stage to its last.
    """

    def __init__(self, pool: WorkerPool, job: ScriptJob, mail: Path, progress: Progress | None) -> None:
        self.seen: dict[int, ScriptTrace] = {}
        self._pool = pool
        self._job = job
        self._mail = mail
        self._progress = progress
        self._running: dict[Future[ScriptTrace], int] = {}

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
                for future in done:
                    rank = self._running.pop(future)
                    self.seen[rank] = outcome(future, rank, "trace")
                self._follow(who_waits(self._mail))
        finally:
            for future in self._running:
                future.cancel()
            self._running.clear()
            self._pool.lend(0)
        self._report(began)
        return sorted(set(self.seen) - began)

    def _start(self, rank: int) -> None:
        future = self._pool.start(rank_script.run_script, self._job, rank, self._mail)
        self._running[future] = rank

    def _follow(self, waiting: Sequence[Waiting]) -> None:
        self._pool.lend(len(waiting))
        stuck = [one for one in waiting if one.address.found(self._mail) is None]
        if not stuck or len(stuck) < len(self._running):
            return
        known = {*self.seen, *self._running.values()}
        senders = [one.address.source for one in stuck if one.address.source not in known]
        if not senders:
            raise InputError(self._deadlock(stuck))
        self._start(senders[0])

    def _report(self, began: set[int]) -> None:
        if self._progress is not None:
            done = len(self.seen) - len(began)
            self._progress("trace", done, done + len(self._running))

    def _deadlock(self, stuck: Sequence[Waiting]) -> str:
        lines = ["ranks wait for objects that nobody sends:"]
        for one in stuck:
            address = one.address
            how = "broadcast by" if address.target == EVERYBODY else "from"
            state = "has run without sending it" if address.source in self.seen else "waits itself"
            lines.append(
                f"  rank {one.rank} at {one.site} waits for message {address.number} {how} rank "
                f"{address.source} in group {address.group!r}; rank {address.source} {state}"
            )
        lines.append("  what to do: send before receiving, on some rank of every circle")
        return "\n".join(lines)
