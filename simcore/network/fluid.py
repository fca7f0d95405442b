"""The fluid network: flows share links max-min fairly, re-rated only when something starts or ends.

A flow first spends the latency before its data, then joins its links; what passes between its steps is
spread over the data, as a pace that it does not exceed.  A flow that finds room on all of them at its own
rate changes nobody's, and one that leaves frees nothing for those that run at their own; otherwise joining
or leaving re-rates the connected component of flows that share links (directly or through others), and
nothing else.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from simcore.clock import Clock
from simcore.collectives.plan import CollectivePlan
from simcore.elementary import plain_sum
from simcore.errors import InputError
from simcore.network.link import Link
from simcore.network.maxmin import max_min, max_min_by_share
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.hardware import Topology
    from simcore.network.flow import Endpoint, Flow


_SLACK = 1e-12  # relative: a link filled to within this has room


def finish(flow: Flow) -> None:
    """Resume who waited for the flow, then re-rate its members: mostly, giving SMs back has done so."""
    flow.fire()
    for member in flow.members:
        member.refresh()


@dataclass(frozen=True, eq=False, slots=True)
class Route:
    """A plan on the links of a network: how fast and how long all of it alone, bytes/ps and ps, and its
    number in the network's log.

    ``uses`` are (link, link bytes per byte of progress, inputs), see
    :class:`~simcore.collectives.plan.LinkUse`; ``passes`` those of links that are never full.
    """

    uses: tuple[tuple[Link, float, float], ...]
    passes: tuple[tuple[Link, float, float], ...]
    alone: float
    alone_ps: int
    number: int


@dataclass(eq=False, slots=True)
class RateLog:
    """When rates of plans changed, in the order of events: ``change[i]`` bytes/ps of plan ``plan[i]``."""

    time_ps: array[int] = field(default_factory=lambda: array("q"))
    plan: array[int] = field(default_factory=lambda: array("i"))
    change: array[float] = field(default_factory=lambda: array("d"))

    def clear(self) -> None:
        """Forget everything."""
        self.time_ps, self.plan, self.change = array("q"), array("i"), array("d")


class FluidNetwork:
    """Flows on directed links.  ``bytes_per_s[l]`` is link ``l``'s capacity, ``names`` are for messages.

    Flows share a link by connection, as one queue serves them.  With ``nics``, the links that leave nodes,
    switches take turns between input ports instead (InfiniBand): behind a NIC, flows share by the NICs that
    they come from, each NIC's part by connection.  Links that ``is_never_full`` says of are held and given
    back as all others, but have no say in what is shared.

    Errors: InputError for a flow over a link without bandwidth.
    """

    def __init__(
        self,
        clock: Clock,
        bytes_per_s: npt.NDArray[np.float64],
        names: Sequence[str] = (),
        *,
        nics: range = range(0),
        is_never_full: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self.log = RateLog()
        self.plans: list[CollectivePlan] = []  # by their number in the log
        self._clock = clock
        self._nics = nics
        self._never_full = frozenset(() if is_never_full is None else np.flatnonzero(is_never_full).tolist())
        self._names = names
        self._links: dict[int, Link] = {}
        self._unsettled: dict[Flow, None] = {}  # their rates are to be found at the end of this instant
        self._routes: dict[CollectivePlan, Route] = {}

    def link(self, index: int) -> Link:
        """The link of that index; made when somebody first asks for it."""
        link = self._links.get(index)
        if link is None:
            name = self._names[index] if self._names else str(index)
            link = self._links[index] = Link(self._clock, self, index, float(self.bytes_per_s[index]), name)
        return link

    def route(self, plan: CollectivePlan) -> Route:
        """The links of a plan.  InputError where one of them has no bandwidth."""
        route = self._routes.get(plan)
        if route is None:
            rate = plan.pace_bytes_per_s * 1e-12
            every = [(self.link(use.link), use.weight, use.inputs) for use in plan.links]
            for link, weight, _ in every:
                if link.bytes_per_ps <= 0.0:
                    raise InputError(f"link {link.name} has no bandwidth but {plan.collective} must cross it")
                rate = min(rate, link.bytes_per_ps / weight)
            uses = tuple([use for use in every if use[0].index not in self._never_full])
            passes = tuple([use for use in every if use[0].index in self._never_full])
            alone_ps = _left_ps(plan, plan.volume_bytes, rate) if plan.volume_bytes > 0.0 else 0
            route = self._routes[plan] = Route(uses, passes, rate, alone_ps, len(self.plans))
            self.plans.append(plan)
        return route

    def start(self, flow: Flow) -> None:
        """Begin with the latency before the plan's data, then move its volume."""
        plan = flow.plan
        flow.route = self._routes.get(plan) or self.route(plan)
        flow.then = self._join
        flow.set(self._clock.now + plan.lead_ps)

    def limit(self, flow: Flow, member: Endpoint, cap: float | None) -> None:
        """See :class:`simcore.network.flow.Network`."""
        if cap is None:
            flow.hbm_caps.pop(member, None)
        else:
            flow.hbm_caps[member] = cap
        self._resolve(self._component(flow))

    # -- joining and leaving ---------------------------------------------------------------------

    def _join(self, flow: Flow) -> None:
        plan, route = flow.plan, flow.route
        for link, _, _ in route.uses:
            if link.observer is not None:
                link.observer.touched(link)
        if not plan.volume_bytes > 0.0:
            flow.fire()
            return
        flow.then = self._leave
        flow.since = self._clock.now
        alone, fits = route.alone, True
        for link, weight, inputs in route.uses:
            others = link.flows
            if others:
                # Where switches part a link by ports, one more flow may take from some and give to others:
                # rates that were held down before it came do not stand.
                if inputs and self._nics and not all(other.at_its_cap for other in others):
                    fits = False
                load = plain_sum([by * max(other.rate, other.desired) for other, by in others.items()])
                fits = fits and load + weight * alone <= link.bytes_per_ps * (1.0 + _SLACK)
            others[flow] = weight
        for link, weight, _ in route.passes:
            link.flows[flow] = weight
        if fits:
            flow.rate = flow.desired = alone
            self._note(flow, alone)
            flow.set(flow.since + route.alone_ps)
            self._notify(flow)
        else:
            self._settle_later([flow])

    def _leave(self, flow: Flow) -> None:
        if self._unsettled:
            self._unsettled.pop(flow, None)
        neighbours: list[Flow] = []
        route = flow.route
        for link, _, _ in route.uses:
            others = link.flows
            del others[flow]
            if others:
                neighbours += [other for other in others if not other.at_its_cap]
        for link, _, _ in route.passes:
            del link.flows[flow]
        self._note(flow, -flow.rate)
        for member in flow.members:
            member.draw_ended(flow)
        if neighbours:
            self._settle_later(neighbours)
        finish(flow)

    def _settle_later(self, flows: Sequence[Flow]) -> None:
        """Find the rates of ``flows`` (some), and of who shares links with them, when this instant is over.

        Flows of many groups come and go at one instant.  Nothing moves meanwhile, so that one solution of
        what they share, the last one, is the only one that matters.
        """
        if not self._unsettled:
            self._clock.at_the_end(self._settle)
        self._unsettled.update(dict.fromkeys(flows))

    def _settle(self) -> None:
        seeds, self._unsettled = self._unsettled, {}
        done: set[Flow] = set()
        for flow in seeds:
            if flow not in done:
                component = self._component(flow)
                done.update(component)
                self._resolve(component)

    # -- sharing ---------------------------------------------------------------------------------

    def _component(self, seed: Flow) -> list[Flow]:
        """Flows that share links with ``seed``, directly or through others, in a stable order."""
        found = {seed: None}
        stack = [seed]
        while stack:
            for link, _, _ in stack.pop().route.uses:
                for other in link.flows:
                    if other not in found:
                        found[other] = None
                        stack.append(other)
        return list(found)

    def _resolve(self, flows: list[Flow]) -> None:
        routes = [flow.route.uses for flow in flows]
        capacity = {link.index: link.bytes_per_ps for uses in routes for link, _, _ in uses}
        caps = [flow.cap for flow in flows]
        share = self._sharing(flows)
        desired = share(capacity, caps)
        rates = desired
        if any(flow.hbm_caps for flow in flows):
            limited = [min(cap, *flow.hbm_caps.values(), cap) for cap, flow in zip(caps, flows, strict=True)]
            rates = share(capacity, limited)
        changed = []
        for flow, rate, wish in zip(flows, rates, desired, strict=True):
            if rate != flow.rate or wish != flow.desired:
                self._apply(flow, rate, wish)
                changed.append(flow)
        for flow in changed:  # members may react by limiting flows: every rate must stand before
            self._notify(flow)

    def _sharing(self, flows: list[Flow]) -> Callable[[dict[int, float], list[float]], list[float]]:
        """By connection; by input port where a switch that arbitrates so has several flows on a link."""
        if self._nics and any(
            inputs and len(link.flows) > 1 for flow in flows for link, _, inputs in flow.route.uses
        ):
            shares = [self._shares(flow) for flow in flows]
            return lambda capacity, caps: max_min_by_share(capacity, shares, caps)
        uses = [[(link.index, weight) for link, weight, _ in flow.route.uses] for flow in flows]
        return lambda capacity, caps: max_min(capacity, uses, caps)

    def _shares(self, flow: Flow) -> list[tuple[int, float, float]]:
        """(link, weight, share): behind switches the flow's NICs, as far as they carry its connections."""
        plan = flow.plan
        nic = next((use.link for use in plan.links if use.link in self._nics), None)
        part = 1.0
        if nic is not None and plan.feed_weight:
            part = plan.feed_weight / plain_sum(self.link(nic).flows.values())
        uses = flow.route.uses
        return [(link.index, weight, inputs * part if inputs else weight) for link, weight, inputs in uses]

    def _apply(self, flow: Flow, rate: float, desired: float) -> None:
        now = self._clock.now
        flow.remaining = max(0.0, flow.remaining - flow.rate * (now - flow.since))
        self._note(flow, rate - flow.rate)
        flow.since = now
        flow.rate, flow.desired = rate, desired
        if rate > 0.0:
            flow.set(now + _left_ps(flow.plan, flow.remaining, rate))
        else:
            flow.unset()

    def _notify(self, flow: Flow) -> None:
        hbm = flow.plan.hbm_bytes_per_byte
        for member in flow.members:
            member.draw_changed(flow, flow.rate * hbm, flow.desired * hbm)

    def _note(self, flow: Flow, change: float) -> None:
        if change:
            log = self.log
            log.time_ps.append(self._clock.now)
            log.plan.append(flow.route.number)
            log.change.append(change)


