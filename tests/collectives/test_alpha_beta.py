"""NCCL's tuner as a network model: its formula, worked out by hand from its table."""

import pytest

from simcore.collectives import AlphaBetaPlanner, NcclPlanner
from simcore.hardware import Topology, load_cluster
from simcore.units import GIB, KIB, MIB, PS_PER_US

A100 = Topology(load_cluster("a100", {}))
H100 = Topology(load_cluster("h100", {}))
NODE = tuple(range(8))


def tuner_us(
    topology: Topology, algorithm: str, protocol: str, collective: str, size: int, ranks: tuple[int, ...]
) -> float:
    planner = NcclPlanner(topology, algorithm=algorithm, protocol=protocol)
    return 1e6 * planner.tuner_s(collective, size, ranks)[1]


def test_ring_under_ll_in_a_node() -> None:
    # 6.6 + 14 hops of 0.6 us = 15.0; LL: min(87.7, 240 / 2) = 87.7 GB/s of bus, x 8/14 = 50.11 of algbw:
    # 64 KiB in 1.308 us.
    assert tuner_us(A100, "ring", "LL", "all_reduce", 64 * KIB, NODE) == pytest.approx(16.308, abs=1e-3)


def test_ring_under_simple_in_a_node() -> None:
    # 8.4 + 7 hops of 3.4 = 32.2; 12 rings of 20 GB/s x 8/7 = 274.29 GB/s: 64 MiB in 244.66 us.
    assert tuner_us(A100, "ring", "Simple", "all_gather", 64 * MIB, NODE) == pytest.approx(276.86, abs=0.01)


def test_tree_under_ll128_between_nodes() -> None:
    # 8 nodes of 8: 14.0 + 2 (7 x 1.25 + 3 (8.5 + wire)); wires 8 x 24 = 192 GB/s, x .92 = 176.64, but 8 trees
    # of 17.8 = 142.4; x 120/128 = 133.5; / 2 = 66.75 GB/s; correction of 1 MiB (14 doublings of 64 B): 0.6:
    # 40.05 GB/s, 26.18 us.
    ranks = tuple(range(64))
    wire_us = 1e6 * A100.latency_s(0, 8)
    hand = 14.0 + 2 * (7 * 1.25 + 3 * (8.5 + wire_us)) + MIB / 40.05e3
    assert tuner_us(A100, "tree", "LL128", "all_reduce", MIB, ranks) == pytest.approx(hand, rel=1e-6)


def test_nvls_in_a_node() -> None:
    # 25 us; a channel for each GPU, which takes its rate 9 times from 370.8 GB/s of a port: 8 of 40 GB/s; bus
    # 2 x 320 x .85 x 7/8, algbw = bus x 8/14.
    hand = 25.0 + GIB / (2 * 320e3 * 0.85 * 7 / 8 * 8 / 14)
    assert tuner_us(H100, "nvls", "Simple", "all_reduce", GIB, NODE) == pytest.approx(hand, rel=1e-6)
    # Four GPUs: 4 of 60 GB/s, 2 x 240 x .85 x 3/4 = 306 of bus; six rings of 60 are faster.
    assert NcclPlanner(H100).plan("all_reduce", GIB, NODE[:4]).algorithm == "ring"


def test_pat_with_one_rank_per_node() -> None:
    # 8 + log2(4) (14 + 2 wires) / 3.5 + 4 x 2.8; min of tree wires x .75.
    four = tuple(range(0, 32, 8))
    wire_us = 1e6 * H100.latency_s(0, 8)
    latency_s, whole_s = NcclPlanner(H100, algorithm="pat").tuner_s("all_gather", 64 * MIB, four)
    assert 1e6 * latency_s == pytest.approx(8 + 2 * (14 + 2 * wire_us) / 3.5 + 4 * 2.8)
    ring = NcclPlanner(H100, algorithm="ring", protocol="Simple")
    ring_latency_s, ring_s = ring.tuner_s("all_gather", 64 * MIB, four)
    # The ring's algbw is its bus x 4/3, PAT's 0.75 of the same bus.
    assert whole_s - latency_s == pytest.approx((ring_s - ring_latency_s) * 4 / 3 / 0.75)


def test_messages_have_one_step_of_a_ring() -> None:
    latency_s, whole_s = NcclPlanner(A100).tuner_s("send_recv", 64 * MIB, (0, 1))
    assert 1e6 * latency_s == pytest.approx(8.4 + 3.4)
    port = float(A100.links.bytes_per_s[A100.nvlink_out(0)])
    assert whole_s - latency_s == pytest.approx(64 * MIB / port)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "all_to_all", "barrier"])
def test_plans_last_what_the_tuner_expects(collective: str) -> None:
    planner = NcclPlanner(H100)
    estimate = AlphaBetaPlanner(planner).plan(collective, MIB, tuple(range(32)))
    latency_s, whole_s = planner.tuner_s(collective, MIB, tuple(range(32)))
    assert estimate.alone_ps == pytest.approx(1e12 * whole_s, abs=1)
    assert estimate.latency_ps == pytest.approx(1e12 * latency_s, abs=1)
    assert estimate.links == planner.plan(collective, MIB, tuple(range(32))).links
    assert 0.1 < estimate.relative_error < 0.5


def test_nothing_takes_no_time() -> None:
    planner = AlphaBetaPlanner(NcclPlanner(H100))
    assert planner.plan("all_reduce", MIB, (3,)).alone_ps == 0
    assert planner.plan_p2p(0, 0, 1).alone_ps < 20 * PS_PER_US
