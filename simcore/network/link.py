"""A link as a SimPy resource: ``yield link.transfer(num_bytes)``, and what flows on it at any time.

Note [Nobody waits for a link]
    A resource of SimPy is asked for, granted and given back.  Bandwidth can be divided, so nobody waits in a
    line for it: a flow is on all links of its route from its first byte to its last, with a max-min fair
    share that changes as others come and go; the network (:mod:`simcore.network.fluid`) says what the shares
    are, and who is there (``flows``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from simpy.resources.base import BaseResource

from simcore.collectives.kinds import SEND_RECV
from simcore.collectives.plan import CollectivePlan, LinkUse
from simcore.elementary import plain_sum
from simcore.errors import InputError
from simcore.network.flow import Flow

if TYPE_CHECKING:
    from simcore.clock import Clock
    from simcore.network.flow import Network


class Observer(Protocol):
    """Somebody who has to know before a link is used."""

    def touched(self, link: Link) -> None:
        """A flow is about to come, now."""
        ...


class Link(BaseResource[Any, Any]):
    """One direction of a link.  ``capacity`` is in bytes/s, link ``index`` that of the topology.

    ``flows`` are who holds it now, with the link bytes that each moves per byte of its progress.
    """

    def __init__(self, clock: Clock, network: Network, index: int, bytes_per_s: float, name: str) -> None:
        super().__init__(clock, bytes_per_s)
        self.index = index
        self.name = name
        self.bytes_per_ps = bytes_per_s * 1e-12
        self.flows: dict[Flow, float] = {}
        self.observer: Observer | None = None
        self._clock = clock
        self._network = network

    @property
    def rate(self) -> float:
        """What the flows move over the link now, bytes/s."""
        return 1e12 * plain_sum([weight * flow.rate for flow, weight in self.flows.items()])

    @property
    def level(self) -> float:
        """The part of the capacity that is in use now, 0 to 1."""
        return self.rate / self.capacity if self.flows else 0.0

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
