"""One step of one rank: how long it takes and where the time goes, recorded and replayed alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.analysis.breakdown import break_down
from simcore.analysis.intervals import Intervals
from simcore.graph.ops import IntArray
from simcore.units import s_from_ps
from workloads.imports.recorded import BoolArray, ImportedRank


@dataclass(frozen=True)
class Split:
    """A step of one rank, seconds; the parts add up to ``span``.

    HolisticTraceAnalysis' convention: a communication kernel counts from its start, waiting for its peers
    included; copies and memsets are neither compute nor communication.  ``other`` is copies and idle time.
    """

    span: float
    exposed_compute: float
    overlapped: float
    exposed_communication: float
    other: float

    def parts(self) -> dict[str, float]:
        """The parts by name."""
        return {
            "exposed_compute": self.exposed_compute,
            "overlapped": self.overlapped,
            "exposed_communication": self.exposed_communication,
            "other": self.other,
        }


@dataclass(frozen=True)
class ReplayedStep:
    """One step of one rank: recorded and replayed.  ``step`` -1: the trace has no steps.

    ``index`` is the rank's place in the import, ``members`` its ops that belong to the step.
    """

    rank: int
    step: int
    recorded: Split
    replayed: Split
    index: int
    members: IntArray

    @property
    def error(self) -> float:
        """Relative error of the replayed span."""
        return self.replayed.span / self.recorded.span - 1.0 if self.recorded.span else 0.0


def split(rank: ImportedRank, members: IntArray, start: IntArray, end: IntArray) -> Split:
    """Where the time of ``members`` goes, given start and end of all ops of the rank, ps."""
    start, end = start[members], end[members]
    is_comm = rank.recorded.is_comm[members]
    is_kernel = rank.recorded.is_kernel[members]

    def covered(mask: BoolArray) -> Intervals:
        return Intervals.union(start[mask], end[mask])

    span = int(end.max() - start.min())
    parts = break_down(covered(is_kernel & ~is_comm), covered(np.asarray(is_comm)), span)
    return Split(
        s_from_ps(span), s_from_ps(parts.exposed_compute), s_from_ps(parts.overlapped),
        s_from_ps(parts.exposed_communication), s_from_ps(parts.idle),
    )  # fmt: skip
