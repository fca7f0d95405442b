"""Where ranks meet: a collective starts when its last member arrives, a send when its recv is posted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simcore.clock import Clock
from simcore.collectives.recorded import as_recorded
from simcore.errors import GraphError
from simcore.graph import OpKind
from simcore.network.flow import Flow, OtherEnd

if TYPE_CHECKING:
    from simcore.collectives.plan import CollectivePlan
    from simcore.engine.gpu import Gpu
    from simcore.engine.items import Call
    from simcore.graph import ProcessGroup
    from simcore.network.flow import Endpoint, Network
    from simcore.symmetry import Membership, Quotient


class Meeting(Flow):
    """One collective (or send/recv) of a step: members gather, then it moves as a flow until its end."""

    start_ps = end_ps = -1

    def __init__(self, clock: Clock, plan: CollectivePlan) -> None:
        self.gpus: list[Endpoint] = []
        super().__init__(clock, plan, self.gpus)
        self.arrived: list[int] = []

    def fire(self) -> None:
        """The last byte is there: all members go on."""
        self.end_ps = self.env.now
        super().fire()


class Communicator:
    """One process group of a job (or a class of groups that behave alike), or one pair that sends and
    receives.

    Members issue their calls in the same order, so the n-th of one meets the n-th of the others.
    """

    def __init__(self, place: Membership, quotient: Quotient, network: Network, clock: Clock) -> None:
        self.open: dict[int, Meeting] = {}
        self._place = place
        self._num_arrivals = place.num_arrivals
        self._quotient = quotient
        self._network = network
        self._clock = clock
        self._recorded: dict[tuple[CollectivePlan, int], CollectivePlan] = {}

    def plan(self, call: Call) -> CollectivePlan:
        """How a call is carried out (the same object for the same request)."""
        plan = self._quotient.plan(self._place, call.collective or "send_recv", call.num_bytes)
        if call.recorded_ps < 0:
            return plan
        found = self._recorded.get((plan, call.recorded_ps))
        if found is None:
            found = self._recorded[plan, call.recorded_ps] = as_recorded(plan, call.recorded_ps)
        return found

    def arrive(self, call: Call, sequence: int, plan: CollectivePlan, rank: int, gpu: Gpu) -> Meeting:
        """``rank`` has its SMs and is ready to exchange data; the last to arrive starts the transfer.

        Errors: GraphError when members disagree about the collective or its size.
        """
        meeting = self.open.get(sequence)
        if meeting is None:
            meeting = self.open[sequence] = Meeting(self._clock, plan)
        elif meeting.plan is not plan:
            other = meeting.plan
            raise GraphError(
                f"group {call.group!r}, call {sequence}: rank {meeting.arrived[0]} issued "
                f"{other.collective} of {other.num_bytes} bytes but rank {rank} issued "
                f"{plan.collective} of {plan.num_bytes} bytes"
            )
        meeting.arrived.append(rank)
        meeting.gpus.append(OtherEnd(gpu) if gpu in meeting.gpus else gpu)
        if len(meeting.arrived) == self._num_arrivals:
            del self.open[sequence]
            meeting.start_ps = self._clock.now
            self._network.start(meeting)
        return meeting


class Communicators:
    """Communicators of a job by where a representative stands in it."""

    def __init__(
        self, quotient: Quotient, groups: dict[str, ProcessGroup], network: Network, clock: Clock
    ) -> None:
        self._quotient = quotient
        self._groups = groups
        self._network = network
        self._clock = clock
        self._made: dict[tuple[int, int], Communicator] = {}
        self._companies: dict[CollectivePlan, frozenset[int]] = {}

    def place(self, rank: int, call: Call) -> Membership:
        """Where a call of ``rank`` belongs.  GraphError when nobody is at the other end."""
        receives = call.kind is OpKind.RECV
        delta = -call.peer_delta % self._groups[call.group].size if receives else call.peer_delta
        place = self._quotient.membership(rank, call.group, delta, receives=receives)
        if place is None:
            what = "receives from a rank that never sends" if receives else "is no member"
            raise GraphError(f"rank {rank} {what} in group {call.group!r}")
        return place

    def company(self, rank: int, call: Call) -> frozenset[int]:
        """The representatives that meet in a call of one of them, over links that are theirs alone; nobody
        where it takes other links.
        """
        met = self._met(rank, call)
        if not met:
            return frozenset()
        plan = self.of(rank, call).plan(call)
        found = self._companies.get(plan)
        if found is None:
            company = frozenset(met)
            ports = set().union(*(self._quotient.ports(other) for other in company))
            is_theirs = all(use.link in ports for use in plan.links)
            found = self._companies[plan] = company if is_theirs else frozenset()
        return found

    def _met(self, rank: int, call: Call) -> tuple[int, ...]:
        receives = call.kind is OpKind.RECV
        delta = -call.peer_delta % self._groups[call.group].size if receives else call.peer_delta
        return self._quotient.company(rank, call.group, delta, receives=receives)

    def ports(self, rank: int) -> dict[int, int]:
        """Number of each link that a representative alone uses."""
        return self._quotient.ports(rank)

    def apart(self, rank: int, call: Call, network: Network, clock: Clock) -> Communicator:
        """The communicator of a call on a network of its own, where others arrive when ``rank`` does."""
        place = replace(self.place(rank, call), num_arrivals=self._met(rank, call).count(rank))
        return Communicator(place, self._quotient, network, clock)

    def of(self, rank: int, call: Call) -> Communicator:
        """The communicator that a call of ``rank`` runs on."""
        place = self.place(rank, call)
        key = (place.relation, place.group_class)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = Communicator(place, self._quotient, self._network, self._clock)
        return found
