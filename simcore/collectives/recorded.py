"""Collectives of a replay: they last what was recorded, from the last arrival on."""

from __future__ import annotations

from dataclasses import replace

from simcore.collectives.kinds import SEND_RECV
from simcore.collectives.plan import CollectivePlan


def as_recorded(plan: CollectivePlan, recorded_ps: int) -> CollectivePlan:
    """``plan`` lasting ``recorded_ps`` and taking nothing from what runs beside it.

    The recording has seen whatever shared links, SMs and HBM with it: charging it again would count twice.
    """
    return replace(
        plan, algorithm="recorded", protocol="recorded", channels=0, latency_ps=recorded_ps, volume_bytes=0.0,
        hbm_bytes_per_byte=0.0, links=(), alone_ps=recorded_ps, between_ps=0,
    )  # fmt: skip


class RecordedPlanner:
    """Plans for a graph whose collectives all have a recorded time; it decides nothing."""

    def plan(self, collective: str, num_bytes: int, ranks: tuple[int, ...]) -> CollectivePlan:
        """A plan without a duration, to which :func:`as_recorded` gives the recorded one."""
        return CollectivePlan(
            collective=collective, num_bytes=num_bytes, ranks=ranks, algorithm="recorded",
            protocol="recorded", channels=0, chunk_bytes=0, num_chunks=1, num_steps=1, latency_ps=0,
            volume_bytes=0.0, rate_cap_bytes_per_s=float("inf"), hbm_bytes_per_byte=0.0, links=(), alone_ps=0,
        )  # fmt: skip

    def plan_p2p(self, num_bytes: int, src_rank: int, dst_rank: int) -> CollectivePlan:
        """As :meth:`plan`, of a pair."""
        return self.plan(SEND_RECV.name, num_bytes, (src_rank, dst_rank))
