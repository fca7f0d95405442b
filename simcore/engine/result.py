"""What a simulation returns: times per rank and op, as arrays."""

from __future__ import annotations

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
    """One simulated step of all ranks.

    ``alone_ps[row]`` is the time alone of each op-table row (compute).  ``plans`` are the distinct
    communication plans; ``plan_of[p][i]`` is the plan of flat op ``i`` of program ``p``'s first rank (-1
    none): plans of other ranks of the program differ in ranks and links only. ``counters`` holds
    ``(time_ps, resource index, value)`` arrays for ``resources``.
    """

    times: tuple[RankTimes, ...]  # by rank
    alone_ps: IntArray
    plans: tuple[CollectivePlan, ...]
    plan_of: tuple[npt.NDArray[np.int32], ...]  # by program
    step_ps: int
    engine_events: int
    resources: tuple[str, ...] = ()
    counter_time_ps: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    counter_resource: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    counter_value: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0, dtype=np.float64))
    warnings: tuple[str, ...] = ()
