"""Plans as a fluid network can tell them: what is no larger than a packet has no share of a link.

A share of a link is an average over many packets that take turns.  A message that fits into one packet takes
one turn and is gone, after its latency; loading links with it would only make ranks differ that do not (each
has its own place in the tree of an all_reduce of one number) without changing a time that matters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simcore.collectives.plan import LinkUses
from simcore.network.packet import PacketSettings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from simcore.collectives.plan import CollectivePlan, Planner


class FluidPlanner:
    """The plans of ``planner``, without links where none would carry more than one packet's bytes.

    ``bytes_per_s`` is each link's capacity: a link without any is kept, for the network to refuse.
    """

    def __init__(
        self,
        planner: Planner,
        bytes_per_s: npt.NDArray[np.float64],
        *,
        packet_bytes: int = PacketSettings().packet_bytes,
    ) -> None:
        self._planner = planner
        self._bytes_per_s = bytes_per_s
        self._packet_bytes = packet_bytes
        self._told_as: dict[CollectivePlan, CollectivePlan] = {}

    def plan(self, collective: str, num_bytes: int, ranks: tuple[int, ...]) -> CollectivePlan:
        """See :class:`simcore.collectives.plan.Planner`."""
        return self._told(self._planner.plan(collective, num_bytes, ranks))

    def plan_p2p(self, num_bytes: int, src_rank: int, dst_rank: int) -> CollectivePlan:
        """See :class:`simcore.collectives.plan.Planner`."""
        return self._told(self._planner.plan_p2p(num_bytes, src_rank, dst_rank))

    def _told(self, plan: CollectivePlan) -> CollectivePlan:
        told = self._told_as.get(plan)
        if told is None:
            told = self._told_as[plan] = self._without_small_loads(plan)
        return told

    def _without_small_loads(self, plan: CollectivePlan) -> CollectivePlan:
        uses = LinkUses.of(plan.links)
        if float(uses.weight.max(initial=0.0)) * plan.volume_bytes > self._packet_bytes:
            return plan
        carries = bool((self._bytes_per_s[uses.link] > 0.0).all())
        return replace(plan, links=()) if carries else plan
