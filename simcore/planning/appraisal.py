"""What a candidate costs to know: refused or its memory and a rough bound; a bound; its simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from simcore.errors import SimcoreError
from simcore.planning.bound import Bound
from simcore.planning.ground import PLACEMENT, Settings
from simcore.planning.paths import Prices
from simcore.planning.question import Question
from simcore.planning.rough import RoughBounds
from simcore.records import dataclass
from simcore.run import priced, run, wired
from workloads.jobs import Description
from workloads.parallel.job import Job
from workloads.parallel.members import busiest_of

#: Members with tables of their own whose steps bound that of all.
_MEMBERS: Final = 3


@dataclass(frozen=True)
class Appraised:
    """A candidate: its ``reason`` to be refused, or "", peak memory and a rough bound below its step, ps.

    ``peak_bytes`` is 0 where the layout cannot even be.
    """

    settings: Settings
    reason: str
    peak_bytes: int
    rough_ps: int


@dataclass(frozen=True)
class Simulated:
    """A candidate's step, seconds; ``reason`` where it cannot be simulated, and what it costs then is 0."""

    settings: Settings
    step_s: float
    reason: str = ""


class Appraiser:
    """Appraises candidates of one question, sharing prices among them."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._prices: dict[tuple[str, str | None], RoughBounds] = {}

    def appraised(self, candidates: Sequence[Settings]) -> list[Appraised]:
        """Legality, memory and rough bound of each."""
        found = []
        for settings in candidates:
            one = self.question.examined(settings)
            rough_ps = 0
            if not one.reason:
                assert one.job is not None
                rough_ps = self._rough_ps(one.job, settings)
            found.append(Appraised(settings, one.reason, one.peak_bytes, rough_ps))
        return found

    def rough_ps(self, settings: Settings) -> int:
        """The rough bound below a candidate's step time, without a look at its memory."""
        return self._rough_ps(self.question.completed(settings), settings)

    def bound_ps(self, settings: Settings) -> int:
        """The bound below a candidate's step time."""
        job = self.question.completed(settings)
        prices = self._rough(job, settings).prices
        seen = busiest_of(_laid_out(job), _MEMBERS)
        return max(Bound(own, prices, rank=rank).step_ps() for rank, own in seen)

    def simulated(self, settings: Settings) -> Simulated:
        """A candidate as ``run_sim.py`` simulates it."""
        try:
            job = self.question.completed(settings)
            cluster = self.question.hardware(settings)
            ran = run(job.graph(), cluster, self.question.setup, counters=False)
            return Simulated(settings, ran.step_s)
        except SimcoreError as error:
            return Simulated(settings, 0.0, str(error).splitlines()[0])

    def _rough_ps(self, job: Description, settings: Settings) -> int:
        (seen,) = busiest_of(_laid_out(job), 1)
        return self._rough(job, settings).step_ps(seen[1], rank=seen[0])

    def _rough(self, job: Description, settings: Settings) -> RoughBounds:
        precision = job.training.precision
        key = precision, settings.get(PLACEMENT)
        if key not in self._prices:
            cluster, setup = self.question.hardware(settings), self.question.setup
            _, planner = wired(cluster, setup.nccl)
            cost = priced(cluster.gpu, job.parallel.world_size, precision, setup)
            self._prices[key] = RoughBounds(Prices(cost, planner, cluster))
        return self._prices[key]


def _laid_out(job: Description) -> Job:
    return Job.of(job)


def in_parts(candidates: Iterator[Settings], size: int) -> Iterator[list[Settings]]:
    """Candidates in lists: neighbours share much of what is worked out for them."""
    part: list[Settings] = []
    for one in candidates:
        part.append(one)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part
