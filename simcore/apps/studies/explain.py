"""Why fluid and packets differ in one case: rules on the case's own numbers, the first that applies."""

from __future__ import annotations

from typing import Final

from simcore.apps.studies.cases import PlanSequence, TrafficCase
from simcore.apps.studies.wire import bandwidth_s, wire_plan
from simcore.collectives.plan import CollectivePlan
from simcore.units import PS_PER_S, us_from_ps

#: Larger differences are explained.
EXPLAIN_ABOVE_PERCENT: Final = 5.0
#: Sharing a link does not matter to a job whose data needs its bottleneck for less than this share.
_MATTERS_SHARE: Final = 0.02
#: What the folded schedule leaves out, by the kind of schedule.
_WHY: Final = {
    "chain": "rings of different rotations meet at ports in another order than in one representative node",
    "tree": "chunks of different rotations meet at ports in another order than in one representative node",
    "ring": "slices of different rotations meet at ports in another order than in one representative node",
}
_WHY_ELSE: Final = "messages meet at ports and wait for each other"


def explanation(traffic: TrafficCase, job: PlanSequence, fluid_ps: int, packet_ps: int) -> str:
    """A sentence with the numbers that make the difference; ``*_ps`` are the job's two durations."""
    topology = traffic.topology
    bandwidth_ps = sum(bandwidth_s(topology, plan) for plan in job.plans) * PS_PER_S
    share = bandwidth_ps / packet_ps
    if share >= _MATTERS_SHARE:
        shared = _sharing(traffic, job, fluid_ps, packet_ps)
        if shared is not None:
            return shared
    plan = job.plans[0]
    kind = "chain" if plan.kind.root_chain else plan.algorithm
    schedule_us, packets_us = us_from_ps(fluid_ps - bandwidth_ps), us_from_ps(packet_ps - bandwidth_ps)
    return (
        f"{_WHY.get(kind, _WHY_ELSE)}: data fills the bottleneck for {100 * share:.0f}% of the time"
        f" ({us_from_ps(bandwidth_ps):.1f} us); the schedule adds {schedule_us:.1f} us, packets"
        f" {packets_us:.1f} us"
    )


def _sharing(traffic: TrafficCase, job: PlanSequence, fluid_ps: int, packet_ps: int) -> str | None:
    """The difference as one of sharing; None for a job alone on its links."""
    rival = _rival(traffic, job)
    if rival is None:
        return None
    topology, plan = traffic.topology, job.plans[0]
    other, link, mine, theirs = rival
    name = topology.links.names[link]
    if abs(mine / theirs - 1.0) > 1e-6:
        return (
            f"shared {name}: {plan.collective} and {other.collective} have connections there as {mine:.3g} :"
            f" {theirs:.3g}; both networks part it by the NICs that they come from, but a packet of the one"
            " also waits behind bursts of the other"
        )
    waits_us = us_from_ps(sum(wire_plan(topology, each).alone_ps for each in job.plans))
    return (
        f"shared {name}: alone the job takes {waits_us:.0f} us, of which its data needs the tightest link for"
        f" {100 * bandwidth_s(topology, plan) * PS_PER_S / wire_plan(topology, plan).alone_ps:.0f}%; a port"
        f" serves {plan.collective} and {other.collective} in the order of arrival, so how their steps fall"
        f" against each other decides who waits, where fluid lets both go on evenly"
        f" ({us_from_ps(fluid_ps):.0f} against {us_from_ps(packet_ps):.0f} us)"
    )


def _rival(traffic: TrafficCase, job: PlanSequence) -> tuple[CollectivePlan, int, float, float] | None:
    """(another job's plan, the busiest link both use, weight of this job, of the other) if any."""
    own = {use.link: use.weight for use in job.plans[0].links}
    found: tuple[float, CollectivePlan, int, float, float] | None = None
    for other in traffic.jobs:
        if other is job:
            continue
        for use in other.plans[0].links:
            mine = own.get(use.link)
            if mine is None:
                continue
            load = (mine + use.weight) / float(traffic.topology.links.bytes_per_s[use.link])
            if found is None or load > found[0]:
                found = (load, other.plans[0], use.link, mine, use.weight)
    return found[1:] if found else None
