"""A plan reduced to its wires: what the fluid network must charge to be comparable with packets.

The packet network knows links and their latencies, and no software.  So the plan's fitted latency (kernel
start, flags, fences) and its channels' copy rate are taken out; its link loads and volume stay.  What comes
in their place is the time that its schedule takes alone on the wires (:mod:`simcore.apps.studies.folding`).

Note [Latency that data cannot hide]
    The way of the first message is latency before data.  Everything else that a schedule takes beyond its
    bytes, waits between the steps, is spread over the data: alone, the plan moves no faster than its steps
    follow each other.  While a step waits, others may use the links; and where sharing makes data slower
    than the steps would follow, the waits vanish behind it.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.apps.studies.folding import schedule_s
from simcore.collectives.layout import layout_of
from simcore.collectives.plan import CollectivePlan
from simcore.hardware.topology import Topology
from simcore.network.packet.lanes import rail_route
from simcore.units import ps_from_s


def bandwidth_s(topology: Topology, plan: CollectivePlan) -> float:
    """Time that the plan's bytes take on its tightest link, alone, in seconds."""
    rates = topology.links.bytes_per_s
    return max((plan.volume_bytes * use.weight / float(rates[use.link]) for use in plan.links), default=0.0)


def wire_plan(topology: Topology, plan: CollectivePlan) -> CollectivePlan:
    """``plan`` without software, its time alone as in Note [Latency that data cannot hide]."""
    if not plan.links:
        return replace(plan, latency_ps=0, rate_cap_bytes_per_s=float("inf"), alone_ps=0)
    first_s, data_s = first_message_s(topology, plan), bandwidth_s(topology, plan)
    if plan.algorithm in ("p2p", "pairwise"):
        moving_s = data_s
    else:
        whole_s = schedule_s(topology, plan, layout_of(topology, plan.ranks), data_s)
        moving_s = max(data_s, whole_s - first_s)
    return replace(
        plan,
        latency_ps=ps_from_s(first_s + moving_s - data_s),
        between_ps=ps_from_s(moving_s - data_s),
        rate_cap_bytes_per_s=float("inf"),
        alone_ps=ps_from_s(first_s + moving_s),
    )


def first_message_s(topology: Topology, plan: CollectivePlan) -> float:
    """Latency of the longest direct way among the plan's ranks that one of its messages takes first."""
    gpus = [topology.gpu_of_rank(rank) for rank in plan.ranks]
    if plan.algorithm in ("p2p", "pairwise"):
        return max(_latency_s(topology, rail_route(topology, gpus[0], other)) for other in gpus[1:])
    return _latency_s(topology, topology.route(gpus[0], gpus[1]))


def _latency_s(topology: Topology, route: tuple[int, ...]) -> float:
    return float(sum(topology.links.latency_s[link] for link in route))
