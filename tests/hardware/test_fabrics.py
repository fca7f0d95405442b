"""Fat trees, dragonflies, cables of uplinks, and the choice between rails and spines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.hardware import Topology
from tests.hardware.clusters import DRAGONFLY, PCIE, cluster, rate, route_names, topology

#: NDR port: 50 GB/s, of which data can use 94 %.
NDR = 47e9


def test_a_fat_tree_goes_no_higher_than_it_must() -> None:
    # 8 nodes, one per leaf, pods of two leaves.
    where = topology("h800-64", fabric="fat_tree", nodes_per_leaf="1", leaves_per_pod="2")
    assert route_names(where, 0, 9) == ["nic.0.0.out", "leaf.0.up", "leaf.1.down", "nic.1.1.in"]
    assert route_names(where, 0, 17) == [
        "nic.0.0.out",
        "leaf.0.up",
        "pod.0.up",
        "pod.1.down",
        "leaf.2.down",
        "nic.2.1.in",
    ]


def test_uplinks_are_never_full_where_all_nics_below_cannot_fill_them() -> None:
    # 8 nodes, one per leaf, pods of two leaves whose uplinks are half of what is below them.
    fabric = {
        "fabric": "fat_tree",
        "nodes_per_leaf": "1",
        "leaves_per_pod": "2",
        "core_oversubscription": "2",
    }
    where = topology("h800-64", **fabric)
    names = where.links.names
    never = {names[link] for link in range(len(names)) if where.is_never_full[link]}
    assert never == {f"leaf.{leaf}.{way}" for leaf in range(8) for way in ("up", "down")}
    # A NIC that is faster than the others, or an uplink that lost a cable, makes the difference.
    spec = cluster("h800-64", **fabric)
    where = Topology(replace(spec, link_overrides={"nic.3.5.out.bytes_per_s": 1.01 * NDR}))
    assert not where.is_never_full[names.index("leaf.3.up")]
    assert where.is_never_full[names.index("leaf.2.up")]
    where = Topology(replace(spec, link_overrides={"leaf.6.down.bytes_per_s": 0.99 * 8 * NDR}))
    assert not where.is_never_full[names.index("leaf.6.down")]
    assert where.is_never_full[names.index("leaf.6.up")]


def test_oversubscription_of_each_level() -> None:
    # Leaf: 2 nodes x 8 NICs = 16 ports, 8 of which fit upwards; pod: 2 leaves' uplinks / 4 = 4 ports.
    where = topology(
        "h800-96",
        fabric="fat_tree",
        nodes_per_leaf="2",
        leaves_per_pod="2",
        spine_oversubscription="2",
        core_oversubscription="4",
    )
    assert rate(where, "leaf.0.up") == pytest.approx(8 * NDR)
    assert rate(where, "pod.0.down") == pytest.approx(4 * NDR)
    cables = where.links.cables
    assert [int(cables[where.links.names.index(n)]) for n in ("leaf.0.up", "pod.0.up", "nic.0.0.out")] == [
        8,
        4,
        1,
    ]


def test_a_pod_that_is_not_full_has_uplinks_for_what_is_below_it() -> None:
    where = topology("h800-24", fabric="fat_tree", nodes_per_leaf="1", leaves_per_pod="2")
    assert rate(where, "pod.0.up") == pytest.approx(16 * NDR)
    assert rate(where, "pod.1.up") == pytest.approx(8 * NDR)


def test_two_levels_are_a_leaf_spine() -> None:
    tree, plain = topology("h800-64", fabric="fat_tree"), topology("h800-64", fabric="leaf_spine")
    assert tree.links.bytes_per_s.tolist() == plain.links.bytes_per_s.tolist()
    assert tree.route(3, 40) == plain.route(3, 40)


def test_faster_uplinks_are_fewer_cables() -> None:
    # 32 NICs of 400 Gb/s at 1:1 are 16 cables of 800 Gb/s.
    where = topology("h800-64", fabric="leaf_spine", nodes_per_leaf="4", uplink_bytes_per_s="800Gb/s")
    assert int(where.links.cables[where.links.names.index("leaf.0.up")]) == 16
    assert rate(where, "leaf.0.up") == pytest.approx(32 * NDR)


def test_pods_of_a_rail_fabric_hold_whole_groups() -> None:
    where = topology("h800-64", nodes_per_leaf="2", leaves_per_pod="16")
    assert route_names(where, 3, 19)[1:3] == ["leaf.3.up", "leaf.11.down"]  # two groups of a pod
    assert route_names(where, 3, 35)[1:5] == ["leaf.3.up", "pod.0.up", "pod.1.down", "leaf.19.down"]
    with pytest.raises(
        InputError, match=r"leaves_per_pod = 12 must be a multiple of the 8 rails; nearest: 16"
    ):
        cluster("h800-64", nodes_per_leaf="2", leaves_per_pod="12")


def test_a_dragonfly_takes_at_most_one_global_link() -> None:
    # 8 nodes are 8 leaves in 4 groups of 2.  Group 0 leaves for groups 1, 2, 3 by its leaves 0, 1, 0.
    where = topology("h800-64", **DRAGONFLY)
    assert route_names(where, 0, 9)[1:-1] == ["local.0.1"]
    assert route_names(where, 0, 16)[1:-1] == ["global.0.1"]
    # From leaf 0 to group 2: leaf 1 has the link, which ends at leaf 4.
    assert route_names(where, 0, 40)[1:-1] == ["local.0.1", "global.0.2", "local.4.5"]
    assert rate(where, "local.0.1") == pytest.approx(3 * NDR)
    assert rate(where, "global.3.0") == pytest.approx(NDR)
    assert len(where.links) == 2 * 64 + 2 * 64 + 8 + 12


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"local_cables": None}, "needs leaves_per_group, local_cables and global_cables"),
        ({"leaves_per_group": "3"}, "3 does not divide the 8 leaves of 8 nodes; nearest: num_nodes = 9"),
        ({"leaves_per_pod": "2"}, "leaves_per_pod does nothing in a fabric of kind 'dragonfly'"),
        ({"fabric": "fat_tree"}, "does nothing in a fabric of kind 'fat_tree'"),
        ({"fabric": "dragonfy"}, "did you mean 'dragonfly'?"),
        ({"local_cables": "0"}, "local_cables: must be positive"),
    ],
)  # fmt: skip
def test_dragonflies_that_cannot_be(keys: dict[str, str | None], complaint: str) -> None:
    given_keys = {key: value for key, value in {**DRAGONFLY, **keys}.items() if value is not None}
    with pytest.raises(InputError) as caught:
        cluster("h800-64", **given_keys)
    assert complaint in str(caught.value)


def test_oversubscription_of_a_level_that_is_not_there() -> None:
    with pytest.raises(InputError, match="core_oversubscription needs leaves_per_pod"):
        cluster(fabric="fat_tree", core_oversubscription="2")


FABRICS = [
    {"fabric": "fat_tree", "nodes_per_leaf": "1", "leaves_per_pod": "3"},
    {"fabric": "rail", "nodes_per_leaf": "2", "leaves_per_pod": "16"},
    DRAGONFLY,
]


@given(keys=st.sampled_from(FABRICS), src=st.integers(0, 63), dst=st.integers(0, 63))
def test_routes_connect(keys: dict[str, str], src: int, dst: int) -> None:
    where = topology("h800-64", **keys)
    there, back = where.route(src, dst), where.route(dst, src)
    assert len(there) == len(set(there)) == len(back)
    assert not set(there) & set(back)
    assert all(0 <= link < len(where.links) for link in there)
    between = [name.split(".") for name in route_names(where, src, dst)[1:-1]]
    if keys is DRAGONFLY and where.node_of(src) != where.node_of(dst):
        # local.i.j and global.g.h hang together: leaves by number, groups by the leaves' groups of two.
        at = where.leaf_of(src)
        for kind, first, second in between:
            if kind == "local":
                assert at == int(first)
                at = int(second)
            else:
                assert at // 2 == int(first)
                at = _gateway(int(second), int(first))
        assert at == where.leaf_of(dst)
    elif between and where.node_of(src) != where.node_of(dst):
        half = len(between) // 2
        assert [kind for kind, _, _ in between] == ["leaf", "pod"][:half] + ["pod", "leaf"][2 - half :]
        assert [way for *_, way in between] == ["up"] * half + ["down"] * half
        assert (int(between[0][1]), int(between[-1][1])) == (where.leaf_of(src), where.leaf_of(dst))


def _gateway(group: int, other: int) -> int:
    return 2 * group + (other - (other > group)) % 2


@pytest.mark.parametrize("keys", FABRICS)
def test_names_of_switches_and_indices_are_inverse(keys: dict[str, str]) -> None:
    names = topology("h800-64", **keys).links.names
    assert len(set(names)) == len(names)
    assert [names.index(name) for name in names] == list(range(len(names)))


def relays(where: Topology, src: int, dst: int) -> list[str]:
    return [where.links.names[link] for link in where.message_route(src, dst)]


def test_rails_or_spines_is_an_option() -> None:
    # From place 0 to place 1 of the next node: over NVLink to GPU 1 first, or over the spine.
    rail, spine = topology(), topology(routing="ecmp")
    assert rail.relay(0, 9) == 1
    assert relays(rail, 0, 9) == ["nvlink.0.out", "nvlink.1.in", "nic.0.1.out", "nic.1.1.in"]
    assert spine.relay(0, 9) == 0
    assert relays(spine, 0, 9) == ["nic.0.0.out", "leaf.0.up", "leaf.1.down", "nic.1.1.in"]
    assert relays(topology(fabric="leaf_spine", routing="rail"), 0, 9)[0] == "nvlink.0.out"
    assert topology(fabric="leaf_spine").relay(0, 9) == 0


def test_nobody_relays_for_the_same_nic_or_over_pcie() -> None:
    shared = topology(nics_per_node="4")
    assert shared.relay(0, 9) == 0  # GPUs 0 and 1 share NIC 0
    assert shared.relay(0, 10) == 2
    assert topology("h800-16", **PCIE).relay(0, 10) == 0
    mesh = topology("dgx1v-16")
    assert mesh.relay(0, 8 + 3) == 3
    assert mesh.relay(0, 8 + 6) == 0  # no NVLink joins 0 and 6
