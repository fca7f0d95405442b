"""Nodes as NCCL dumps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.collectives import NcclPlanner
from simcore.errors import InputError
from simcore.hardware import Topology, assumptions, load_cluster
from tests.hardware.clusters import rate, route_names

GEN4 = 'link_speed="16.0 GT/s PCIe" link_width="16"'
BRIDGE = 'class="0x060400" vendor="0x10b5" device="0x8749"'


def gpu(dev: int, links: str = "", *, pcie: str = GEN4) -> str:
    return (
        f'<pci busid="0000:0{dev + 1}:00.0" class="0x030200" vendor="0x10de" device="0x20b0" {pcie}>\n'
        f'<gpu dev="{dev}" sm="80" rank="{dev}" gdr="1">{links}</gpu>\n</pci>\n'
    )


def nic(dev: int, speed: int = 200000, *, pcie: str = GEN4) -> str:
    return (
        f'<pci busid="0000:e{dev}:00.0" class="0x020700" {pcie}>\n<nic>\n'
        f'<net name="mlx5_{dev}" dev="{dev}" speed="{speed}" port="1" gdr="1"/>\n</nic>\n</pci>\n'
    )


def switch(number: int, inside: str, *, kind: str = BRIDGE) -> str:
    return f'<pci busid="0000:{number}f:00.0" {kind} {GEN4}>\n{inside}</pci>\n'


def cpu(numa: int, inside: str) -> str:
    kind = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"'
    return f'<cpu numaid="{numa}" affinity="ffff" {kind}>\n{inside}</cpu>\n'


def to_gpu(dev: int, count: int) -> str:
    return f'<nvlink target="0000:0{dev + 1}:00.0" count="{count}" tclass="0x030200"/>'


def to_switch(count: int, number: int = 0) -> str:
    return f'<nvlink target="0000:c{number}:00.0" count="{count}" tclass="0x068000"/>'


def system(inside: str) -> str:
    return f'<system version="1">\n{inside}</system>\n'


PCIE_BOX = system(cpu(0, switch(0, gpu(0) + gpu(1) + nic(0))) + cpu(1, switch(1, gpu(2) + gpu(3) + nic(1))))
MESH = system(
    cpu(
        0,
        switch(0, gpu(0, to_gpu(1, 4) + to_gpu(2, 4)) + gpu(1, to_gpu(0, 4) + to_gpu(2, 4)))
        + switch(1, gpu(2, to_gpu(0, 4) + to_gpu(1, 4)) + nic(0) + nic(1)),
    )
)
SWITCHED = system(
    cpu(0, "".join(switch(n, gpu(n, to_switch(6, 0) + to_switch(6, 1)) + nic(n)) for n in range(4)))
)


def loaded(folder: Path, text: str, name: str = "a100-64", **keys: str) -> Topology:
    path = folder / "node.xml"
    path.write_text(text)
    overrides = {"cluster.node_xml": str(path)} | {f"cluster.{key}": value for key, value in keys.items()}
    return Topology(load_cluster(name, overrides))


def test_a_pcie_box(tmp_path: Path) -> None:
    where = loaded(tmp_path, PCIE_BOX)
    cluster = where.cluster
    assert (cluster.intra_node, cluster.gpus_per_node, cluster.nics_per_node, cluster.num_nodes) == (
        "pcie",
        4,
        2,
        8,
    )
    assert cluster.nic_bytes_per_s == 25e9  # 200,000 Mb/s
    # Gen4 x16: 16 lanes x 1.5 GB/s; Skylake's link between CPUs 10 GB/s.
    assert rate(where, "node.0.pcie.gpu0.up") == 24e9
    assert rate(where, "node.0.cpu.0.1") == 10e9
    assert route_names(where, 0, 3) == [
        "node.0.pcie.gpu0.up",
        "node.0.pcie.switch0.up",
        "node.0.cpu.0.1",
        "node.0.pcie.switch1.down",
        "node.0.pcie.gpu3.down",
    ]  # fmt: skip
    assert [where.nic_of(each)[1] for each in range(4)] == [0, 0, 1, 1]
    assert route_names(where, 2, 6)[:3] == ["node.0.pcie.gpu2.up", "node.0.pcie.nic1.down", "nic.0.1.out"]
    # A ring of four crosses the CPUs once each way: 10 GB/s.
    plan = NcclPlanner(where).plan("all_reduce", 2**28, range(4))
    assert 0.9 * 10e9 < 1.5 * 2**28 / (plan.alone_ps * 1e-12) < 10e9
    assert any(line.startswith("cluster.pcie_latency_s: assumption") for line in assumptions(cluster))


def test_nvlinks_between_gpus(tmp_path: Path) -> None:
    where = loaded(tmp_path, MESH)
    assert where.cluster.intra_node == "nvlink"
    assert route_names(where, 0, 2) == ["node.0.nvlink.0.2"]
    assert rate(where, "node.0.nvlink.2.0") == pytest.approx(4 * 20e9)
    # Both NICs are beside GPU 2, and nearest to the others as well: GPUs 0 and 1 share the first ...
    assert sorted(where.nic_of(each)[1] for each in range(3)) in ([0, 0, 1], [0, 1, 1])


def test_nvswitches(tmp_path: Path) -> None:
    where = loaded(tmp_path, SWITCHED)
    assert where.cluster.intra_node == "nvswitch"
    assert route_names(where, 0, 3) == ["nvlink.0.out", "nvlink.3.in"]
    assert rate(where, "nvlink.0.out") == pytest.approx(12 * 20e9)
    half = loaded(tmp_path, SWITCHED.replace('count="6"', 'count="3"'))
    assert rate(half, "nvlink.0.out") == pytest.approx(6 * 20e9)


def test_two_ports_of_a_card_share_its_pcie_link(tmp_path: Path) -> None:
    card = nic(0).replace("</nic>", '<net name="mlx5_1" dev="1" speed="200000" port="2"/></nic>')
    where = loaded(tmp_path, system(cpu(0, switch(0, gpu(0) + gpu(1) + card))))
    routes = [route_names(where, n, n + 2) for n in range(2)]
    assert [route[-4] for route in routes] == ["nic.1.0.in", "nic.1.1.in"]
    shared = set(routes[0]) & set(routes[1])
    assert {name.split(".")[3] for name in shared} == {routes[0][1].split(".")[3]}


def test_slower_nics_are_left_out(tmp_path: Path) -> None:
    where = loaded(tmp_path, system(cpu(0, switch(0, gpu(0) + nic(0) + nic(1, speed=100000)))))
    assert where.cluster.nics_per_node == 1
    assert any("left out of" in line and "mlx5_1" in line for line in assumptions(where.cluster))


def test_a_nic_below_no_pcie_device(tmp_path: Path) -> None:
    net = '<nic><net name="eth0" dev="0" speed="100000"/></nic>'
    where = loaded(tmp_path, system(cpu(0, net + switch(0, gpu(0) + gpu(1)))))
    assert route_names(where, 0, 2)[:4] == [
        "node.0.pcie.gpu0.up",
        "node.0.pcie.switch0.up",
        "node.0.pcie.nic0.down",
        "nic.0.0.out",
    ]


def test_links_to_gpus_that_the_job_did_not_use_are_no_links(tmp_path: Path) -> None:
    inside = gpu(0, to_gpu(1, 4) + to_gpu(7, 4)) + gpu(1, to_gpu(0, 4))
    where = loaded(tmp_path, system(cpu(0, switch(0, inside + nic(0)))))
    assert where.cluster.intra_node == "nvlink"
    assert route_names(where, 0, 1) == ["node.0.nvlink.0.1"]


def test_broadcom_switches_of_two_levels_are_one(tmp_path: Path) -> None:
    kind = 'class="0x060400" vendor="0x1000" device="0xc010"'
    inner = switch(1, gpu(0), kind=kind) + switch(2, gpu(1) + nic(0), kind=kind)
    where = loaded(tmp_path, system(cpu(0, switch(0, inner, kind=kind))))
    assert route_names(where, 0, 1) == ["node.0.pcie.gpu0.up", "node.0.pcie.gpu1.down"]


def test_a_cluster_file_names_its_node(tmp_path: Path) -> None:
    (tmp_path / "node.xml").write_text(PCIE_BOX)
    source = (Path(__file__).parents[2] / "hardware_profiles" / "cluster" / "a100.toml").read_text()
    drop = ("intra_node", "gpus_per_node", "nics_per_node", "nic_bytes_per_s")
    lines = [line for line in source.splitlines() if not line.startswith(drop)]
    mine = tmp_path / "mine.toml"
    mine.write_text('node_xml = "node.xml"\n' + "\n".join(lines))
    cluster = load_cluster(str(mine))
    assert (cluster.gpus_per_node, cluster.intra_node) == (4, "pcie")
    mine.write_text('node_xml = "node.xml"\n' + source)
    with pytest.raises(InputError, match="intra_node comes from node_xml; remove one of them"):
        load_cluster(str(mine))


BOMB = '<?xml version="1.0"?>\n<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]>\n<system>&b;</system>'


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        (PCIE_BOX.replace("</system>", ""), 33, "not valid XML: no element found"),
        (PCIE_BOX.replace("</cpu>", "</cpo>", 1), None, "not valid XML: mismatched tag"),
        (BOMB, 2, "document types and entities are not read"),
        ("not xml", 1, "not valid XML"),
        ("<graphs/>", 1, "expected <system>, got <graphs>"),
        (system(""), None, "no <gpu> in any <cpu>"),
        (PCIE_BOX.replace('dev="3" sm', 'dev="2" sm'), None, "<gpu dev=2> is there twice"),
        (PCIE_BOX.replace('<gpu dev="0"', "<gpu", 1), 5, "<gpu> has no 'dev'"),
        (PCIE_BOX.replace('speed="200000"', 'speed="0"', 1), 12, "must be a whole number of at least 1"),
        (PCIE_BOX.replace('speed="200000"', 'speed="-5"', 1), 12, "must be a whole number of at least 1"),
        (PCIE_BOX.replace("16.0 GT/s PCIe", "17 GT/s", 1), 3, "speed '17 GT/s' and 16 lanes"),
        (PCIE_BOX.replace('link_width="16"', 'link_width="3"', 1), 3, "and 3 lanes"),
        (MESH.replace('count="4"', 'count="3"', 1), 5, "GPU 0 has 3 NVLinks to GPU 1, which has 4 back"),
        (MESH.replace("0x030200\"/>", "0x010802\"/>", 1), 5, "tclass='0x010802'> leads to no other GPU"),
        (MESH.replace("0000:02:00.0\" count", "0000:01:00.0\" count", 1), 5, "leads to no other GPU"),
        (MESH.replace("0x030200\"/>", "0x068000\"/>", 1), 8, "all must have the same and none to other GPUs"),
        (SWITCHED.replace('count="6"', 'count="5"', 1), None, "all must have the same"),
        (SWITCHED.replace('count="6"', 'count="0"', 1), 5, "must be a whole number of at least 1"),
        (SWITCHED.replace('count="6"', 'count="7"'), None, "14 NVLinks into the switches, but"),
    ],
)  # fmt: skip
def test_malformed_files_name_the_line(tmp_path: Path, text: str, line: int | None, complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        loaded(tmp_path, text)
    assert complaint in str(caught.value)
    if line is not None:
        assert f"node.xml:{line}:" in str(caught.value)


def test_files_that_are_too_deep_too_large_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="more than 64 elements inside each other"):
        loaded(tmp_path, "<system>" + "<pci>" * 70 + "</pci>" * 70 + "</system>")
    with pytest.raises(InputError, match="more than 1 MiB of text"):
        loaded(tmp_path, "<system>" + " " * 5_000_000 + "</system>")
    with pytest.raises(InputError, match=r"cannot read description of a node '.*nowhere\.xml'"):
        load_cluster("a100-8", {"cluster.node_xml": str(tmp_path / "nowhere.xml")})


def test_what_the_file_says_cannot_be_overridden_beside_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"override cluster\.nics_per_node: it comes from node_xml"):
        loaded(tmp_path, PCIE_BOX, nics_per_node="2")
    # What it does not say can.
    assert rate(loaded(tmp_path, PCIE_BOX, cpu_bytes_per_s="20GB/s"), "node.0.cpu.0.1") == 20e9
