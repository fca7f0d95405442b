"""Rings inside nodes without NVSwitches: they follow wires and use them up."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.collectives import NcclPlanner
from simcore.collectives.layout import layout_of
from simcore.collectives.loads import ring_order, tree_edges, tree_rotations
from simcore.collectives.ring_search import disjoint_paths, find_rings
from simcore.hardware import Topology, load_cluster
from tests.hardware.clusters import PCIE, topology

DGX1V = Topology(load_cluster("dgx1v-32"))
HGX4 = Topology(load_cluster("hgx4-a100-16"))
BOX = topology("h800-32", **PCIE)


def busbw(where: Topology, ranks: range | tuple[int, ...], size: int = 2**30) -> float:
    plan = NcclPlanner(where, algorithm="ring", protocol="Simple").plan("all_reduce", size, tuple(ranks))
    return 2 * (len(ranks) - 1) / len(ranks) * size / (plan.alone_ps * 1e-12)


def test_a_cube_mesh_has_six_rings_that_use_every_link() -> None:
    # 6 NVLinks of 20 GB/s leave each GPU; six rings, three ways and back, take one each: 120 GB/s.
    rings = find_rings(DGX1V.node, tuple(range(8)))
    assert (len(rings.orders), rings.bytes_per_s) == (6, pytest.approx(20e9))
    used = [0] * DGX1V.node.num_links
    for order in rings.orders:
        assert sorted(order) == list(range(8))
        for src, dst in zip(order, (*order[1:], order[0]), strict=True):
            (link,) = DGX1V.node.route(src, dst)
            used[link] += 1
    nvlinks = [link for link in range(DGX1V.node.num_links) if DGX1V.node.name(link).startswith("nvlink")]
    assert all(used[link] * 20e9 == pytest.approx(DGX1V.node.bytes_per_s[link]) for link in nvlinks)
    # NCCL opens two channels per ring.
    plan = NcclPlanner(DGX1V, algorithm="ring", protocol="Simple").plan("all_reduce", 2**30, range(8))
    assert plan.channels == 12
    assert 0.9 * 120e9 < busbw(DGX1V, range(8)) < 120e9


def test_four_joined_gpus_have_six_rings_of_half_a_pair() -> None:
    # 12 links leave each GPU, 240 GB/s; a pair carries 80, and each way round gives 40 to two of its rings.
    rings = find_rings(HGX4.node, (0, 1, 2, 3))
    assert (len(rings.orders), rings.bytes_per_s) == (6, pytest.approx(40e9))
    assert 0.85 * 240e9 < busbw(HGX4, range(4)) < 240e9


def test_parts_of_a_node() -> None:
    assert find_rings(DGX1V.node, (0, 3)).total_bytes_per_s == pytest.approx(40e9)
    # 0 and 5 have no link: data passes GPU 1.
    assert find_rings(DGX1V.node, (0, 5)).total_bytes_per_s == pytest.approx(20e9)
    assert find_rings(DGX1V.node, (4,)).orders == ((4,),)
    # The quad 0-3 has 4 links inside per GPU.
    assert find_rings(DGX1V.node, (0, 1, 2, 3)).total_bytes_per_s == pytest.approx(80e9)


def test_pcie_has_one_ring_switch_by_switch() -> None:
    rings = find_rings(BOX.node, tuple(range(8)))
    assert rings.orders == (tuple(range(8)),)
    assert rings.bytes_per_s == pytest.approx(10e9)  # between the CPUs
    assert find_rings(BOX.node, (0, 1, 2, 3)).bytes_per_s == pytest.approx(12e9)
    assert 0.9 * 10e9 < busbw(BOX, range(8)) < 10e9


@settings(max_examples=25, deadline=None)
@given(members=st.sets(st.integers(0, 7), min_size=2), node=st.sampled_from([DGX1V.node, BOX.node]))
def test_rings_never_take_more_than_there_is(members: set[int], node: object) -> None:
    rings = find_rings(node, tuple(sorted(members)))  # type: ignore[arg-type]
    left = node.bytes_per_s.tolist()  # type: ignore[attr-defined]
    for order in rings.orders:
        assert sorted(order) == sorted(members)
        for src, dst in zip(order, (*order[1:], order[0]), strict=True):
            for link in node.route(src, dst):  # type: ignore[attr-defined]
                left[link] -= rings.bytes_per_s
    assert min(left) >= -1.0


def test_between_nodes_every_ring_leaves_and_enters_by_one_nic() -> None:
    # 4 NICs of 11.75 GB/s each way: 47 GB/s.
    layout = layout_of(DGX1V, range(32))
    assert layout.num_rings == len(layout.rings) == 12
    uses: dict[int, int] = {}
    for rotation in range(layout.num_rings):
        order = ring_order(layout, rotation)
        assert sorted(order) == list(range(32))
        for src, dst in zip(order, (*order[1:], order[0]), strict=True):
            if DGX1V.node_of(src) != DGX1V.node_of(dst):
                assert DGX1V.nic_of(src)[1] == DGX1V.nic_of(dst)[1]  # stays on its rail
                uses[DGX1V.nic_out(src)] = uses.get(DGX1V.nic_out(src), 0) + 1
    assert len(uses) == 16
    assert set(uses.values()) == {3}
    assert 0.95 * 47e9 < busbw(DGX1V, range(32)) < 47e9


@pytest.mark.parametrize("where", [DGX1V, HGX4, BOX])
def test_trees_follow_the_rings_and_span_all_ranks(where: Topology) -> None:
    layout = layout_of(where, range(16))
    for rotation in range(tree_rotations(layout)):
        for which in (0, 1):
            parent = dict(tree_edges(layout, rotation, which).tolist())
            roots = set(range(16)) - parent.keys()
            assert len(roots) == 1
            for gpu in range(16):
                seen = {gpu}
                while gpu in parent:
                    gpu = parent[gpu]
                    assert gpu not in seen
                    seen.add(gpu)
                assert gpu in roots


@pytest.mark.parametrize("where", [DGX1V, HGX4, BOX])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_what_leaves_a_node_enters_another(where: Topology, algorithm: str) -> None:
    plan = NcclPlanner(where, algorithm=algorithm, protocol="Simple").plan("all_reduce", 10**7, range(16))
    names = where.links.names
    totals = {"out": 0.0, "in": 0.0}
    for use in plan.links:
        if names[use.link].startswith("nic"):
            totals[names[use.link].rpartition(".")[2]] += use.weight * plan.volume_bytes
    assert totals["out"] == pytest.approx(totals["in"])
    # A ring sends 2 (n-1)/n of the bytes from node to node; a tree of two nodes all of them up and down, from
    # each node as many as from the other.
    nodes = 16 // where.cluster.gpus_per_node
    sent = nodes * 2 * 15 / 16 * 10**7 if algorithm == "ring" else 2 * (nodes - 1) * 10**7
    assert totals["out"] == pytest.approx(sent)


def test_ll128_needs_nvlink_unless_forced() -> None:
    sizes = [2**k for k in range(10, 28)]
    spoken = {NcclPlanner(BOX).plan("all_reduce", size, range(8)).protocol for size in sizes}
    assert spoken == {"LL", "Simple"}
    assert NcclPlanner(BOX, protocol="LL128").plan("all_reduce", 2**20, range(8)).protocol == "LL128"
    # One GPU per node: PCIe inside the node is on nobody's way.
    spread = {NcclPlanner(BOX).plan("all_reduce", size, range(0, 32, 8)).protocol for size in sizes}
    assert "LL128" in spread


def test_nvls_needs_nvswitch() -> None:
    for where in (DGX1V, HGX4, BOX):
        ranks = range(where.cluster.gpus_per_node)
        plan = NcclPlanner(where, algorithm="nvls").plan("all_reduce", 2**28, ranks)
        assert plan.algorithm in ("ring", "tree")


@pytest.mark.parametrize("size", [2, 4, 6, 8])
def test_paths_through_a_mesh_use_each_link_once(size: int) -> None:
    members = tuple(range(size))

    class Mesh:
        def is_joined(self, src: int, dst: int) -> bool:
            return src != dst

    paths = disjoint_paths(Mesh(), members)  # type: ignore[arg-type]
    assert all(sorted(path) == list(members) for path in paths)
    links = [link for path in paths for link in pairwise(path)]
    assert len(links) == len(set(links)) == size * (size - 1)
    for end in (0, -1):
        assert sorted(path[end] for path in paths) == list(members)
    assert disjoint_paths(Mesh(), members[:-1]) == ()  # type: ignore[arg-type]
