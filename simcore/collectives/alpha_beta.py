"""Network fidelity ``alphabeta``: what NCCL's own tuner believes a collective takes.

The tuner ranks algorithms by latency + bytes / bandwidth from its table (NVIDIA/nccl src/graph/tuning.cc).
As a prediction it is coarse, docs/validation-nccl.md says how coarse; it is here because others use it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from simcore.collectives.plan import CollectivePlan
from simcore.collectives.planner import NcclPlanner
from simcore.collectives.spread import tuner_error
from simcore.units import ps_from_s


class AlphaBetaPlanner:
    """Plans of ``planner``, lasting what NCCL's tuner expects; links and channels stay as they are."""

    def __init__(self, planner: NcclPlanner) -> None:
        self._planner = planner
        self._plans: dict[tuple[str, int, tuple[int, ...]], CollectivePlan] = {}

    def plan(self, collective: str, num_bytes: int, ranks: Sequence[int]) -> CollectivePlan:
        """As :meth:`NcclPlanner.plan`."""
        return self._estimated(self._planner.plan(collective, num_bytes, ranks))

    def plan_p2p(self, num_bytes: int, src_rank: int, dst_rank: int) -> CollectivePlan:
        """As :meth:`NcclPlanner.plan_p2p`."""
        return self._estimated(self._planner.plan_p2p(num_bytes, src_rank, dst_rank))

    def _estimated(self, plan: CollectivePlan) -> CollectivePlan:
        key = (plan.collective, plan.num_bytes, plan.ranks)
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = self._lasting(plan)
        return found

    def _lasting(self, plan: CollectivePlan) -> CollectivePlan:
        if not plan.channels or plan.algorithm == "routed":  # none of NCCL's
            return plan
        latency_s, whole_s = self._planner.tuner_s(plan.collective, plan.num_bytes, plan.ranks)
        data_s = whole_s - latency_s
        return replace(
            plan,
            latency_ps=ps_from_s(latency_s),
            alone_ps=ps_from_s(whole_s),
            rate_cap_bytes_per_s=plan.volume_bytes / data_s if data_s > 0 else math.inf,
            relative_error=tuner_error(),
        )
