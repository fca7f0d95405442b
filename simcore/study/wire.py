"""A plan reduced to its wires: what the fluid network must charge to be comparable with packets.

The packet network knows links and their latencies, and no software.  So the plan's fitted latency (kernel
start, flags, fences) and its channels' copy rate are taken out, its link loads and volume stay, and the
latency becomes what the wires' latencies add where data cannot hide them.

Note [Latency that data cannot hide]
    Ring: a rank's step takes t_c, its share of a chunk at the bottleneck's rate; the next rank may begin it
    when the first slice is there, t_s + L after its start.  So S steps take S max(t_c, t_s + L), plus one L
    at the end: beyond S t_c, which the fluid rate charges, (S - 1) max(0, t_s + L - t_c) + L, with t_s + L
    averaged around the ring.
    Tree: chunks follow each other, so the bottleneck is busy while the first ones still climb.  What counts
    is the longer of the bottleneck's time and of the way of a whole channel up and down alone.
    Broadcast, reduce: a chain that starts at one rank; every hop adds L and the time to store a chunk: at
    the link's own rate, or, once there are chunks enough to fill the chain, at the rate of the whole.
    all_to_all, send/recv: nothing depends on anything; the longest route's latency.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from simcore.collectives.layout import Layout, layout_of
from simcore.collectives.plan import CollectivePlan
from simcore.collectives.rings import ring_order, tree_levels
from simcore.hardware.topology import Topology
from simcore.network.packet.program import RING_SLICES, rail_route
from simcore.units import ps_from_s


def bandwidth_s(topology: Topology, plan: CollectivePlan) -> float:
    """Time that the plan's bytes take on its tightest link, alone, in seconds."""
    rates = topology.links.bytes_per_s
    return max((plan.volume_bytes * use.weight / float(rates[use.link]) for use in plan.links), default=0.0)


def wire_plan(topology: Topology, plan: CollectivePlan) -> CollectivePlan:
    """``plan`` without software: latency as in Note [Latency that data cannot hide], no channel limit."""
    latency_ps = ps_from_s(wire_latency_s(topology, plan)) if plan.links else 0
    alone_ps = latency_ps + ps_from_s(bandwidth_s(topology, plan))
    return replace(plan, latency_ps=latency_ps, rate_cap_bytes_per_s=float("inf"), alone_ps=alone_ps)


def wire_latency_s(topology: Topology, plan: CollectivePlan) -> float:
    """What the wires' latencies add to the time of the plan's bytes, in seconds."""
    if plan.algorithm in ("p2p", "pairwise"):
        first, *others = [topology.gpu_of_rank(rank) for rank in plan.ranks]
        return max(_latency_s(topology, rail_route(topology, first, other)) for other in others)
    layout = layout_of(topology, plan.ranks)
    if plan.algorithm == "tree":
        return _tree_s(topology, plan, layout)
    order = ring_order(layout, 0)
    hops = [_Hop(topology, src, dst) for src, dst in pairwise((*order, order[0]))]
    rotations = layout.max_per_node if layout.num_nodes > 1 else 1
    if plan.collective in ("broadcast", "reduce"):
        chunk = plan.num_bytes / rotations / plan.num_chunks
        way = hops[: len(order) - 1]
        stored = [chunk * hop.s_per_byte for hop in way[1:]]
        if plan.num_chunks >= len(way):
            stored = [bandwidth_s(topology, plan) / plan.num_chunks] * len(stored)
        return sum(hop.latency_s for hop in way) + sum(stored)
    loops = plan.num_chunks // layout.num_ranks
    chunk = plan.num_bytes / (loops * rotations * layout.num_ranks)
    piece = chunk / (RING_SLICES if plan.protocol == "Simple" else 1)
    steps = plan.num_steps * loops
    latency = sum(hop.latency_s for hop in hops) / len(hops)
    period = latency + piece * sum(hop.s_per_byte for hop in hops) / len(hops)
    return (steps - 1) * max(0.0, period - bandwidth_s(topology, plan) / steps) + latency


class _Hop:
    """One message's way: latency, and seconds per byte of its slowest link."""

    def __init__(self, topology: Topology, src: int, dst: int) -> None:
        route = topology.route(src, dst)
        self.latency_s = _latency_s(topology, route)
        self.s_per_byte = max(1.0 / float(topology.links.bytes_per_s[link]) for link in route)


def _tree_s(topology: Topology, plan: CollectivePlan, layout: Layout) -> float:
    within, between = tree_levels(layout)
    hops = []
    if within:
        hops += [_Hop(topology, *layout.nodes[0][:2])] * within
    if between:
        hops += [_Hop(topology, layout.nodes[0][0], layout.nodes[1][0])] * between
    channels = 2 * layout.max_per_node
    chunk = plan.num_bytes / channels / plan.num_chunks
    up_and_down = 2 * sum(hop.latency_s + chunk * hop.s_per_byte for hop in hops)
    alone = up_and_down + (plan.num_chunks - 1) * chunk * max(hop.s_per_byte for hop in hops)
    latency = sum(hop.latency_s for hop in hops) / len(hops)
    return max(latency, alone - bandwidth_s(topology, plan))


def _latency_s(topology: Topology, route: tuple[int, ...]) -> float:
    return float(sum(topology.links.latency_s[link] for link in route))
