"""The packet network against published figures of other packet simulators; nothing is fitted to them.

All are 64 MiB ring all_reduces of ns-3 with an RDMA model.  The settings are those of the models' own
published configurations: SimAI (aliyun/SimAI: inputs/config/SimAI.conf, PACKET_PAYLOAD_SIZE 9000; its
topologies, 0.5 us per network link and 25 ns per NVLink; its README, AS_SEND_LAT=3, microseconds before each
message) and the RDMA model for ns-3 of HPCC (payload of 1000 bytes, 48 bytes of headers).  Congestion
control is not modelled here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from simcore.collectives.planner import NcclPlanner
from simcore.hardware.load import load_cluster
from simcore.hardware.specs import ClusterSpec
from simcore.hardware.topology import Topology
from simcore.network.packet import PacketSettings
from simcore.study.compare import time_alone
from simcore.study.wire import bandwidth_s
from simcore.units import MIB, PS_PER_US

_MESSAGE_BYTES: Final = 64 * MIB
_HEADER_BYTES: Final = 48
_SIMAI: Final = PacketSettings(
    segment_bytes=9000,
    packet_bytes=9000,
    header_bytes=_HEADER_BYTES,
    slices=1,
    cut_through=False,
    send_overhead_ps=3 * PS_PER_US,
)
_HPCC: Final = PacketSettings(
    segment_bytes=1000,
    packet_bytes=1000,
    header_bytes=_HEADER_BYTES,
    slices=1,
    cut_through=False,
    max_segments=1_000_000,
)
#: (ranks, microseconds) by ns-3.
_NVLINK_AND_RAILS: Final = ((8, 369.4), (32, 481.5), (128, 1170.9))
_LEAF_SPINE: Final = ((16, 2788.0),)


@dataclass(frozen=True)
class Reference:
    """One published figure and ours, microseconds; ``ideal_us``: bytes over bandwidth alone."""

    name: str
    ranks: int
    published_us: float
    packet_us: float
    ideal_us: float

    @property
    def percent(self) -> float:
        """100 (ours - published) / published."""
        return 100.0 * (self.packet_us / self.published_us - 1.0)

    def as_dict(self) -> dict[str, object]:
        """The row as ``--json`` prints it."""
        return {
            "name": self.name,
            "ranks": self.ranks,
            "published_us": self.published_us,
            "packet_us": self.packet_us,
            "ideal_us": self.ideal_us,
            "percent": self.percent,
        }


def check_references(quick: bool = False) -> Iterator[Reference]:
    """Every published figure with the packet network's; ``quick``: the smallest of each kind."""
    groups: tuple[
        tuple[str, tuple[tuple[int, float], ...], PacketSettings, Callable[[int], ClusterSpec]], ...
    ]
    groups = (
        ("NVLink and rails, ns-3 RDMA (SimAI)", _NVLINK_AND_RAILS, _SIMAI, _rail_cluster),
        ("16 hosts on a leaf-spine 4x4, ns-3 RDMA/DCQCN", _LEAF_SPINE, _HPCC, _leaf_spine_cluster),
    )
    for name, rows, settings, cluster_of in groups:
        for ranks, published_us in rows[:1] if quick else rows:
            topology = Topology(cluster_of(ranks))
            planner = NcclPlanner(topology, algorithm="ring", protocol="Simple")
            plan = planner.plan("all_reduce", _MESSAGE_BYTES, range(ranks))
            # These simulators cut a message once per rank, not by NCCL's buffers.
            packet_ps = time_alone(topology, replace(plan, num_chunks=ranks), settings)
            ideal_us = bandwidth_s(topology, plan) * 1e6
            yield Reference(name, ranks, published_us, packet_ps / PS_PER_US, ideal_us)


def _rail_cluster(ranks: int) -> ClusterSpec:
    cluster = load_cluster("h800-96")
    gpu = replace(cluster.gpu, nvlink_bytes_per_s=2880e9 / 8, nvlink_efficiency=1.0)
    return replace(
        cluster,
        name="reference rails",
        gpu=gpu,
        num_nodes=-(-ranks // cluster.gpus_per_node),
        nic_bytes_per_s=400e9 / 8,
        nic_efficiency=1.0,
        nvlink_latency_s=2 * 25e-9,
        nic_latency_s=2 * 0.5e-6,
        hop_latency_s=0.5e-6,
    )


def _leaf_spine_cluster(ranks: int) -> ClusterSpec:
    """One NIC per host, four hosts per leaf, every link 1 us."""
    return replace(
        load_cluster("h800-96"),
        name="reference leaf-spine",
        num_nodes=ranks,
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
