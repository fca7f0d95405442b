"""Where ranks meet: a collective starts when its last member arrives, a send when its recv is posted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from simcore.clock import Clock
from simcore.errors import GraphError
from simcore.graph import OpKind
from simcore.network.flow import Flow

MeetingKey = int | tuple[int, int, int]  # sequence number; for send/recv with source and destination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simcore.collectives.plan import CollectivePlan
    from simcore.engine.gpu import Gpu
    from simcore.engine.tape import Call
    from simcore.network.flow import Network


class Planner(Protocol):
    """Decides how NCCL would carry out a collective or a send/recv."""

    def plan(self, collective: str, num_bytes: int, ranks: tuple[int, ...]) -> CollectivePlan:
        """Plan of a collective; ``num_bytes`` in nccl-tests' convention."""
        ...

    def plan_p2p(self, num_bytes: int, src_rank: int, dst_rank: int) -> CollectivePlan:
        """Plan of a send/recv pair."""
        ...


class Meeting(Flow):
    """One collective (or send/recv) of a step: members gather, then it moves as a flow until its end."""

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


class Communicator:
    """One process group of a job: who meets in it, and how what they issue is carried out.

    Members issue collectives in the same order, so the n-th of one meets the n-th of the others; sends and
    recvs of a pair likewise.
    """

    def __init__(
        self, name: str, ranks: Sequence[int], planner: Planner, network: Network, clock: Clock
    ) -> None:
        self.name = name
        self.ranks = tuple(ranks)
        self.open: dict[MeetingKey, Meeting] = {}
        self._index = {rank: index for index, rank in enumerate(self.ranks)}
        self._planner = planner
        self._network = network
        self._clock = clock
        self._plans: dict[tuple[str, int] | tuple[int, int, int], CollectivePlan] = {}

    def _pair(self, call: Call, rank: int) -> tuple[int, int]:
        """(source, destination) of a send or recv that ``rank`` issues."""
        peer = self.ranks[(self._index[rank] + call.peer_delta) % len(self.ranks)]
        return (rank, peer) if call.kind is OpKind.SEND else (peer, rank)

    def plan(self, call: Call, rank: int) -> CollectivePlan:
        """How a call of ``rank`` is carried out (the same object for the same request)."""
        if call.kind is OpKind.COLLECTIVE:
            request = (call.collective, call.num_bytes)
            plan = self._plans.get(request)
            if plan is None:
                plan = self._plans[request] = self._planner.plan(call.collective, call.num_bytes, self.ranks)
            return plan
        source, destination = self._pair(call, rank)
        pair = (call.num_bytes, source, destination)
        plan = self._plans.get(pair)
        if plan is None:
            plan = self._plans[pair] = self._planner.plan_p2p(call.num_bytes, source, destination)
        return plan

    def meeting_key(self, call: Call, rank: int) -> MeetingKey:
        """What distinguishes the meeting that a call of ``rank`` belongs to."""
        return call.sequence if call.kind is OpKind.COLLECTIVE else (*self._pair(call, rank), call.sequence)

    def arrive(self, call: Call, plan: CollectivePlan, rank: int, gpu: Gpu) -> Meeting:
        """``rank`` has its SMs and is ready to exchange data; the last to arrive starts the transfer.

        Errors: GraphError when members disagree about the collective or its size.
        """
        key = self.meeting_key(call, rank)
        meeting = self.open.get(key)
        if meeting is None:
            meeting = self.open[key] = Meeting(self._clock, plan)
        elif meeting.plan is not plan:
            other = meeting.plan
            raise GraphError(
                f"group {self.name!r}, call {call.sequence}: rank {meeting.arrived[0]} issued "
                f"{other.collective} of {other.num_bytes} bytes but rank {rank} issued "
                f"{plan.collective} of {plan.num_bytes} bytes"
            )
        meeting.arrived.append(rank)
        meeting.gpus.append(gpu)
        if len(meeting.arrived) == len(plan.ranks):
            del self.open[key]
            meeting.start_ps = self._clock.now
            self._network.start(meeting)
        return meeting
