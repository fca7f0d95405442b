"""A flow: data of one collective or send/recv on its way, and the seam that moves it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from simcore.clock import Clock, Movable
from simcore.collectives.plan import CollectivePlan

if TYPE_CHECKING:
    from simcore.network.fluid import Route

#: Stands for the flow of somebody who is not simulated but draws HBM.
OUTSIDE: Final = CollectivePlan(
    "outside", 0, (), "none", "Simple", 0, 0, 0, 0, 0, 0.0, math.inf, 1.0, (), 0
)  # fmt: skip


class Endpoint(Protocol):
    """A GPU as the network sees it: somebody whose HBM a flow reads and writes."""

    def draw_changed(self, flow: Drawer, bytes_per_ps: float, desired_bytes_per_ps: float) -> None:
        """The flow now takes ``bytes_per_ps`` of HBM; with HBM to itself it would take the desired rate."""
        ...

    def draw_ended(self, flow: Drawer) -> None:
        """The flow takes nothing any more; :meth:`refresh` follows once its waiters have gone on."""
        ...

    def refresh(self) -> None:
        """Re-rate what shares the endpoint, unless that has happened since the draw ended."""
        ...


class OtherEnd:
    """A GPU that stands for both ends of a flow: beside what the flow draws on it as one end, as the other.

    Ranks of a ring that behave alike are simulated as one, which sends to itself; each of them sends and
    receives at once.  In the GPU's account of who draws, this stands beside the flow.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def draw_changed(self, flow: Drawer, bytes_per_ps: float, desired_bytes_per_ps: float) -> None:  # noqa: ARG002
        """See :class:`Endpoint`."""
        self._endpoint.draw_changed(self, bytes_per_ps, desired_bytes_per_ps)

    def draw_ended(self, flow: Drawer) -> None:  # noqa: ARG002
        """See :class:`Endpoint`."""
        self._endpoint.draw_ended(self)

    def refresh(self) -> None:
        """See :class:`Endpoint`."""
        self._endpoint.refresh()


class Flow(Movable):
    """One plan being carried out; fires when its data has arrived.

    Rates are bytes of plan progress per picosecond: ``rate`` now, ``desired`` without the limits of its
    members' HBM, at most ``cap``.  ``then`` is what its network does with it next, when it is due; ``route``
    where it goes, in a fluid network.
    """

    then: Callable[[Flow], None]
    route: Route
    rate = 0.0
    desired = 0.0
    since = 0

    def __init__(self, clock: Clock, plan: CollectivePlan, members: Sequence[Endpoint]) -> None:
        self.env, self.callbacks = clock, []  # as SimPy's own, which is made for each message
        self.plan = plan
        self.cap = plan.pace_bytes_per_s * 1e-12
        self.members = members
        self.remaining = plan.volume_bytes
        self.hbm_caps: dict[Endpoint, float] = {}

    @property
    def at_its_cap(self) -> bool:
        """Whether the flow is as fast as its own channels allow, so that free bandwidth is no use to it."""
        return self.desired >= self.cap * (1.0 - 1e-12)

    def due(self) -> None:
        """The latency has passed, or the last byte has arrived."""
        self.then(self)


#: Who draws on a GPU's HBM.
Drawer: TypeAlias = Flow | OtherEnd


class Network(Protocol):
    """The seam of the fidelity ladder: carries flows and fires each when its data has arrived."""

    def start(self, flow: Flow) -> None:
        """The last member has arrived: begin now."""
        ...

    def limit(self, flow: Flow, member: Endpoint, cap: float | None) -> None:
        """A member's HBM lets the flow progress at ``cap`` bytes/ps at most (None: no limit)."""
        ...
