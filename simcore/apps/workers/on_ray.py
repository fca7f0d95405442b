"""Jobs on many machines, by Ray: whatever becomes of a process or of a machine, its jobs are done elsewhere.

Note [Who decides].  The process that asks has the jobs, the store and the order; workers get one job at a
time and give its result.  So a machine that dies takes nothing with it but what it was doing, which is asked
again, and nothing is noted twice.  Jobs are handed out a few ahead, that no worker waits; by the time one is
begun a better candidate may be known, which an actor tells: the job is then left out.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Final, TypeVar

import ray
from ray.exceptions import LocalRayletDiedError, NodeDiedError, OutOfMemoryError, RayError, WorkerCrashedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from simcore.apps.progress import say
from simcore.errors import InputError
from simcore.records import dataclass

Job = TypeVar("Job")
Found = TypeVar("Found")

#: Jobs handed out beyond what runs, as a share of it.
_AHEAD: Final = 0.25
#: How often the size of the cluster is looked at.
_LOOK_S: Final = 2.0
_ANSWERS_S: Final = 5.0
_LOCAL: Final = "local"


class RayWorkers:
    """The CPUs of the cluster at ``address`` (host:port, "auto", or "local": one of this machine alone).

    ``version`` of the code must be the same on all nodes.  Errors: InputError where nothing answers.
    """

    def __init__(self, address: str, version: Callable[[], str]) -> None:
        self._version = version
        self._looked, self._count = -math.inf, 1
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        _check_answers(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError, RayError) as error:
            raise InputError(f"--ray {address}: {str(error).splitlines()[0]}") from None
        say(f"Ray: {self._slots()} CPUs on {_num_nodes()} nodes")

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
        """As :func:`simcore.apps.workers.local.each`; a job whose machine died is done again elsewhere."""
        shared = ray.put(function)
        token = uuid.uuid4().hex
        expected = self._version()
        coming = iter(jobs)
        queue: deque[Job] = deque()
        again: list[Job] = []
        running: dict[Any, Job] = {}
        try:
            while True:
                most = 1 if alone else math.ceil(self._slots() * (1 + _AHEAD))
                while len(running) < most and (queue := queue or deque(islice(coming, 1))):
                    job = queue.popleft()
                    reference = _DO.remote([shared], token, self._version, expected, job, limit_s)
                    running[reference] = job
                if not running:
                    return
                ready, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_S)
                for reference in ready:
                    job = running.pop(reference)
                    how = ""
                    try:
                        done: _Done = ray.get(reference)
                    except (NodeDiedError, LocalRayletDiedError):
                        say(f"a node has died: {name(job)[:60]} is done elsewhere")
                        queue.append(job)
                        continue
                    except OutOfMemoryError:
                        how = "as its machine had no more memory"
                    except WorkerCrashedError:
                        how = "as its process died"
                    else:
                        if done.other_version:
                            raise InputError(
                                f"--ray: node {done.node} has another version of stepsim than this machine"
                            )
                        if not done.late:
                            yield done.found
                            continue
                        how = f"after {limit_s:g} s"
                    if lost is not None:
                        yield lost(job, how)
                    elif any(job is one for one in again):
                        raise InputError(f"{name(job)}: ended twice, the last time {how}")
                    else:
                        again.append(job)
                        queue.append(job)
        finally:
            for reference in running:
                with suppress(RayError, ValueError):
                    ray.cancel(reference, force=True)

    def incumbent(self, gap: float, step_s: float = math.inf) -> SharedIncumbent:
        """An actor beside the process that asks: it dies with no other machine."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        actor = _BEST.options(num_cpus=0, scheduling_strategy=here).remote(gap, step_s)
        return SharedIncumbent(actor)

    def close(self) -> None:
        """Leave the cluster; one of this machine alone ends."""
        ray.shutdown()

    def _slots(self) -> int:
        """CPUs of the nodes that live."""
        now = time.monotonic()
        if now - self._looked > _LOOK_S:
            self._looked = now
            self._count = max(1, int(ray.cluster_resources().get("CPU", 1)))
        return self._count


@dataclass(frozen=True)
class SharedIncumbent:
    """The best step time, held by ``actor``; where that does not answer, nothing is excluded."""

    actor: Any

    def excludes(self, bound_s: float) -> bool:
        """Whether a candidate that takes at least ``bound_s`` is of no more interest."""
        with suppress(RayError):
            return bool(ray.get(self.actor.excludes.remote(bound_s)))
        return False

    def learn(self, step_s: float) -> None:
        """Take note of a step time."""
        with suppress(RayError):
            self.actor.learn.remote(step_s)


class _Best:
    """What :class:`SharedIncumbent` asks, in a process of its own."""

    def __init__(self, gap: float, step_s: float) -> None:
        self._gap, self._step_s = gap, step_s

    def excludes(self, bound_s: float) -> bool:
        return bound_s >= self._step_s * (1 - self._gap)

    def learn(self, step_s: float) -> None:
        self._step_s = min(self._step_s, step_s)


@dataclass(frozen=True)
class _Done:
    """What a job gave; or that its node has another version, or that it took too long."""

    found: Any = None
    node: str = ""
    other_version: bool = False
    late: bool = False


class _TooLong(BaseException):
    """A job ran for as long as it may."""


#: What the process of a worker has been given to do, by token: it keeps what it has worked out.
_FUNCTIONS: Final[dict[str, Callable[[Any], Any]]] = {}


def _do(
    shared: list[Any], token: str, version: Callable[[], str], expected: str, job: Any, limit_s: float
) -> _Done:
    if token not in _FUNCTIONS:
        if version() != expected:
            return _Done(node=socket.gethostname(), other_version=True)
        _FUNCTIONS.clear()
        _FUNCTIONS[token] = ray.get(shared[0])
    if limit_s == math.inf:
        return _Done(_FUNCTIONS[token](job))

    def end(number: int, frame: object) -> None:  # noqa: ARG001
        raise _TooLong

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        return _Done(_FUNCTIONS[token](job))
    except _TooLong:
        return _Done(late=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


_DO: Final[Any] = ray.remote(max_retries=0, num_cpus=1)(_do)
_BEST: Final[Any] = ray.remote(_Best)


def _num_nodes() -> int:
    return sum(bool(node["Alive"]) for node in ray.nodes())


def _check_answers(address: str) -> None:
    """InputError unless somebody listens there: Ray itself waits for a minute."""
    host, colon, port = address.rpartition(":")
    if address in (_LOCAL, "auto") or "://" in address:
        return
    if not colon or not port.isdecimal():
        raise InputError(f"--ray {address!r}: expected local, auto or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), _ANSWERS_S).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"--ray {address}: nobody answers: {error}") from None
