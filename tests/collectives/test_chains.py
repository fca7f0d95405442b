"""Broadcast and reduce: what flows line by line, what chunk by chunk, and what NCCL takes for it."""

import pytest

from simcore.collectives import NcclPlanner
from simcore.collectives.timing import timing_of
from simcore.hardware import Topology, load_cluster
from simcore.units import KIB, MIB, PS_PER_S, PS_PER_US

H800 = Topology(load_cluster("h800-96", {}))
NODE = tuple(range(8))
#: 8 links of 25 GB/s at 0.824.
PORT = 164.8e9


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_under_simple_chunks_of_a_slot_cross_one_hop_after_the_other(collective: str) -> None:
    planner = NcclPlanner(H800, protocol="Simple")
    for mib in (8, 64):
        plan = planner.plan(collective, mib * MIB, NODE)
        # 16 channels x 512 KiB = 8 MiB in flight; 6 of 7 hops pass before the last begins.
        assert (plan.channels, plan.chunk_bytes) == (16, 512 * KIB)
        hops_ps = 6 * timing_of("hopper").protocols["Simple"].nvlink_hop_s * PS_PER_S
        assert plan.between_ps == pytest.approx(hops_ps + 6 * 8 * MIB / PORT * PS_PER_S, rel=1e-6)
        assert plan.alone_ps == pytest.approx(plan.latency_ps + mib * MIB / PORT * PS_PER_S, rel=1e-6)


@pytest.mark.parametrize("protocol", ["LL", "LL128"])
def test_lines_flow_through_a_node_at_once(protocol: str) -> None:
    plan = NcclPlanner(H800, protocol=protocol).plan("broadcast", 8 * MIB, NODE)
    hop_ps = timing_of("hopper").protocols[protocol].nvlink_hop_s * PS_PER_S
    assert plan.between_ps == pytest.approx(6 * hop_ps)


def test_between_nodes_a_proxy_waits_for_each_chunk() -> None:
    planner = NcclPlanner(H800, protocol="LL128", max_channels=16)
    plan = planner.plan("broadcast", 64 * MIB, tuple(range(16)))
    timed = timing_of("hopper").protocols["LL128"]
    # All hops but the first: 13 in the nodes, 1 between them with its 2.8 us of wire.
    hops_s = 13 * timed.nvlink_hop_s + timed.network_hop_s + 2.8e-6
    # 16 chunks, with flags, over 8 ports of 47 GB/s.
    stored_s = 16 * plan.chunk_bytes * 128 / 120 / (8 * 47e9)
    assert plan.between_ps == pytest.approx((hops_s + stored_s) * PS_PER_S, rel=0.01)


def test_nccl_expects_one_hop_where_all_channels_go_round_alike() -> None:
    # LL 6.6 + 0.6 us at half the rate, Simple 8.4 + 3.4 us at the whole 160 GB/s: equal at 736 kB.
    planner = NcclPlanner(H800)
    assert planner.plan("broadcast", 700_000, NODE).protocol == "LL"
    assert planner.plan("broadcast", 800_000, NODE).protocol == "Simple"
    # Over nodes each channel leaves by another NIC: n hops each, and LL128 has its range.
    assert planner.plan("broadcast", 16 * MIB, tuple(range(16))).protocol == "LL128"


def test_nccl_buffsize_speaks_of_simple_alone() -> None:
    def chunk(protocol: str, buffer_bytes: int | None) -> int:
        planner = NcclPlanner(H800, algorithm="ring", protocol=protocol, buffer_bytes=buffer_bytes)
        return planner.plan("broadcast", 512 * MIB, NODE).chunk_bytes

    assert chunk("Simple", 8 * MIB) == 2 * chunk("Simple", None)
    assert chunk("LL128", 8 * MIB) == chunk("LL128", None)
    assert chunk("LL", 8 * MIB) == chunk("LL", None)


def test_from_2_20_a_tree_under_simple_sends_whole_slots() -> None:
    def plan(version: str):
        topology = Topology(load_cluster("h100-16", {"cluster.nccl_version": version}))
        planner = NcclPlanner(topology, algorithm="tree", protocol="Simple")
        return planner.plan("all_reduce", 64 * MIB, tuple(range(16)))

    # 64 MiB in 16 channels: 4 MiB each, in slots of 512 KiB, which were halved down to 128 KiB as long as 8
    # levels had no 8 each, and no further, since they have 4 each.
    assert plan("2.19.3").chunk_bytes == 128 * KIB
    assert plan("2.20.3").chunk_bytes == 512 * KIB
    # 14 hops in the nodes and 1 of 2 between them, 8 MiB in flight instead of 2; a port gives 371 GB/s.
    slower_us = (plan("2.20.3").alone_ps - plan("2.19.3").alone_ps) / PS_PER_US
    assert slower_us > 14 * 6 * MIB / 371e9 * 1e6
