"""Links and routes of a cluster."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.hardware import Topology, load_cluster

#: NDR port: 50 GB/s, of which data can use 94 %.
NDR = 47e9


def topology(name="h800-96", **overrides):
    return Topology(load_cluster(name, {k.replace("__", "."): str(v) for k, v in overrides.items()}))


def route_names(topo, src, dst):
    return [topo.links.names[link] for link in topo.route(src, dst)]


def test_routes_of_a_rail_fabric():
    topo = topology()
    assert route_names(topo, 0, 0) == []
    assert route_names(topo, 0, 7) == ["nvlink.0.out", "nvlink.7.in"]
    assert route_names(topo, 3, 11) == ["nic.0.3.out", "nic.1.3.in"]  # rail 3 of nodes 0 and 1
    # Rails 3 and 4 hang on different leaves.
    assert route_names(topo, 3, 12) == ["nic.0.3.out", "leaf.3.up", "leaf.4.down", "nic.1.4.in"]


def test_groups_of_nodes_on_one_rail_meet_at_the_spine():
    # 4 nodes per leaf: nodes 0-3 have leaves 0-7, nodes 4-7 leaves 8-15.
    topo = topology("h800-64", cluster__nodes_per_leaf=4)
    assert route_names(topo, 2, 8 * 3 + 2) == ["nic.0.2.out", "nic.3.2.in"]
    assert route_names(topo, 2, 8 * 4 + 2) == ["nic.0.2.out", "leaf.2.up", "leaf.10.down", "nic.4.2.in"]


def test_leaf_spine_joins_all_nics_of_a_node():
    topo = topology("h800-64", cluster__fabric="leaf_spine", cluster__nodes_per_leaf=4)
    assert route_names(topo, 3, 12) == ["nic.0.3.out", "nic.1.4.in"]
    assert route_names(topo, 3, 8 * 4) == ["nic.0.3.out", "leaf.0.up", "leaf.1.down", "nic.4.0.in"]


def test_gpus_share_a_nic_when_there_are_fewer():
    topo = topology("v100-32")  # 16 GPUs and 8 NICs per node
    assert [topo.nic_out(gpu) for gpu in (0, 1)] == [topo.nic_out(0)] * 2
    assert topo.nic_out(2) == topo.nic_out(0) + 1
    assert route_names(topo, 15, 16) == ["nic.0.7.out", "nic.1.0.in"]


def test_capacity_of_each_kind_of_link():
    topo = topology("h800-96", cluster__spine_oversubscription=4)
    rate = {name: topo.links.bytes_per_s[topo.links.names.index(name)] for name in topo.links.names}
    assert rate["nvlink.95.in"] == pytest.approx(8 * 20.6e9)  # 8 links at NCCL's 20.6 GB/s
    assert rate["nic.11.7.out"] == pytest.approx(NDR)
    assert rate["leaf.0.up"] == rate["leaf.7.down"] == pytest.approx(12 * NDR / 4)


def test_a_leaf_that_is_not_full_has_uplinks_for_what_is_below_it():
    # 12 nodes, 8 per leaf: the second leaf has 4 nodes of 8 NICs.
    topo = topology("h800-96", cluster__fabric="leaf_spine", cluster__nodes_per_leaf=8)
    names = topo.links.names
    assert topo.links.bytes_per_s[names.index("leaf.0.up")] == pytest.approx(64 * NDR)
    assert topo.links.bytes_per_s[names.index("leaf.1.up")] == pytest.approx(32 * NDR)


def test_latencies_are_those_measured_end_to_end():
    # Same node 3.33 us, same leaf 2.8 us, across leaves 3.7 us = 2.8 + 2 * 0.45.
    topo = topology()
    got = [topo.latency_s(0, dst) for dst in (0, 1, 8, 9)]
    assert got == pytest.approx([0.0, 3.33e-6, 2.8e-6, 3.7e-6], rel=1e-12)


def test_a_link_override_changes_that_link_alone():
    plain = topology()
    slow = topology(link__nic__0__3__out__bytes_per_s="1GB/s", link__nvlink__5__in__latency_s="1us")
    link = slow.nic_out(3)
    assert slow.links.bytes_per_s[link] == 1e9
    assert np.flatnonzero(slow.links.bytes_per_s != plain.links.bytes_per_s).tolist() == [link]
    # Half of 3.33 us leaves GPU 0, the overridden 1 us enters GPU 5.
    assert slow.latency_s(0, 5) == pytest.approx(1.665e-6 + 1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "nvlink.96.out",
        "nvlink.0.up",
        "nic.12.0.in",
        "nic.0.8.in",
        "leaf.8.up",
        "nvlink.00.out",
        "x",
        "a.b.c.d",
    ],
)
def test_a_link_that_does_not_exist_is_refused(name):
    with pytest.raises(InputError, match="unknown link"):
        topology(**{f"link.{name}.bytes_per_s": "1GB/s"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nvlink.96.out", r"links are nvlink.<gpu>.out|in with GPU 0 to 95"),
        ("nvlnk.0.out", r"links are nvlink.<gpu>.out|in with GPU 0 to 95"),
        ("nic.0.8.in", r"links are nic.<node>.<n>.out|in with node 0 to 11 and n 0 to 7"),
        ("x", r"links are nvlink.<gpu>.out|in with GPU 0 to 95; nic."),
    ],
)
def test_what_links_there_are_is_told(name, hint):
    with pytest.raises(InputError, match=re.escape(f"unknown link '{name}'; {hint}")):
        topology(**{f"link.{name}.bytes_per_s": "1"})


def test_the_nearest_attribute_is_named():
    with pytest.raises(InputError, match=r"unknown attribute 'bytes'; did you mean 'bytes_per_s'"):
        topology(**{"link.nvlink.0.out.bytes": "1"})


def test_ranks_fill_nodes_in_order_and_end_with_the_cluster():
    topo = topology("h800-16")
    assert [topo.node_of(topo.gpu_of_rank(rank)) for rank in (0, 7, 8, 15)] == [0, 0, 1, 1]
    for gpu in (-1, 16):
        with pytest.raises(InputError, match=f"GPU {gpu} is outside cluster 'h800-16'"):
            topo.gpu_of_rank(gpu)
        with pytest.raises(InputError):
            topo.route(0, gpu)
        with pytest.raises(InputError):
            topo.route(gpu, gpu)


def test_names_and_indices_are_inverse():
    names = topology("v100-64").links.names
    # 64 GPUs, 4 x 8 NICs and 2 leaves, each in two directions.
    assert len(names) == len(list(names)) == len(set(names)) == 2 * (64 + 32 + 2)
    assert [names.index(name) for name in names] == list(range(len(names)))
    assert names[-1] == "leaf.1.down"
    assert names[:2] == ("nvlink.0.out", "nvlink.1.out")
    with pytest.raises(IndexError):
        names[len(names)]


@given(
    nodes=st.integers(1, 9),
    gpus=st.sampled_from([1, 2, 4, 8]),
    share=st.sampled_from([1, 2]),
    per_leaf=st.integers(1, 5),
    fabric=st.sampled_from(["rail", "leaf_spine"]),
    data=st.data(),
)
def test_routes_start_at_the_source_and_end_at_the_destination(nodes, gpus, share, per_leaf, fabric, data):
    topo = topology(
        "h800-8",
        cluster__num_nodes=nodes,
        cluster__gpus_per_node=gpus,
        cluster__nics_per_node=max(1, gpus // share),
        cluster__nodes_per_leaf=per_leaf,
        cluster__fabric=fabric,
    )
    src, dst = (data.draw(st.integers(0, nodes * gpus - 1)) for _ in range(2))
    there, back = topo.route(src, dst), topo.route(dst, src)
    assert len(there) == len(set(there)) == len(back)
    assert all(0 <= link < len(topo.links) for link in there)
    assert topo.latency_s(src, dst) == pytest.approx(topo.latency_s(dst, src))
    # Directions are separate resources: the way back shares no link with the way there.
    assert not set(there) & set(back)
    if there:
        assert there[0] in (topo.nvlink_out(src), topo.nic_out(src))
        assert there[-1] in (topo.nvlink_in(dst), topo.nic_in(dst))
        assert (len(there) == 2) == (
            topo.node_of(src) == topo.node_of(dst) or topo.leaf_of(src) == topo.leaf_of(dst)
        )


def test_links_of_131072_gpus():
    cluster = load_cluster("h800-131072")
    topo = Topology(cluster)
    assert topo.route(0, 131_071)[-1] == topo.nic_in(131_071)
    assert len(topo.links) == 2 * (131_072 * 2 + 512 * 8)  # 16,384 nodes / 32 = 512 groups of 8 rails


def test_links_cannot_be_changed_in_place():
    with pytest.raises(ValueError, match="read-only"):
        topology().links.bytes_per_s[0] = 1.0
