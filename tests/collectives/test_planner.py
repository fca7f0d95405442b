"""Plans: what is chosen, how long it takes alone, and what must not change it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.collectives import COLLECTIVES, CollectivePlan, NcclPlanner
from simcore.collectives.recorded import as_recorded
from simcore.collectives.timing import timing_of
from simcore.hardware import Topology, load_cluster
from simcore.units import GIB, KIB, MIB, PS_PER_S, PS_PER_US

H800 = Topology(load_cluster("h800-96", {}))
H100 = Topology(load_cluster("h100", {}))
A100 = Topology(load_cluster("a100", {}))
NODE = tuple(range(8))

#: Rules that other tests read may define more of them later.
OWN_COLLECTIVES = tuple(COLLECTIVES)


def busbw(plan: CollectivePlan) -> float:
    """nccl-tests' bus bandwidth, bytes/s."""
    n = len(plan.ranks)
    factor = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1, "reduce": 1}.get(plan.collective, (n - 1) / n)
    return factor * plan.num_bytes * PS_PER_S / plan.alone_ps


def link_rate(plan: CollectivePlan, topology: Topology) -> float:
    return min(float(topology.links.bytes_per_s[use.link]) / use.weight for use in plan.links)


@settings(max_examples=80, deadline=None)
@given(
    collective=st.sampled_from(OWN_COLLECTIVES),
    num_bytes=st.integers(1, 4 * GIB),
    ranks=st.sets(st.integers(0, 95), min_size=2, max_size=24),
)
def test_time_alone_is_latency_plus_volume_over_the_tightest_of_cap_and_links(
    collective: str, num_bytes: int, ranks: set[int]
) -> None:
    plan = NcclPlanner(H800).plan(collective, num_bytes, tuple(sorted(ranks)))
    rate = min(plan.rate_cap_bytes_per_s, link_rate(plan, H800))
    assert plan.alone_ps == plan.latency_ps + round(plan.volume_bytes * PS_PER_S / rate)
    assert plan.latency_ps > 0
    assert 1 <= plan.channels <= 32
    assert plan.hbm_bytes_per_byte >= 1


@pytest.mark.parametrize("topology", [H800, H100, A100])
def test_bus_bandwidth_never_exceeds_the_wire(topology: Topology) -> None:
    port = topology.links.bytes_per_s[topology.nvlink_out(0)]
    for algorithm in ("ring", "tree"):
        planner = NcclPlanner(topology, algorithm=algorithm)
        for collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"):
            for size in (MIB, 64 * MIB, 16 * GIB):
                assert busbw(planner.plan(collective, size, NODE)) <= port
    # The switch adds for the GPUs: a port carries 9/8 of the buffer where a ring carries 14/8.
    switched = NcclPlanner(topology, algorithm="nvls").plan("all_reduce", 16 * GIB, NODE)
    assert busbw(switched) <= port * 14 / 9


def test_hopper_nodes_reduce_in_the_switch_from_about_a_megabyte() -> None:
    planner = NcclPlanner(H100)
    assert planner.plan("all_reduce", 256 * KIB, NODE).algorithm == "ring"
    large = planner.plan("all_reduce", 16 * GIB, NODE)
    assert (large.algorithm, large.protocol, large.channels) == ("nvls", "Simple", 16)
    # Published: 480 GB/s on 8 x H100 SXM (NVIDIA/nccl issue 1455); H800 ports are 8/18 as wide.
    assert busbw(large) == pytest.approx(480e9, rel=0.03)
    assert busbw(NcclPlanner(H800).plan("all_reduce", 16 * GIB, NODE)) == pytest.approx(215e9, rel=0.03)
    # Two GPUs, or another collective, or an older GPU: no switch reduction.
    assert planner.plan("all_reduce", GIB, (0, 1)).algorithm == "ring"
    assert planner.plan("all_gather", GIB, NODE).algorithm == "ring"
    assert NcclPlanner(A100).plan("all_reduce", GIB, NODE).algorithm == "ring"
    before_nvls = Topology(load_cluster("h100", {"cluster.nccl_version": "2.16.2"}))
    assert NcclPlanner(before_nvls).plan("all_reduce", GIB, NODE).algorithm == "ring"


def test_tree_for_small_and_ring_for_large_messages_over_nodes() -> None:
    planner = NcclPlanner(A100)
    ranks = tuple(range(64))
    chosen = {2**e: planner.plan("all_reduce", 2**e, ranks).algorithm for e in range(3, 36)}
    assert {chosen[size] for size in chosen if size <= 8 * MIB} == {"tree"}
    # 64 ranks: NCCL expects 0.93 ms of latency of a ring under Simple, and of a tree 92 % of its bandwidth.
    assert {chosen[size] for size in chosen if size >= 2 * GIB} == {"ring"}


