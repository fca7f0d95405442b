"""What a simulation returns: times per rank and op, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simcore.collectives.plan import CollectivePlan
from simcore.graph.ops import IntArray


@dataclass(frozen=True)
class RankTimes:
    """Times of one rank's ops, ps, indexed like ``Graph.flat_ops`` of its program.

    ``ready``: all dependencies met and the launch has reached the GPU; ``start``: first work; ``end``.
    Ops that take no GPU time (host, events) have ``start == end``.
    """

    ready_ps: IntArray
    start_ps: IntArray
    end_ps: IntArray


@dataclass(frozen=True)
class SimulationResult:
    """One simulated step of all ranks, stored by class of ranks that behave alike.

    ``class_of[rank]`` is a rank's class, ``representatives[c]`` the rank that was simulated for class
    ``c``; the other tuples are by class.  ``alone_ps[c]`` is the time alone of each flat op (0 for
    communication), ``plan_of[c]`` the index into ``plans`` of the plan that carried it out (-1: none; a
    plan's ranks and links are one example's). ``counters`` hold ``(time_ps, resource index, value)`` rows
    for ``resources``.
    """

    class_of: npt.NDArray[np.int64]
    representatives: npt.NDArray[np.int64]
    times: tuple[RankTimes, ...]
    alone_ps: tuple[IntArray, ...]
    plan_of: tuple[npt.NDArray[np.int32], ...]
    plans: tuple[CollectivePlan, ...]
    step_ps: int
    engine_events: int
    resources: Sequence[str] = ()
    counter_time_ps: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    counter_resource: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    counter_value: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0, dtype=np.float64))
    warnings: tuple[str, ...] = ()

    def times_of(self, rank: int) -> RankTimes:
        """Times of one rank, those of its class."""
        return self.times[int(self.class_of[rank])]
