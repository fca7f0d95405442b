"""Where a rank's step goes: compute alone, both, communication alone, neither."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcore.analysis.intervals import IntArray, Intervals

COMPUTE_KINDS = ("compute", "memcpy")
COMMUNICATION_KINDS = ("collective", "send", "recv")
_P2P_KINDS = ("send", "recv")


@dataclass(frozen=True)
class Breakdown:
    """Four parts of a rank's step, ps; they add up to the step.

    A kernel counts while it works, from start to end.  A communication kernel that is placed but still
    waits for its peers is not communication yet (``start_ps`` is its first work): that time is exposed
    compute where a compute kernel runs, else idle.
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

    def plus(self, other: Breakdown) -> Breakdown:
        """Part by part."""
        pairs = zip(self.parts().values(), other.parts().values(), strict=True)
        return Breakdown(*(mine + theirs for mine, theirs in pairs))

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


def busy_intervals(
    kind: npt.NDArray[np.int32], kind_names: list[str], start_ps: IntArray, end_ps: IntArray
) -> tuple[Intervals, Intervals, Intervals]:
    """Time covered by compute, by communication, and by stage work (all kinds but send and recv)."""

    def cover(kinds: tuple[str, ...]) -> Intervals:
        codes = [code for code, name in enumerate(kind_names) if name in kinds]
        mask = np.isin(kind, codes)
        return Intervals.union(start_ps[mask], end_ps[mask])

    stage_work = tuple(set(COMPUTE_KINDS + COMMUNICATION_KINDS) - set(_P2P_KINDS))
    return cover(COMPUTE_KINDS), cover(COMMUNICATION_KINDS), cover(stage_work)
