"""The packet network against published figures of ns-3 with an RDMA model; nothing is fitted to them.

All are ring all_reduces.  The settings are those that the models publish.

Note [SimAI]
    aliyun/SimAI: a payload of 9000 bytes (inputs/config/SimAI.conf) behind 48 bytes of headers (Ethernet, IP,
    UDP, sequence, as in HPCC's RDMA model); links of 0.5 us, NVLinks of 25 ns (gen_Topo_Template.py); 3 us
    before each message (AS_SEND_LAT=3 of its README) and 10 ns for handing it to the NPU (MemBus.cc).  A
    message is a queue pair of its own (network_frontend/ns3/entry.h), which ends, and lets the receiver go
    on, when its acknowledgement is back at the sender; a NIC serves its queue pairs in turn
    (qbb-net-device.cc).  There is one ring for each GPU of a node: ring c visits the GPUs c, c+1, ... of
    every node (MockNcclGroup.cc), so that hops between nodes go to the next rail, over a spine.  A chunk is
    the message over ranks and rings, in one piece.  Which of 64 spines a message takes is hashed there; here
    they are one link, so that no two messages collide.

Note [ASTRA-sim]
    astra-sim with its ns-3 backend, from HPCC (alibaba-edu/High-Precision-Congestion-Control): a payload of
    1000 bytes behind 48 bytes of headers, no time before a message, ends by acknowledgement as above.  One
    message per rank and step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from simcore.apps.studies.wire import bandwidth_s
from simcore.clock import Clock
from simcore.collectives.plan import CollectivePlan
from simcore.collectives.planner import NcclPlanner
from simcore.errors import InputError
from simcore.hardware.load import load_cluster
from simcore.hardware.specs import ClusterSpec
from simcore.hardware.topology import Topology
from simcore.network.flow import Flow
from simcore.network.packet import Lane, MessageProgram, PacketNetwork, PacketSettings, Send
from simcore.records import dataclass
from simcore.units import MIB, PS_PER_US

_GPUS_PER_NODE: Final = 8
#: Packets are put together where more hops of them than this would be simulated.
_MAX_SEGMENTS: Final = 6_000_000
#: Messages that may be on their way between two ranks: no limit.
_WINDOW: Final = 1 << 30
_HPCC: Final = PacketSettings(
    segment_bytes=1000,
    packet_bytes=1000,
    header_bytes=48,
    ack_bytes=60,
    pair_per_message=True,
    slices=1,
    cut_through=False,
    buffer_bytes=32 * MIB,
    max_segments=1_000_000,  # one ring: nothing shares a port, so larger units only store longer at switches
    routing="spread",
)
_SIMAI: Final = replace(
    _HPCC, segment_bytes=9000, packet_bytes=9000, send_overhead_ps=3_010_000, max_segments=_MAX_SEGMENTS
)


@dataclass(frozen=True)
class Reference:
    """One published figure and ours, microseconds; ``ideal_us``: bytes over bandwidth alone.

    ``published_us`` is None where only ours was asked for.
    """

    name: str
    ranks: int
    num_bytes: int
    published_us: float | None
    packet_us: float
    ideal_us: float

    @property
    def percent(self) -> float | None:
        """100 (ours - published) / published."""
        return None if self.published_us is None else 100.0 * (self.packet_us / self.published_us - 1.0)

    def as_dict(self) -> dict[str, object]:
        """The row as ``--json`` prints it."""
        return {
            "name": self.name,
            "ranks": self.ranks,
            "bytes": self.num_bytes,
            "published_us": self.published_us,
            "packet_us": self.packet_us,
            "ideal_us": self.ideal_us,
            "percent": self.percent,
        }


class PacketCase(NamedTuple):
    """Messages on wires, and how they are carried; ``plan`` says what they add up to."""

    topology: Topology
    plan: CollectivePlan
    program: MessageProgram
    settings: PacketSettings


#: (ranks, bytes, microseconds by ns-3)
_RAILS: Final = ((8, 64 * MIB, 369.4), (32, 64 * MIB, 481.5), (128, 64 * MIB, 1170.9))
_LEAF_SPINE: Final = ((16, 64 * MIB, 2788.0),)


def check_references(quick: bool = False) -> Iterator[Reference]:
    """Every published figure with the packet network's; ``quick``: the smallest of each kind."""
    for ranks, num_bytes, published_us in _RAILS[:1] if quick else _RAILS:
        yield rails_reference(ranks, num_bytes, published_us)
    for ranks, num_bytes, published_us in _LEAF_SPINE:
        yield leaf_spine_reference(ranks, num_bytes, published_us)


def rails_reference(ranks: int, num_bytes: int, published_us: float | None = None) -> Reference:
    """Nodes of 8 GPUs, NVLink 2880 Gb/s, a NIC of 400 Gb/s per GPU on rails, as SimAI's ns-3 has it.

    InputError as :func:`rails_case`.
    """
    case = rails_case(ranks, num_bytes)
    return _reference("NVLink and rails, ns-3 RDMA (SimAI)", case, published_us)


