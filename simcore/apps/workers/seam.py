"""What those who have jobs know of those who do them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from importlib.util import find_spec
from typing import Protocol, TypeVar

from simcore.apps.workers.local import LocalWorkers
from simcore.errors import InputError

Job = TypeVar("Job")
Found = TypeVar("Found")


class Incumbent(Protocol):
    """The best step time so far, where workers see it: what cannot be better need not be simulated."""

    def excludes(self, bound_s: float) -> bool:
        """Whether a candidate that takes at least ``bound_s`` is of no more interest."""

    def learn(self, step_s: float) -> None:
        """Take note of a step time."""


class Workers(Protocol):
    """``each`` as :func:`simcore.apps.workers.local.each`; ``incumbent``: shared by those who do the jobs.

    It excludes what cannot be faster than the best, ``step_s`` at first, by more than the share ``gap``.
    """

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
        """What each job gives; ``alone``: one after the other."""

    def incumbent(self, gap: float, step_s: float = math.inf) -> Incumbent:
        """One that knows ``step_s``."""


@contextmanager
def chosen_workers(
    ray: str | None, version: Callable[[], str], count: int | None = None
) -> Iterator[Workers]:
    """``count`` processes of this machine (None: one for each core), or the Ray cluster at ``ray``.

    ``version`` says which code a machine has: all must have the same.  What the block prints goes to stderr
    with Ray, which tells of machines that died on stdout.
    Errors: InputError where Ray is not installed or does not answer, or where both are given.
    """
    if ray is None:
        yield LocalWorkers(count)
        return
    if count is not None:
        raise InputError("--workers is for this machine: it goes without --ray")
    if find_spec("ray") is None:
        raise InputError("--ray needs Ray: pip install ray, on each machine")
    from simcore.apps.workers.on_ray import RayWorkers

    with redirect_stdout(sys.stderr), closing(RayWorkers(ray, version)) as workers:
        yield workers
