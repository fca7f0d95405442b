"""Nodes without NVSwitches, and which NICs their GPUs send through."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.errors import InputError
from simcore.hardware import Topology, load_cluster
from tests.hardware.clusters import PCIE, cluster, rate, route_names, topology


def test_a_cube_mesh_has_direct_links_and_two_hops() -> None:
    where = Topology(load_cluster("dgx1v-16"))
    assert route_names(where, 0, 3) == ["node.0.nvlink.0.3"]
    # No link from 0 to 5: of 1 (one link, then two) and 4 (two, then one) the narrower is one link, so GPU 1.
    assert route_names(where, 0, 5) == ["node.0.nvlink.0.1", "node.0.nvlink.1.5"]
    # 2 and 7: both 3 (2 links, 1) and 6 (1, 2); 0 and 7: 3 (2, 1) and 4 (2, 2): GPU 4 is wider.
    assert route_names(where, 8, 15) == ["node.1.nvlink.0.4", "node.1.nvlink.4.7"]
    # A link carries 25 GB/s, of which data can use 0.8.
    assert rate(where, "node.1.nvlink.3.0") == pytest.approx(2 * 20e9)
    assert rate(where, "node.0.nvlink.0.1") == pytest.approx(20e9)


def test_between_nodes_data_takes_pcie_to_the_nic_of_its_switch() -> None:
    where = Topology(load_cluster("dgx1v-16"))
    assert route_names(where, 1, 9) == [
        "node.0.pcie.gpu1.up",
        "node.0.pcie.nic0.down",
        "nic.0.0.out",
        "nic.1.0.in",
        "node.1.pcie.nic0.up",
        "node.1.pcie.gpu1.down",
    ]


def test_pcie_goes_up_to_the_lowest_switch_above_both() -> None:
    where = topology("h800-16", **PCIE)
    assert route_names(where, 0, 1) == ["node.0.pcie.gpu0.up", "node.0.pcie.gpu1.down"]
    assert route_names(where, 0, 2) == [
        "node.0.pcie.gpu0.up",
        "node.0.pcie.switch0.up",
        "node.0.pcie.switch1.down",
        "node.0.pcie.gpu2.down",
    ]
    assert route_names(where, 1, 6)[1:4] == [
        "node.0.pcie.switch0.up",
        "node.0.cpu.0.1",
        "node.0.pcie.switch3.down",
    ]
    assert rate(where, "node.0.pcie.gpu0.up") == pytest.approx(12e9)  # 0.75 of 16
    assert rate(where, "node.0.cpu.1.0") == 10e9
    # One switch: 1 us.  Two: four links of half of it.  Over the CPUs 0.5 us more.
    assert [where.latency_s(0, gpu) for gpu in (1, 2, 7)] == pytest.approx([1e-6, 2e-6, 2.5e-6])


def test_gpus_right_below_their_cpus_and_a_nic_far_away() -> None:
    keys = {key: value for key, value in PCIE.items() if "switch" not in key}
    where = topology("h800-16", **keys, cpu_of_gpu="0,0,0,0,1,1,1,1", nic_of_gpu="0,1,2,3,0,1,2,3")
    assert route_names(where, 0, 5)[1] == "node.0.cpu.0.1"
    # NIC 0 stands beside GPU 0, its first; GPU 4 reaches it over both CPUs.
    assert route_names(where, 4, 8)[:4] == [
        "node.0.pcie.gpu4.up",
        "node.0.cpu.1.0",
        "node.0.pcie.nic0.down",
        "nic.0.0.out",
    ]


@given(data=st.data())
def test_routes_without_switches_connect(data: st.DataObject) -> None:
    # Every link's name says where it begins and ends; a route must hang together.
    name, keys = data.draw(st.sampled_from([("dgx1v-32", {}), ("hgx4-a100-16", {}), ("h800-32", PCIE)]))
    where = topology(name, **keys)
    src, dst = (data.draw(st.integers(0, where.num_gpus - 1)) for _ in range(2))
    there, back = where.route(src, dst), where.route(dst, src)
    assert len(there) == len(set(there)) == len(back)
    assert not set(there) & set(back)
    assert where.latency_s(src, dst) == pytest.approx(where.latency_s(dst, src))
    ends = [_ends(where.links.names[link]) for link in there]
    for (_, entered), (left, _) in pairwise(ends):
        assert "?" in (entered, left) or entered == left
    if ends:
        assert ends[0][0] == f"gpu{src % where.cluster.gpus_per_node}"
        assert ends[-1][1] == f"gpu{dst % where.cluster.gpus_per_node}"


def _ends(name: str) -> tuple[str, str]:
    """Where a link begins and ends; "?" is the device above, which the name does not say."""
    match name.split("."):
        case ["node", _, "nvlink", src, dst]:
            return f"gpu{src}", f"gpu{dst}"
        case ["node", _, "cpu", src, dst]:
            return "?", "?"
        case ["node", _, "pcie", device, way]:
            return (device, "?") if way == "up" else ("?", device)
        case ["nic", _, _, way]:
            return "?", "?"
        case _:
            return "?", "?"


def test_nics_that_do_not_divide_serve_neighbours() -> None:
    where = topology(nics_per_node="3")
    assert [where.nic_of(gpu) for gpu in range(8)] == [(0, n) for n in (0, 0, 0, 1, 1, 1, 2, 2)]
    assert where.leaf_of(7) == 2  # three rails


def test_several_nics_of_a_gpu_are_cables_of_one_link() -> None:
    # 20 NICs of 8 GPUs: 5 for each two, so 3 and 2.
    where = topology(nics_per_node="20")
    links = where.links
    assert [int(links.cables[where.nic_out(gpu)]) for gpu in range(8)] == [3, 2] * 4
    assert links.bytes_per_s[where.nic_in(0)] == pytest.approx(3 * 47e9)
    assert int(links.cables.sum()) == int((links.cables > 0).sum()) + sum(
        int(cables) - 1 for cables in links.cables if cables > 1
    )
    # The leaf of a rail with three NICs per node has as many uplinks.
    assert int(links.cables[links.names.index("leaf.0.up")]) == 2 * 3


def test_a_list_says_who_shares() -> None:
    where = topology(nics_per_node="4", nic_of_gpu="3,1,0,2,2,0,1,3")
    assert [where.nic_of(gpu)[1] for gpu in range(8)] == [3, 1, 0, 2, 2, 0, 1, 3]
    nested = topology(nics_per_node="16", nic_of_gpu=str([[2 * n + 1, 2 * n] for n in range(8)]))
    assert {int(nested.links.cables[nested.nic_out(gpu)]) for gpu in range(8)} == {2}


@pytest.mark.parametrize(
    ("nics", "listed", "complaint"),
    [
        ("4", "0,1,2,3", "nic_of_gpu lists 4 GPUs, but a node has 8"),
        ("4", "0,0,1,1,2,2,3,4", "GPU 7 has NIC 4, but a node has NICs 0 to 3"),
        ("4", "0,0,1,1,2,2,2,2", "NIC 3 belongs to no GPU"),
        ("3", "[[0,1],[1,2],0,0,0,0,0,0]", "GPUs 0 and 1 share NIC 1 but not all of [0, 1, 2]"),
        ("8", "[[0,0],1,2,3,4,5,6,7]", "GPU 0 needs a NIC, and each one once; it has [0, 0]"),
        ("8", "[[],1,2,3,4,5,6,7]", "GPU 0 needs a NIC"),
    ],
)
def test_nics_that_cannot_be(nics: str, listed: str, complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        cluster(nics_per_node=nics, nic_of_gpu=listed)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"nvlinks": "[[0,1,2]]"}, "GPUs 0 and 2 of a node are not connected"),
        ({"nvlinks": "[[0,8,2]]"}, "nvlinks [0, 8, 2]: a node has GPUs 0 to 7, not 8"),
        ({"nvlinks": "[[0,1,9]]"}, "nvlinks [0, 1, 9]: GPU 0 has 8 NVLinks, not 9"),
        ({"nvlinks": "[[0,1,4],[1,0,4]]"}, "not 8"),
        ({"nvlinks": "[[0,1,0]]"}, "with 1 link or more"),
        ({"nvlinks": "[[0,0,1]]"}, "pair of different GPUs"),
        ({"nvlinks": "0,1,2"}, "override cluster.nvlinks: expected a list of [GPU, GPU, links]"),
        ({"nvlinks": "[[0,1"}, "override cluster.nvlinks: expected a list such as"),
        ({}, 'intra_node = "nvlink" needs nvlinks'),
    ],
)
def test_nvlinks_that_cannot_be(keys: dict[str, str], complaint: str) -> None:
    # H800: 8 links per GPU.
    if complaint == "not 8":
        complaint = "give each pair of different GPUs once"
    with pytest.raises(InputError) as caught:
        cluster(intra_node="nvlink", **keys)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"pcie_bytes_per_s": None}, "needs pcie_bytes_per_s"),
        ({"pcie_latency_s": None}, "pcie_bytes_per_s needs pcie_latency_s"),
        ({"cpu_bytes_per_s": None}, "cpu0 and cpu1 are not connected: give cpu_bytes_per_s"),
        ({"pcie_switch_of_gpu": None}, "cpu_of_pcie_switch needs pcie_switch_of_gpu"),
        ({"pcie_switch_of_gpu": "0,0,1"}, "pcie_switch_of_gpu lists 3, but there are 8"),
        ({"cpu_of_pcie_switch": "0,1"}, "cpu_of_pcie_switch lists 2, but there are 4"),
        ({"pcie_switch_of_nic": "0,1,2"}, "pcie_switch_of_nic lists 3, but there are 4"),
        ({"cpu_of_pcie_switch": "0,9000000000,1,1"}, "names number 9,000,000,000; at most 12 are there"),
        ({"pcie_switch_of_gpu": "0,0,1,1,2,2,3,9000000000"}, "names number 9,000,000,000; at most 12"),
        ({"cpu_of_gpu": "0,0,0,0,1,1,1,1"}, "not both"),
        ({"pcie_switch_of_gpu": "0,0,1,x"}, "expected a list such as"),
        ({"gpus_per_node": "65"}, "a node without NVSwitch has at most 64 GPUs"),
        ({"intra_node": "nvswitch"}, "does nothing in a node with NVSwitches"),
        ({"intra_node": "pci"}, "did you mean 'pcie'?"),
    ],
)
def test_pcie_trees_that_cannot_be(change: dict[str, str | None], complaint: str) -> None:
    keys = {key: value for key, value in {**PCIE, **change}.items() if value is not None}
    if "gpus_per_node" in change:
        keys["pcie_switch_of_gpu"] = ",".join(["0"] * 65)
        del keys["cpu_of_pcie_switch"]
    with pytest.raises(InputError) as caught:
        cluster(**keys)
    assert complaint in str(caught.value)


def test_a_switch_port_is_asked_of_a_node_without_switches() -> None:
    with pytest.raises(InputError, match="cluster 'dgx1v-8' has no NVSwitch"):
        Topology(load_cluster("dgx1v-8")).nvlink_out(0)


@pytest.mark.parametrize("name", ["dgx1v-16", "hgx4-a100-8"])
def test_names_inside_nodes_and_indices_are_inverse(name: str) -> None:
    names = Topology(load_cluster(name)).links.names
    assert [names.index(each) for each in names] == list(range(len(names)))
    with pytest.raises(InputError, match=r"links are node\.<n>\.<link> with node 0 to 1 and links such as"):
        names.index("node.2.nvlink.0.1")


def test_a_link_inside_a_node_can_be_overridden() -> None:
    slow = Topology(load_cluster("dgx1v-16", {"link.node.1.nvlink.0.3.bytes_per_s": "1GB/s"}))
    assert rate(slow, "node.1.nvlink.0.3") == 1e9
    assert rate(slow, "node.0.nvlink.0.3") == 40e9