def rails_case(ranks: int, num_bytes: int) -> PacketCase:
    """Note [SimAI] for any size.

    InputError for a number of ranks that fills no nodes, or a message smaller than its pieces.
    """
    if ranks < _GPUS_PER_NODE or ranks % _GPUS_PER_NODE:
        nearest = max(_GPUS_PER_NODE, round(ranks / _GPUS_PER_NODE) * _GPUS_PER_NODE)
        raise InputError(f"{ranks} ranks do not fill nodes of {_GPUS_PER_NODE} GPUs; {nearest} would")
    cluster = load_cluster("h800-96")
    gpu = replace(cluster.gpu, nvlink_bytes_per_s=2880e9 / 8, nvlink_efficiency=1.0)
    nodes = ranks // _GPUS_PER_NODE
    cluster = replace(
        cluster,
        name="reference rails",
        gpu=gpu,
        num_nodes=nodes,
        nodes_per_leaf=max(cluster.nodes_per_leaf, nodes),
        nic_bytes_per_s=400e9 / 8,
        nic_efficiency=1.0,
        nvlink_latency_s=2 * 25e-9,
        nic_latency_s=2 * 0.5e-6,
        hop_latency_s=0.5e-6,
    )
    return _case(cluster, ranks, num_bytes, _GPUS_PER_NODE, _SIMAI)


def leaf_spine_reference(ranks: int, num_bytes: int, published_us: float | None = None) -> Reference:
    """Hosts with one NIC of 400 Gb/s, four per leaf, every link 1 us, as astra-sim's ns-3 has it."""
    name = "hosts on a leaf-spine, four per leaf, ns-3 RDMA (astra-sim)"
    return _reference(name, _case(leaf_spine(ranks), ranks, num_bytes, 1, _HPCC), published_us)


def leaf_spine(hosts: int) -> ClusterSpec:
    """Hosts with one NIC of 400 Gb/s, four per leaf, 1 us per link, nothing oversubscribed."""
    return replace(
        load_cluster("h800-96"),
        name="reference leaf-spine",
        num_nodes=hosts,
        gpus_per_node=1,
        nics_per_node=1,
        nic_bytes_per_s=400e9 / 8,
        nic_efficiency=1.0,
        nic_latency_s=2e-6,
        hop_latency_s=1e-6,
        fabric="leaf_spine",
        nodes_per_leaf=4,
        spine_oversubscription=1.0,
    )


def _case(
    cluster: ClusterSpec, ranks: int, num_bytes: int, rings: int, settings: PacketSettings
) -> PacketCase:
    if num_bytes < ranks * rings:
        raise InputError(f"{num_bytes} bytes cannot be cut for {ranks} ranks and {rings} rings")
    topology = Topology(cluster)
    planner = NcclPlanner(topology, algorithm="ring", protocol="Simple")
    plan = planner.plan("all_reduce", num_bytes, range(ranks))
    return PacketCase(topology, plan, rotated_rings(topology, ranks, num_bytes, rings), settings)


def _reference(name: str, case: PacketCase, published_us: float | None) -> Reference:
    packet_us = carried_ps(*case) / PS_PER_US
    ideal_us = bandwidth_s(case.topology, case.plan) * 1e6
    return Reference(name, len(case.plan.ranks), case.plan.num_bytes, published_us, packet_us, ideal_us)


def carried_ps(
    topology: Topology, plan: CollectivePlan, program: MessageProgram, settings: PacketSettings
) -> int:
    """Time that ``program`` takes alone on the packet network, in place of the plan's own messages."""
    clock = Clock()
    network = PacketNetwork(clock, topology, settings)
    network.carry_as(plan, program)
    flow = Flow(clock, plan, ())
    ended: list[int] = []
    flow.callbacks.append(lambda _: ended.append(clock.now))
    network.start(flow)
    clock.drain()
    return ended[0]


def rotated_rings(topology: Topology, ranks: int, num_bytes: int, rings: int) -> MessageProgram:
    """A ring all_reduce over ``rings`` rings, as in Note [SimAI]: all steps of 2 (ranks - 1), whole chunks.

    Ring c visits local ranks c, c+1, ... (modulo ``rings``) of each node in turn.
    """
    chunk = num_bytes // ranks // rings
    steps = 2 * (ranks - 1)
    lanes: list[Lane] = []
    for ring in range(rings):
        order = [
            node * rings + (ring + turn) % rings for node in range(ranks // rings) for turn in range(rings)
        ]
        for place, src in enumerate(order):
            dst = order[(place + 1) % ranks]
            # What is sent in a step is what came in the step before: one message per key.
            here = (ring * ranks + place) * steps
            there = (ring * ranks + (place + 1) % ranks) * steps
            sends = [
                Send(chunk, here + step - 1 if step else 0, 1 if step else 0, there + step)
                for step in range(steps)
            ]
            lanes.append(Lane(topology.route(src, dst), _WINDOW, (ring, src, dst), sends=sends))
    return MessageProgram(tuple(lanes))