def test_aggregated_trees_gather_small_messages_of_many_nodes() -> None:
    # 64 nodes with one rank each: a ring has 63 hops, PAT six and a part per rank.  Large messages keep the
    # ring, whose bandwidth NCCL puts at 4/3 of PAT's; so do groups with more than one rank on a node, all
    # other collectives, and NCCL before 2.23.
    modern = load_cluster("h100", {"cluster.num_nodes": "64", "cluster.nccl_version": "2.27.3"})
    ranks = tuple(range(0, 512, 8))
    planner = NcclPlanner(Topology(modern))
    chosen = {2**e: planner.plan("all_gather", 2**e, ranks).algorithm for e in range(10, 34)}
    assert chosen[KIB] == chosen[MIB] == "pat"
    assert chosen[8 * GIB] == "ring"
    order = ["pat", "ring"]
    assert list(chosen.values()) == sorted(chosen.values(), key=order.index)
    assert planner.plan("reduce_scatter", KIB, ranks).algorithm == "pat"
    assert planner.plan("all_gather", KIB, (*ranks, 1)).algorithm == "ring"
    assert planner.plan("broadcast", KIB, ranks).algorithm == "ring"
    older = load_cluster("h100", {"cluster.num_nodes": "64", "cluster.nccl_version": "2.22.3"})
    ring = NcclPlanner(Topology(older)).plan("all_gather", KIB, ranks)
    assert ring.algorithm == "ring"
    pat = planner.plan("all_gather", KIB, ranks)
    assert pat.num_steps == 6
    assert pat.alone_ps < ring.alone_ps


def test_gathers_of_many_ranks_on_one_switch_use_it() -> None:
    # Forced on 8 GPUs, the port is the limit: the whole buffer at a share of it, half of an all_reduce's way.
    plan = NcclPlanner(H100, algorithm="nvls").plan("all_gather", 16 * GIB, NODE)
    assert plan.algorithm == "nvls"
    assert busbw(plan) < busbw(NcclPlanner(H100).plan("all_gather", 16 * GIB, NODE))
    # HBM: a share read, the buffer written by all, read and written once more: 1/8 + 3 buffers.
    assert plan.hbm_bytes_per_byte * plan.volume_bytes == pytest.approx(25 / 8 * 16 * GIB)


def test_protocols_follow_the_size() -> None:
    planner = NcclPlanner(H100)
    chosen = [planner.plan("all_gather", 2**e, NODE).protocol for e in range(9, 30)]
    order = ["LL", "LL128", "Simple"]
    assert [order.index(p) for p in chosen] == sorted(order.index(p) for p in chosen)
    assert set(chosen) == set(order)


@settings(max_examples=60, deadline=None)
@given(
    algorithm=st.sampled_from(["ring", "tree"]),
    protocol=st.sampled_from(["LL", "LL128", "Simple"]),
    num_bytes=st.integers(0, GIB),
    more=st.integers(0, GIB),
    nodes=st.integers(1, 6),
)
def test_more_bytes_never_take_less_time(
    algorithm: str, protocol: str, num_bytes: int, more: int, nodes: int
) -> None:
    # With algorithm, protocol and channels fixed; where NCCL changes them by itself, time may step down.
    planner = NcclPlanner(H800, algorithm=algorithm, protocol=protocol, min_channels=16, max_channels=16)
    ranks = tuple(range(8 * nodes))
    # A tree halves its chunks below a threshold, which shortens its fill: at most that much may be won.
    slack = 1.0 if algorithm == "ring" else 0.6
    small, large = (planner.plan("all_reduce", b, ranks).alone_ps for b in (num_bytes, num_bytes + more))
    assert large >= slack * small


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all", "broadcast"])
@pytest.mark.parametrize("size", [KIB, MIB, GIB])
def test_more_bandwidth_never_takes_more_time(collective: str, size: int) -> None:
    ranks = tuple(range(32))
    for key in ("gpu.nvlink_bytes_per_s", "cluster.nic_bytes_per_s"):
        slow, fast = (
            NcclPlanner(Topology(load_cluster("h800-96", {key: value})), algorithm="ring", protocol="Simple")
            for value in (("200 GB/s", "400 GB/s") if "nvlink" in key else ("200 Gb/s", "400 Gb/s"))
        )
        assert fast.plan(collective, size, ranks).alone_ps <= slow.plan(collective, size, ranks).alone_ps


def test_one_slow_nic_slows_the_groups_that_use_it_and_no_other() -> None:
    slow = Topology(load_cluster("h800-96", {"link.nic.0.0.out.bytes_per_s": "5 GB/s"}))
    plain, hurt = NcclPlanner(H800, algorithm="ring"), NcclPlanner(slow, algorithm="ring")
    for ranks, affected in (((0, 8), True), ((1, 9), False), (tuple(range(16)), True), (NODE, False)):
        before, after = (p.plan("all_reduce", GIB, ranks).alone_ps for p in (plain, hurt))
        assert (after > before) is affected


