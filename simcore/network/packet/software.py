"""What a plan has beyond wires, so that a run can spend it around its packets.

Note [Software]
    Ports and connections know wires and switches only.  A plan's latency holds what software and wires add
    along the longest chain of dependent messages; the packets spend the wires' part themselves, so only the
    rest passes before the first message.  Where the channels' copy loops are slower than the links,
    connections send no faster than those.  Where the plan's rate is below both, since a tree, a ring's last
    step or unsynchronised peers leave wires idle, its bytes take so much more of the wire.  So a collective
    alone takes what the fluid network charges, where data counts and nothing queues.
    NVLink's latency of a profile is one of whole messages, software included; what one hop of NCCL's LL
    takes, wire included, is the most that the wire can have.

Note [Latency on wires]
    In a ring a step lasts as long as its data at the bottleneck; a latency counts where it and a slice on a
    hop's own wires take longer than that, and once at the end.  Elsewhere it is the longest chain of
    messages through a program's first loop, with the time that each member of the chain takes to store what
    it passes on, but for one: that is the data's own time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simcore.collectives.plan import CollectivePlan
from simcore.collectives.timing import timing_of
from simcore.elementary import plain_sum
from simcore.hardware.topology import Topology
from simcore.network.packet.lanes import MessageProgram
from simcore.units import PS_PER_S

#: Channels slower than their links by less than this are as fast.
_AS_FAST: Final = 0.999


class Software:
    """What one plan has beyond wires.  ``rate``: its progress alone, bytes/ps.

    ``before_ps``: passes before the first message.  ``is_limited``: channels are slower than links.
    ``stretch``: wire time per byte beyond protocol and headers.
    """

    def __init__(self, topology: Topology, plan: CollectivePlan, program: MessageProgram) -> None:
        wires = _wire_bytes_per_s(topology, plan)
        cap = plan.rate_cap_bytes_per_s
        self.rate = min(wires, cap) / PS_PER_S
        self.is_limited = plan.copy_bytes_per_s <= cap / _AS_FAST and cap < _AS_FAST * wires
        self.stretch = 1.0 if self.is_limited else max(1.0, wires / cap)
        self.before_ps = max(0, plan.latency_ps - round(self._wires_ps(topology, plan, program)))

    def _wires_ps(self, topology: Topology, plan: CollectivePlan, program: MessageProgram) -> float:
        if plan.algorithm == "ring" and not plan.kind.root_chain:
            return self._ring_ps(topology, plan, program)
        if self.is_limited and program.stored_bytes:
            fullest = max(lane.num_bytes for lane in program.lanes) / plan.volume_bytes
            return program.latency_ps + program.stored_bytes / (self.rate * fullest)
        return program.wire_ps

    def _ring_ps(self, topology: Topology, plan: CollectivePlan, program: MessageProgram) -> float:
        """See Note [Latency on wires]; latencies and slices are averaged around the ring."""
        links = topology.links
        routes: dict[tuple[int, ...], tuple[float, float]] = {}
        latency = slices = 0.0
        for lane in program.lanes:
            found = routes.get(lane.route)
            if found is None:
                slowest = min(float(links.bytes_per_s[link]) for link in lane.route)
                far = plain_sum(float(links.latency_s[link]) for link in lane.route)
                found = routes[lane.route] = far * PS_PER_S, PS_PER_S / slowest
            latency += found[0]
            slices += found[1] * lane.sends[0].num_bytes * lane.wire_overhead * self.stretch
        lanes = len(program.lanes)
        steps = plan.num_steps * max(1, plan.num_chunks // len(plan.ranks))
        step_ps = plan.volume_bytes / self.rate / steps
        return (steps - 1) * max(0.0, (latency + slices) / lanes - step_ps) + latency / lanes


def _wire_bytes_per_s(topology: Topology, plan: CollectivePlan) -> float:
    """Progress per second that wires alone allow: the tightest one, or one level after the other."""
    capacity = topology.links.bytes_per_s
    inside = outside = 0.0
    for use in plan.links:
        taken = use.weight / float(capacity[use.link])
        if topology.is_inside(use.link):
            inside = max(inside, taken)
        else:
            outside = max(outside, taken)
    taken = inside + outside if plan.algorithm == "hierarchical" else max(inside, outside)
    return 1.0 / taken if taken > 0.0 else 0.0


def with_wires_alone(topology: Topology) -> Topology:
    """The topology with NVLink's latency as of wires alone; see Note [Software]."""
    cluster = topology.cluster
    hop_s = timing_of(cluster.gpu.table("nccl")).protocols["LL"].nvlink_hop_s
    if cluster.nvlink_latency_s <= hop_s:
        return topology
    return Topology(replace(cluster, nvlink_latency_s=hop_s))
