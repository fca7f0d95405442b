"""A flow: data of one collective or send/recv on its way, and the seam that moves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from simcore.collectives.plan import CollectivePlan


class Endpoint(Protocol):
    """A GPU as the network sees it: somebody whose HBM a flow reads and writes."""

    def draw_changed(self, flow: Flow, bytes_per_ps: float, desired_bytes_per_ps: float) -> None:
        """The flow now takes ``bytes_per_ps`` of HBM; with HBM to itself it would take the desired rate."""
        ...


class Flow:
    """One plan being carried out.  Rates are bytes of plan progress per picosecond."""

    __slots__ = ("cap", "desired", "done", "hbm_caps", "members", "plan", "rate", "remaining", "since", "timer")

    def __init__(self, plan: CollectivePlan, members: Sequence[Endpoint], done: Callable[[], None]) -> None:
        self.plan = plan
        self.members = members
        self.done = done
        self.remaining = plan.volume_bytes
        self.cap = plan.rate_cap_bytes_per_s * 1e-12
        self.hbm_caps: dict[Endpoint, float] = {}  # limits that busy GPUs impose
        self.rate = 0.0
        self.desired = 0.0
        self.since = 0


class Network(Protocol):
    """The seam of the fidelity ladder: carries plans, calls ``flow.done`` when each has arrived."""

    def start(self, flow: Flow) -> None:
        """The last member has arrived: begin now."""
        ...

    def limit(self, flow: Flow, member: Endpoint, cap: float | None) -> None:
        """A member's HBM lets the flow progress at ``cap`` bytes/ps at most (None: no limit)."""
        ...
