"""Where a rank's step goes: compute alone, both, communication alone, neither."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.analysis.intervals import Intervals
from simcore.records import dataclass


@dataclass(frozen=True)
class Breakdown:
    """Four parts of a rank's step, ps; they add up to the step.

    A kernel counts while it works, from start to end.  A communication kernel that is placed but still
    waits for its peers is not communication yet (``start_ps`` is its first work): that time is exposed
    compute where a compute kernel runs, else idle.  A faster network shortens the second and third part.
    """

    exposed_compute: float
    overlapped: float
    exposed_communication: float
    idle: float

    @property
    def step(self) -> float:
        """Sum of the parts."""
        return self.exposed_compute + self.overlapped + self.exposed_communication + self.idle

    def scaled(self, factor: float) -> Breakdown:
        """Every part times ``factor``."""
        return Breakdown(*(factor * part for part in self.parts().values()))

    def parts(self) -> dict[str, float]:
        """Parts by name, in the order in which they are shown."""
        return {
            "exposed_compute": self.exposed_compute,
            "overlapped": self.overlapped,
            "exposed_communication": self.exposed_communication,
            "idle": self.idle,
        }


def break_down(compute: Intervals, communication: Intervals, step_ps: int) -> Breakdown:
    """Breakdown of one rank from the time its kernels cover."""
    both = compute.overlap(communication)
    return Breakdown(
        exposed_compute=compute.total - both,
        overlapped=both,
        exposed_communication=communication.total - both,
        idle=step_ps - (compute.total + communication.total - both),
    )


def mean_breakdown(parts: Sequence[tuple[Breakdown, int]]) -> Breakdown:
    """Mean of breakdowns, each with the number of ranks that have it."""
    ranks = sum(count for _, count in parts)
    columns = zip(*(part.scaled(count).parts().values() for part, count in parts), strict=True)
    return Breakdown(*(sum(column) / ranks for column in columns))
