"""Why fluid and packets differ in one case: rules on the case's own numbers, the first that applies."""

from __future__ import annotations

from typing import Final

from simcore.collectives.plan import CollectivePlan
from simcore.study.cases import Job, Scenario
from simcore.study.wire import bandwidth_s, wire_latency_s
from simcore.units import PS_PER_S, us_from_ps

#: Larger differences are explained.
EXPLAIN_ABOVE_PERCENT: Final = 5.0
#: Sharing a link does not matter to a job whose data needs its bottleneck for less than this share.
_MATTERS_SHARE: Final = 0.02
#: Latency above this share of a job's time makes a difference worth naming.
_HIDDEN_SHARE: Final = 0.04
#: A job that takes no more than this above its time alone has not shared its links.
_ALONE_SHARE: Final = 0.01

#: What a closed form leaves out, by the kind of schedule.
_WHY: Final = {
    "chain": "every hop stores a whole chunk, and the rings of different rotations meet at the same ports",
    "tree": "chunks climb and descend while the bottleneck is not yet, or no longer, busy all the time",
    "ring": "slices of different rotations meet at ports, so that steps take longer than latency and data",
}
_WHY_ELSE: Final = "messages meet at ports and wait for each other"


def explanation(scenario: Scenario, job: Job, fluid_ps: int, packet_ps: int) -> str:
    """A sentence with the numbers that make the difference; ``*_ps`` are the job's two durations."""
    topology = scenario.topology
    bandwidth_ps = sum(bandwidth_s(topology, plan) for plan in job.plans) * PS_PER_S
    share = bandwidth_ps / packet_ps
    if share >= _MATTERS_SHARE:
        shared = _sharing(scenario, job, fluid_ps, packet_ps)
        if shared is not None:
            return shared
    plan = job.plans[0]
    kind = "chain" if plan.collective in ("broadcast", "reduce") else plan.algorithm
    closed_form_us, packets_us = us_from_ps(fluid_ps - bandwidth_ps), us_from_ps(packet_ps - bandwidth_ps)
    return (
        f"{_WHY.get(kind, _WHY_ELSE)}: data fills the bottleneck for {100 * share:.0f}% of the time"
        f" ({us_from_ps(bandwidth_ps):.1f} us); the closed form adds {closed_form_us:.1f} us,"
        f" packets {packets_us:.1f} us"
    )


def _sharing(scenario: Scenario, job: Job, fluid_ps: int, packet_ps: int) -> str | None:
    """The difference as one of sharing; None for a job alone on its links."""
    rival = _rival(scenario, job)
    if rival is None:
        return None
    topology, plan = scenario.topology, job.plans[0]
    hidden_ps = sum(wire_latency_s(topology, each) for each in job.plans) * PS_PER_S
    if fluid_ps > packet_ps and hidden_ps > max(_HIDDEN_SHARE * packet_ps, fluid_ps - packet_ps):
        return (
            f"{us_from_ps(hidden_ps):.0f} us of latency that data cannot hide alone: with links shared, each"
            " step's data takes longer and hides some, while fluid adds both"
        )
    other, link, mine, theirs = rival
    name = topology.links.names[link]
    alone_ps = hidden_ps + sum(bandwidth_s(topology, each) for each in job.plans) * PS_PER_S
    if fluid_ps < packet_ps and fluid_ps <= (1.0 + _ALONE_SHARE) * alone_ps:
        return (
            f"shared {name}: fluid puts latency before the data, so the data of {plan.collective} and"
            f" {other.collective} hardly meet there and it takes {us_from_ps(fluid_ps):.0f} us as if alone;"
            " packets are on the way from the start"
        )
    if abs(mine / theirs - 1.0) > 1e-6:
        return (
            f"shared {name}: fluid gives {plan.collective} and {other.collective} bytes by their connections"
            f" there, {mine:.3g} : {theirs:.3g}; packets share by the ports that feed it"
        )
    return (
        f"shared {name}: a port serves {plan.collective} and {other.collective} in the order of arrival, so"
        " by what each has under way, which its chunks and latencies limit; fluid rates are equal"
    )


def _rival(scenario: Scenario, job: Job) -> tuple[CollectivePlan, int, float, float] | None:
    """(another job's plan, the busiest link both use, weight of this job, of the other) if any."""
    own = {use.link: use.weight for use in job.plans[0].links}
    found: tuple[float, CollectivePlan, int, float, float] | None = None
    for other in scenario.jobs:
        if other is job:
            continue
        for use in other.plans[0].links:
            mine = own.get(use.link)
            if mine is None:
                continue
            load = (mine + use.weight) / float(scenario.topology.links.bytes_per_s[use.link])
            if found is None or load > found[0]:
                found = (load, other.plans[0], use.link, mine, use.weight)
    return found[1:] if found else None
