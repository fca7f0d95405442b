"""Where ranks meet: a collective starts when its last member arrives, a send when its recv has been posted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from simcore.clock import Clock
from simcore.errors import GraphError
from simcore.network.flow import Flow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simcore.collectives.plan import CollectivePlan
    from simcore.engine.gpu import Gpu
    from simcore.network.flow import Network

MeetingKey = tuple[str, int, int, int]  # (group, first rank or source, destination or -1, sequence number)


class Planner(Protocol):
    """Decides how NCCL would carry out a collective or a send/recv."""

    def plan(self, collective: str, num_bytes: int, ranks: tuple[int, ...]) -> CollectivePlan:
        """Plan of a collective; ``num_bytes`` in nccl-tests' convention."""
        ...

    def plan_p2p(self, num_bytes: int, src_rank: int, dst_rank: int) -> CollectivePlan:
        """Plan of a send/recv pair."""
        ...


class Communicator:
    """One process group: its ranks and the plans of what has been issued on it."""

    __slots__ = ("_p2p", "_planner", "_plans", "name", "ranks")

    def __init__(self, name: str, ranks: Sequence[int], planner: Planner) -> None:
        self.name = name
        self.ranks = tuple(ranks)
        self._planner = planner
        self._plans: dict[tuple[str, int], CollectivePlan] = {}
        self._p2p: dict[tuple[int, int, int], CollectivePlan] = {}

    def plan(self, collective: str, num_bytes: int) -> CollectivePlan:
        """Plan of a collective of the whole group (the same object for the same request)."""
        key = (collective, num_bytes)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._planner.plan(collective, num_bytes, self.ranks)
        return plan

    def plan_p2p(self, num_bytes: int, src: int, dst: int) -> CollectivePlan:
        """Plan of a send from global rank ``src`` to ``dst``."""
        key = (num_bytes, src, dst)
        plan = self._p2p.get(key)
        if plan is None:
            plan = self._p2p[key] = self._planner.plan_p2p(num_bytes, src, dst)
        return plan


class Meeting(Flow):
    """One collective (or send/recv) of a step: members gather, then it moves as a flow and fires at its end."""

    def __init__(self, clock: Clock, plan: CollectivePlan) -> None:
        self.gpus: list[Gpu] = []
        super().__init__(clock, plan, self.gpus)
        self.arrived: list[int] = []
        self.start_ps = -1
        self.end_ps = -1

    def fire(self) -> None:
        """The last byte is there: all members go on."""
        self.end_ps = self.env.now
        super().fire()


class Rendezvous:
    """All meetings under way."""

    def __init__(self, clock: Clock, network: Network) -> None:
        self._clock = clock
        self._network = network
        self.open: dict[MeetingKey, Meeting] = {}

    def arrive(self, key: MeetingKey, rank: int, gpu: Gpu, plan: CollectivePlan) -> Meeting:
        """``rank`` has its SMs and is ready to exchange data.

        Errors: GraphError when members of a group disagree about the collective or its size.
        """
        meeting = self.open.get(key)
        if meeting is None:
            meeting = self.open[key] = Meeting(self._clock, plan)
        elif meeting.plan is not plan:
            other = meeting.plan
            raise GraphError(
                f"group {key[0]!r}, call {key[3]}: rank {meeting.arrived[0]} issued {other.collective} of "
                f"{other.num_bytes} bytes but rank {rank} issued {plan.collective} of {plan.num_bytes} bytes"
            )
        meeting.arrived.append(rank)
        meeting.gpus.append(gpu)
        if len(meeting.arrived) == len(plan.ranks):
            del self.open[key]
            meeting.start_ps = self._clock.now
            self._network.start(meeting)
        return meeting
