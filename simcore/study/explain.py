"""Why fluid and packets differ in one case: rules on the case's own numbers, the first that applies."""

from __future__ import annotations

from typing import Final

from simcore.collectives.plan import CollectivePlan
from simcore.hardware.topology import Topology
from simcore.network.packet import program_of
from simcore.study.cases import Job, Scenario
from simcore.study.wire import bandwidth_s
from simcore.units import PS_PER_S, us_from_ps

#: Larger differences are explained.
EXPLAIN_ABOVE_PERCENT: Final = 5.0
#: Data that fills the bottleneck for less than this share of the time does not decide it.
_LATENCY_BOUND_SHARE: Final = 0.5
#: Between this and all of the time, latency and data are about equal and interact.
_FILLED_SHARE: Final = 0.9


def explanation(scenario: Scenario, job: Job, fluid_ps: int, packet_ps: int) -> str:
    """A sentence with the numbers that make the difference; ``*_ps`` are the job's two durations."""
    plan = job.plans[0]
    topology = scenario.topology
    bandwidth_ps = sum(bandwidth_s(topology, each) for each in job.plans) * PS_PER_S
    share = bandwidth_ps / packet_ps
    percent = round(100 * share)
    rival = _rival(scenario, job)
    if share < _LATENCY_BOUND_SHARE and (rival is None or _is_short(fluid_ps)):
        return (
            f"latency-bound: data needs the bottleneck for {us_from_ps(bandwidth_ps):.1f} us, {percent}% of"
            f" the time; the closed form adds {us_from_ps(fluid_ps - bandwidth_ps):.1f} us of latency, the"
            f" steps really take {us_from_ps(packet_ps - bandwidth_ps):.1f} us"
        )
    if rival is not None:
        other, link, mine, theirs = rival
        name = topology.links.names[link]
        ours, others = _connections(topology, plan, link), _connections(topology, other, link)
        if abs(mine / theirs - ours / others) > 1e-6:
            return (
                f"shared {name}: max-min gives {plan.collective} and {other.collective} equal progress, so"
                f" bytes in proportion {mine:.3g} : {theirs:.3g} there; ports give equal turns to their"
                f" connections, {ours} and {others}"
            )
        return (
            f"shared {name}: packets of {plan.collective} and {other.collective} queue behind each other, and"
            " a rank that waits for its chunk leaves its own links idle; fluid rates keep every link busy"
        )
    if share < _FILLED_SHARE:
        return (
            f"latency and data are of one size: data fills the bottleneck for {percent}% of the time; the"
            f" closed form adds {us_from_ps(fluid_ps - bandwidth_ps):.1f} us, ranks that wait for chunks add"
            f" {us_from_ps(packet_ps - bandwidth_ps):.1f} us"
        )
    return (
        f"queues: the bottleneck is busy {percent}% of the time; messages that meet at a port delay those"
        " behind them, which fluid rates do not"
    )


def _connections(topology: Topology, plan: CollectivePlan, link: int) -> int:
    return sum(link in lane.route for lane in program_of(topology, plan).lanes)


def _is_short(duration_ps: int) -> bool:
    """Whether a job is over within a few step latencies, so that sharing does not matter."""
    return duration_ps < 100_000_000  # 100 us


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
            load = _load(scenario.topology, use.link, mine + use.weight)
            if found is None or load > found[0]:
                found = (load, other.plans[0], use.link, mine, use.weight)
    return found[1:] if found else None


def _load(topology: Topology, link: int, weight: float) -> float:
    return weight / float(topology.links.bytes_per_s[link])