def test_the_order_of_ranks_changes_nothing_but_the_order() -> None:
    ranks = list(range(4, 40))
    shuffled = ranks[:]
    random.Random(7).shuffle(shuffled)
    for collective in OWN_COLLECTIVES:
        for size in (KIB, 32 * MIB):
            one = NcclPlanner(H800).plan(collective, size, tuple(ranks))
            two = NcclPlanner(H800).plan(collective, size, tuple(shuffled))
            assert one.alone_ps == two.alone_ps
            assert one.links == two.links
            assert two.ranks == tuple(shuffled)


def test_groups_of_one_shape_take_the_same_time() -> None:
    planner = NcclPlanner(H800)
    times = {planner.plan("all_reduce", 96 * MIB, range(b, b + 8)).alone_ps for b in range(0, 96, 8)}
    assert len(times) == 1


def test_what_is_forced_is_done() -> None:
    planner = NcclPlanner(H800, algorithm="Tree", protocol="ll", max_channels=4)
    plan = planner.plan("all_reduce", GIB, tuple(range(32)))
    assert (plan.algorithm, plan.protocol, plan.channels) == ("tree", "LL", 4)
    # NCCL_ALGO=Tree leaves an all_gather its ring.
    assert planner.plan("all_gather", GIB, tuple(range(32))).algorithm == "ring"
    assert NcclPlanner(H800, min_channels=8).plan("all_reduce", 8, NODE).channels == 8
    big = NcclPlanner(H800, algorithm="ring", protocol="Simple", buffer_bytes=8 * MIB)
    default = NcclPlanner(H800, algorithm="ring", protocol="Simple")
    assert (
        big.plan("all_reduce", 8 * GIB, NODE).chunk_bytes
        == 2 * default.plan("all_reduce", 8 * GIB, NODE).chunk_bytes
    )


def test_fewer_channels_cap_the_rate() -> None:
    # One channel copies 40 GB/s at most; a ring of 2 sends 2 steps and loses a tail t: 40 x 2 / (2 + t).
    simple = timing_of("hopper").protocols["Simple"]
    plan = NcclPlanner(H100, algorithm="ring", protocol="Simple", max_channels=1).plan(
        "all_reduce", GIB, (0, 1)
    )
    assert plan.rate_cap_bytes_per_s == pytest.approx(simple.channel_bytes_per_s * 2 / (2 + simple.tail_step))
    assert plan.alone_ps - plan.latency_ps == pytest.approx(GIB / plan.rate_cap_bytes_per_s * PS_PER_S)


def test_a_ring_of_one_gpu_per_node_fills_its_nic() -> None:
    # 2 ranks send B each over 47 GB/s; the NIC does not wait for the last receive as an NVLink port does.
    across = NcclPlanner(H800).plan("all_reduce", GIB, (0, 8))
    assert across.alone_ps - across.latency_ps == pytest.approx(GIB / 47e9 * PS_PER_S)
    within = NcclPlanner(H800, algorithm="ring").plan("all_reduce", GIB, (0, 1))
    tail = timing_of("hopper").protocols["Simple"].tail_step
    assert within.rate_cap_bytes_per_s == pytest.approx(164.8e9 * 2 / (2 + tail))


def test_send_recv() -> None:
    planner = NcclPlanner(H800)
    # 400 Gb/s at 94 %: 47 GB/s; 100,663,296 B take 2141.8 us after the start.
    across = planner.plan_p2p(2048 * 12288 * 4, 0, 8)
    assert (across.algorithm, across.protocol, across.channels) == ("p2p", "Simple", 2)
    assert (across.alone_ps - across.latency_ps) / PS_PER_US == pytest.approx(100_663_296 / 47e3)
    assert across.ranks == (0, 8)
    assert planner.plan_p2p(16 * KIB, 0, 8).protocol == "LL"
    within = planner.plan_p2p(2048 * 12288 * 4, 0, 1)
    assert within.channels == 16
    assert within.alone_ps < across.alone_ps
    # Of each byte HBM sees a read, a FIFO and a write, half on either GPU; the sender's own FIFO makes it 2.
    assert (within.hbm_bytes_per_byte, across.hbm_bytes_per_byte) == (1.5, 2.0)


# Medians of profiled kernels between 2 GPUs of one node (microsoft/vidur at 7d47513363), microseconds: they
# contain the wait for the peer, so they bound the time from above; the fit does not see them.
@pytest.mark.parametrize(
    ("topology", "num_bytes", "profiled_us"),
    [(H100, 31872 * KIB, 98.0), (H100, 64 * MIB, 193.0), (A100, 2016 * KIB, 20.0), (A100, 64 * MIB, 294.0)],
)
def test_send_recv_within_a_node_takes_its_start_and_the_wire(
    topology: Topology, num_bytes: int, profiled_us: float
) -> None:
    predicted_us = NcclPlanner(topology).plan_p2p(num_bytes, 0, 1).alone_ps / PS_PER_US
    assert predicted_us == pytest.approx(profiled_us, rel=0.05)


