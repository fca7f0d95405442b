"""A link as a SimPy user sees it: ``yield link.transfer(num_bytes)``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from simcore.collectives.kinds import SEND_RECV
from simcore.collectives.plan import CollectivePlan, LinkUse
from simcore.errors import InputError
from simcore.network.flow import Flow

if TYPE_CHECKING:
    from simcore.clock import Clock
    from simcore.network.flow import Network


class Link:
    """One direction of a link, shared max-min fairly with everything else that crosses it."""

    def __init__(self, clock: Clock, network: Network, index: int) -> None:
        self._clock = clock
        self._network = network
        self.index = index

    def transfer(
        self, num_bytes: float, *, latency_ps: int = 0, rate_cap_bytes_per_s: float = math.inf
    ) -> Flow:
        """Send ``num_bytes`` from now on; the result happens when the last byte has arrived.

        Errors: InputError for a size or cap that is negative or not a number.
        """
        if not num_bytes >= 0.0 or not math.isfinite(num_bytes):
            raise InputError(f"a transfer needs a size of 0 bytes or more, not {num_bytes}")
        if not rate_cap_bytes_per_s > 0.0:
            raise InputError(f"a transfer needs a rate cap above 0 bytes/s, not {rate_cap_bytes_per_s}")
        plan = CollectivePlan(
            collective=SEND_RECV.name, num_bytes=math.ceil(num_bytes), ranks=(), algorithm="transfer",
            protocol="Simple", channels=0, chunk_bytes=math.ceil(num_bytes), num_chunks=1, num_steps=1,
            latency_ps=latency_ps, volume_bytes=float(num_bytes), rate_cap_bytes_per_s=rate_cap_bytes_per_s,
            hbm_bytes_per_byte=0.0, links=(LinkUse(self.index, 1.0),), alone_ps=latency_ps,
        )  # fmt: skip
        flow = Flow(self._clock, plan, ())
        self._network.start(flow)
        return flow
