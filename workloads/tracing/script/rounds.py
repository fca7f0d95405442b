"""Run ranks that wait for each other's messages, each alone, in an order in which all are answered."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from simcore.errors import InputError
from workloads.tracing.mail import EVERYBODY
from workloads.tracing.pool import Progress, WorkerPool, outcome
from workloads.tracing.script import rank_script
from workloads.tracing.script.job import ScriptJob
from workloads.tracing.script.rank_script import ScriptTrace, Unanswered

_LOOK_S = 0.05


class Rounds:
    """Records ranks of ``job``; ``mail`` is the folder of what they send each other.

    A rank that ends for want of a message is run again once the message is there.  When nothing else can be
    run, the sender that the lowest waiting rank wants is run, too: a pipeline is followed from its first
    stage to its last and back.
    """

    def __init__(self, pool: WorkerPool, job: ScriptJob, mail: Path, progress: Progress | None) -> None:
        self.seen: dict[int, ScriptTrace] = {}
        self._pool = pool
        self._job = job
        self._mail = mail
        self._progress = progress
        self._waiting: dict[int, Unanswered] = {}
        self._running: dict[Future[ScriptTrace | Unanswered], int] = {}

    def run(self, ranks: Sequence[int]) -> list[int]:
        """Record ``ranks`` and the senders that they wait for; returns all of these.

        InputError when ranks wait for each other in a circle, or for what nobody sends.
        """
        began = set(self.seen)
        for rank in ranks:
            self._start(rank)
        try:
            while self._running or self._waiting:
                self._report(began)
                done, _ = wait(self._running, _LOOK_S if self._waiting else None, FIRST_COMPLETED)
                for future in done:
                    rank = self._running.pop(future)
                    found = outcome(future, rank, "trace")
                    if isinstance(found, Unanswered):
                        self._waiting[rank] = found
                    else:
                        self.seen[rank] = found
                self._resume()
        finally:
            for future in self._running:
                future.cancel()
            self._running.clear()
        self._report(began)
        return sorted(set(self.seen) - began)

    def _start(self, rank: int) -> None:
        future = self._pool.start(rank_script.run_script, self._job, rank, self._mail)
        self._running[future] = rank

    def _resume(self) -> None:
        answered = [r for r, one in self._waiting.items() if one.address.found(self._mail) is not None]
        for rank in sorted(answered):
            del self._waiting[rank]
            self._start(rank)
        if self._waiting and not self._running:
            known = {*self.seen, *self._waiting}
            wanted = [self._waiting[rank].address.source for rank in sorted(self._waiting)]
            senders = [rank for rank in wanted if rank not in known]
            if not senders:
                raise InputError(self._deadlock())
            self._start(senders[0])

    def _report(self, began: set[int]) -> None:
        if self._progress is not None:
            done = len(self.seen) - len(began)
            self._progress("trace", done, done + len(self._running) + len(self._waiting))

    def _deadlock(self) -> str:
        lines = ["ranks wait for objects that nobody sends:"]
        for rank, one in sorted(self._waiting.items()):
            address = one.address
            how = "broadcast by" if address.target == EVERYBODY else "from"
            state = "waits itself" if address.source in self._waiting else "has run without sending it"
            lines.append(
                f"  rank {rank} at {one.site} waits for message {address.number} {how} rank "
                f"{address.source} in group {address.group!r}; rank {address.source} {state}"
            )
        lines.append("  what to do: send and receive in an order that ends where each rank runs alone")
        return "\n".join(lines)