def _left_ps(plan: CollectivePlan, num_bytes: float, rate: float) -> int:
    """Time for what remains at a rate; exactly the plan's own for all of it at its pace."""
    if plan.between_ps and rate == plan.pace_bytes_per_s * 1e-12 and num_bytes == plan.volume_bytes:
        return plan.alone_ps - plan.lead_ps
    return round(num_bytes / rate)


def fluid_network(clock: Clock, topology: Topology) -> FluidNetwork:
    """The fluid network of a cluster; its transport says how switches share."""
    by_port = topology.cluster.transport == "infiniband"
    nics = topology.sending_nics if by_port else range(0)
    links = topology.links
    return FluidNetwork(
        clock, links.bytes_per_s, links.names, nics=nics, is_never_full=topology.is_never_full
    )


class FixedNetwork:
    """Fidelity ``alphabeta``: every plan lasts its closed-form time, whatever else is on the wire."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def start(self, flow: Flow) -> None:
        """Finish after the plan's time alone."""
        plan = flow.plan
        data_ps = plan.alone_ps - plan.latency_ps
        if data_ps > 0:
            flow.rate = flow.desired = plan.volume_bytes / data_ps
        draw = flow.rate * plan.hbm_bytes_per_byte
        for member in flow.members:
            member.draw_changed(flow, draw, draw)
        flow.then = self._end
        flow.set(self._clock.now + plan.alone_ps)

    @staticmethod
    def _end(flow: Flow) -> None:
        for member in flow.members:
            member.draw_ended(flow)
        finish(flow)

    def limit(self, flow: Flow, member: Endpoint, cap: float | None) -> None:
        """A closed form has nothing to slow down."""