def test_hbm_traffic_of_a_ring() -> None:
    # 8 ranks, Simple: FIFO 1, user buffers 2 x 8 accesses for 14 shares sent: 1 + 16/14.
    plan = NcclPlanner(H800, algorithm="ring", protocol="Simple").plan("all_reduce", GIB, NODE)
    assert plan.hbm_bytes_per_byte == pytest.approx(1 + 16 / 14)
    # all_gather: 1 read and 8 writes for 7 shares.
    plan = NcclPlanner(H800, protocol="Simple").plan("all_gather", GIB, NODE)
    assert plan.hbm_bytes_per_byte == pytest.approx(1 + 9 / 7)
    # all_to_all: 8 reads and 8 writes for 7 shares, on 7 connections that progress together.
    plan = NcclPlanner(H800, protocol="Simple").plan("all_to_all", GIB, NODE)
    assert plan.hbm_bytes_per_byte == pytest.approx(7 * (1 + 16 / 7))
    assert plan.volume_bytes == pytest.approx(GIB * 7 / 8 / 7)
    # broadcast: the root reads 8 shares, the 7 others write them, every GPU passes on 8: 1 + 64 / 64.
    plan = NcclPlanner(H800, protocol="Simple").plan("broadcast", GIB, NODE)
    assert plan.hbm_bytes_per_byte == pytest.approx(1 + 1)
    # reduce: 8 read their own, one writes the sum.
    plan = NcclPlanner(H800, protocol="Simple").plan("reduce", GIB, NODE)
    assert plan.hbm_bytes_per_byte == pytest.approx(1 + 9 / 8)
    # One GPU per node: all traffic passes the sender's FIFO as well: 2 + 2 x 4 / (2 x 3).
    plan = NcclPlanner(H800, algorithm="ring", protocol="Simple").plan("all_reduce", GIB, (0, 8, 16, 24))
    assert plan.hbm_bytes_per_byte == pytest.approx(2 + 8 / 6)


def test_groups_of_one_and_empty_messages_cost_nothing() -> None:
    planner = NcclPlanner(H800)
    for plan in (planner.plan("all_reduce", GIB, (5,)), planner.plan("all_gather", 0, NODE)):
        assert (plan.alone_ps, plan.channels, plan.volume_bytes, plan.links) == (0, 0, 0.0, ())


def test_a_barrier_is_an_all_reduce_of_a_word() -> None:
    planner = NcclPlanner(H800)
    barrier = planner.plan("barrier", 0, NODE)
    assert barrier.alone_ps == planner.plan("all_reduce", 4, NODE).alone_ps
    assert (barrier.collective, barrier.num_bytes) == ("barrier", 0)


def test_plans_are_cached() -> None:
    planner = NcclPlanner(H800)
    assert planner.plan("all_reduce", 96 * MIB, NODE) is planner.plan("all_reduce", 96 * MIB, NODE)


# Medians of nccl-tests rows of ai-dynamo/aiconfigurator at 095f58a51c, 8 GPUs of one node, in microseconds.
@pytest.mark.parametrize(
    ("topology", "collective", "num_bytes", "measured_us"),
    [
        (A100, "all_reduce", 512, 22.6),
        (A100, "all_reduce", 512 * MIB, 4295.1),
        (A100, "all_gather", 64 * MIB, 351.2),
        (A100, "all_to_all", 128 * MIB, 640.4),
        (H100, "all_reduce", 512, 15.6),
        (H100, "all_reduce", 512 * MIB, 2163.4),
        (H100, "reduce_scatter", 64 * MIB, 203.1),
        (H100, "all_gather", 128 * KIB, 13.4),
        (H100, "all_to_all", 256 * MIB, 763.7),
    ],
)
def test_published_measurements_are_met_within_a_fifth(
    topology: Topology, collective: str, num_bytes: int, measured_us: float
) -> None:
    predicted_us = NcclPlanner(topology).plan(collective, num_bytes, NODE).alone_ps / PS_PER_US
    assert predicted_us == pytest.approx(measured_us, rel=0.2)


def test_a_recorded_collective_lasts_what_was_recorded() -> None:
    plan = NcclPlanner(Topology(load_cluster("h800-96"))).plan("all_reduce", 1 << 20, range(8))
    assert plan.between_ps > 0  # waits between steps, which the recorded time holds
    assert as_recorded(plan, 0).lead_ps == 0
    assert as_recorded(plan, 10**9).lead_ps == 10**9
