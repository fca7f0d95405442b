"""Which links a plan loads, and by how much: conservation over rings, trees, switch and pairs."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.collectives import CollectivePlan, NcclPlanner
from simcore.collectives.timing import timing_of
from simcore.hardware import Topology, load_cluster

H800 = Topology(load_cluster("h800-96", {}))
#: With a release of NCCL that has PAT.
MODERN = Topology(load_cluster("h800-96", {"cluster.nccl_version": "2.27.3"}))


def load(plan: CollectivePlan, topology: Topology = H800) -> dict[str, float]:
    """Bytes on each link, by name."""
    return {topology.links.names[use.link]: use.weight * plan.volume_bytes for use in plan.links}


def total(bytes_on: Mapping[str, float], kind: str, direction: str) -> float:
    return sum(b for name, b in bytes_on.items() if name.startswith(kind) and name.endswith(direction))


def planned(algorithm: str, num_bytes: int, ranks: range | list[int], **options: int) -> CollectivePlan:
    planner = NcclPlanner(H800, algorithm=algorithm, protocol="Simple", **options)
    return planner.plan("all_reduce", num_bytes, tuple(ranks))


def test_ring_in_a_node_uses_every_port_equally() -> None:
    # 8 ranks, 800 bytes: each sends 2 x 7/8 x 800 = 1400 over its own port.
    bytes_on = load(planned("ring", 800, range(8)))
    assert len(bytes_on) == 16
    assert set(bytes_on.values()) == {1400.0}


def test_ring_over_nodes_puts_one_kth_on_the_nics() -> None:
    # 2 nodes x 8: each rank sends 2 x 15/16 x 1600 = 3000 bytes, 7/8 of it by NVLink, 1/8 by its NIC.
    bytes_on = load(planned("ring", 1600, range(16)))
    assert {b for name, b in bytes_on.items() if name.startswith("nvlink")} == {2625.0}
    assert {b for name, b in bytes_on.items() if name.startswith("nic")} == {375.0}
    assert not any(name.startswith("leaf") for name in bytes_on)  # an even number of nodes stays on its rails


def test_ring_with_one_rank_per_node_is_all_network() -> None:
    bytes_on = load(planned("ring", 400, range(0, 32, 8)))
    assert set(bytes_on) == {f"nic.{node}.0.{way}" for node in range(4) for way in ("out", "in")}
    assert set(bytes_on.values()) == {600.0}  # 2 x 3/4 x 400


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.sets(st.integers(0, 95), min_size=2, max_size=40), algorithm=st.sampled_from(["ring", "tree"])
)
def test_what_leaves_ports_enters_ports_and_adds_up_to_the_volume(ranks: set[int], algorithm: str) -> None:
    plan = planned(algorithm, 10**6, sorted(ranks))
    bytes_on = load(plan)
    out = total(bytes_on, "nvlink", "out") + total(bytes_on, "nic", "out")
    into = total(bytes_on, "nvlink", "in") + total(bytes_on, "nic", "in")
    # 2 (n - 1) B are sent in all, whatever the algorithm and the shape of the group.
    assert out == pytest.approx(2 * (len(ranks) - 1) * 10**6)
    assert into == pytest.approx(out)
    assert total(bytes_on, "leaf", "up") == pytest.approx(total(bytes_on, "leaf", "down"))


def test_tree_of_two_nodes_exchanges_halves() -> None:
    # Each tree carries half of the 1000 bytes up and half down across the only edge: 1000 out per node.
    bytes_on = load(planned("tree", 1000, range(16)))
    for node in (0, 1):
        nics = [b for name, b in bytes_on.items() if name.startswith(f"nic.{node}.") and name.endswith("out")]
        assert sum(nics) == pytest.approx(1000)
        assert len(nics) == 8


def test_tree_of_four_nodes_loads_the_inner_node_with_twice_the_buffer() -> None:
    # 0 -> 2 -> {1, 3} and its mirror 3 -> 1 -> {0, 2}: node 2 sends 1 up and 2 down in the first tree, 1 up
    # in the second, half a buffer each: 2 buffers of 1000 bytes over 8 NICs.
    bytes_on = load(planned("tree", 1000, range(32)))
    nics = [b for name, b in bytes_on.items() if name.startswith("nic.2.") and name.endswith("out")]
    assert sum(nics) == pytest.approx(2000)


def test_switch_reduction_carries_the_buffer_once_and_its_slice_once_more() -> None:
    # 8 GPUs, 800 bytes: 800 + 100 per port each way, and in-switch operations reach a share of the port.
    bytes_on = load(planned("nvls", 800, range(8)))
    assert len(bytes_on) == 16
    assert all(b == pytest.approx(900 / timing_of("hopper").nvls_efficiency) for b in bytes_on.values())


def test_gathers_and_scatters_in_the_switch_load_one_direction_with_the_buffer() -> None:
    # 8 GPUs, 800 bytes: multicast sends 100 from each and brings 800 to each; in-switch reads the reverse.
    full, share = (b / timing_of("hopper").nvls_efficiency for b in (800, 100))
    for collective, out, into in (("all_gather", share, full), ("reduce_scatter", full, share)):
        bytes_on = load(NcclPlanner(H800, algorithm="nvls").plan(collective, 800, tuple(range(8))))
        assert len(bytes_on) == 16
        for name, b in bytes_on.items():
            assert b == pytest.approx(out if name.endswith("out") else into)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("nodes", [2, 3, 5, 12])
def test_aggregated_trees_send_what_a_ring_sends(collective: str, nodes: int) -> None:
    # One GPU per node: n - 1 chunks of B / n leave every NIC and as many enter it.
    plan = NcclPlanner(MODERN, algorithm="pat").plan(collective, 1000 * nodes, range(0, 8 * nodes, 8))
    assert plan.algorithm == "pat"
    bytes_on = load(plan, MODERN)
    nics = [b for name, b in bytes_on.items() if name.startswith("nic.")]
    assert len(nics) == 2 * nodes
    assert all(b == pytest.approx(1000 * (nodes - 1)) for b in nics)


def test_all_to_all_reaches_other_rails_over_nvlink() -> None:
    # 2 nodes x 2 GPUs, 400 bytes: 100 to each other rank.  GPU 0 sends 100 to GPU 1 and, for GPU 9, hands 100
    # to GPU 1 as well; its NIC carries its own 100 for GPU 8 and GPU 1's 100 for GPU 8.
    plan = NcclPlanner(H800).plan("all_to_all", 400, (0, 1, 8, 9))
    bytes_on = {name: b / {"LL": 2, "Simple": 1}[plan.protocol] for name, b in load(plan).items()}
    assert bytes_on["nvlink.0.out"] == pytest.approx(200)
    assert bytes_on["nic.0.0.out"] == pytest.approx(200)
    assert total(bytes_on, "nic", "out") == pytest.approx(4 * 200)
    assert not any(name.startswith("leaf") for name in bytes_on)


def test_send_recv_uses_one_nic_pair() -> None:
    plan = NcclPlanner(H800).plan_p2p(10**6, 3, 11)
    assert load(plan) == {"nic.0.3.out": 10**6, "nic.1.3.in": 10**6}


def test_a_plain_leaf_spine_sends_straight() -> None:
    flat = Topology(load_cluster("h800-96", {"cluster.fabric": "leaf_spine"}))
    plan = NcclPlanner(flat).plan_p2p(10**6, 0, 9)
    assert set(load(plan, flat)) == {"nic.0.0.out", "nic.1.1.in"}
