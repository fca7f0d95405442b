"""A cluster file of a user's own: optional keys, lists, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simcore.errors import InputError
from simcore.hardware import Topology, cluster_names, hardware_hash, load_cluster
from tests.hardware.clusters import DRAGONFLY, rate, route_names

SOURCE = (Path(__file__).parents[2] / "hardware_profiles" / "cluster" / "a100.toml").read_text()
OWN = """
pcie_bytes_per_s = { value = 32, unit = "GB/s", source = "lspci" }
pcie_efficiency = { value = 75, unit = "%", source = "measured" }
pcie_latency_s = { value = 1, unit = "us", source = "assumption" }
pcie_switch_of_gpu = { value = [0, 0, 0, 0, 1, 1, 1, 1], source = "lspci -t" }
cpu_of_pcie_switch = { value = [0, 1], source = "lspci -t" }
pcie_switch_bytes_per_s = { value = 16, unit = "GB/s", source = "lspci" }
pcie_switch_of_nic = { value = [0, 1], source = "lspci -t" }
cpu_bytes_per_s = { value = 16, unit = "GB/s", source = "data sheet" }
leaves_per_pod = { value = 8, unit = "count", source = "plan" }
core_oversubscription = { value = 4, unit = "ratio", source = "plan" }
uplink_bytes_per_s = { value = 400, unit = "Gb/s", source = "plan" }
"""


def write(folder: Path, *more: str, **changes: str | None) -> str:
    """The A100 profile with lines replaced (None: removed) and others put before it."""
    lines = SOURCE.splitlines()
    for key, line in changes.items():
        index = next(n for n, text in enumerate(lines) if text.startswith(f"{key} ="))
        lines[index] = line or ""
    path = folder / "mine.toml"
    path.write_text("\n".join([*more, *lines]))
    return str(path)


def number(key: str, value: float, unit: str = "count") -> str:
    return f'{key} = {{ value = {value}, unit = "{unit}", source = "plan" }}'


def own(folder: Path, *more: str) -> str:
    changes = {
        "intra_node": 'intra_node = "pcie"',
        "fabric": 'fabric = "fat_tree"\nrouting = "ecmp"\nplacement = [8, 0, 1]',
        "nics_per_node": number("nics_per_node", 2),
        "nodes_per_leaf": number("nodes_per_leaf", 1),
    }
    return write(folder, OWN, *more, **changes)


def test_all_of_it_together(tmp_path: Path) -> None:
    cluster = load_cluster(own(tmp_path))
    where = Topology(cluster)
    assert [where.gpu_of_rank(rank) for rank in range(3)] == [8, 0, 1]
    assert rate(where, "node.0.pcie.gpu0.up") == pytest.approx(24e9)
    assert rate(where, "node.0.pcie.switch1.down") == pytest.approx(12e9)
    assert route_names(where, 4, 8)[1] == "node.0.pcie.nic1.down"
    # 2 NICs per leaf are one cable of twice their rate.
    assert int(where.links.cables[where.links.names.index("leaf.0.up")]) == 1
    assert cluster.sources["pcie_switch_of_gpu"] == "lspci -t"


def test_every_profile_is_a_start(tmp_path: Path) -> None:
    for name in cluster_names():
        source = (Path(__file__).parents[2] / "hardware_profiles" / "cluster" / f"{name}.toml").read_text()
        path = tmp_path / f"{name}.toml"
        path.write_text(source)
        assert hardware_hash(load_cluster(str(path))) == hardware_hash(load_cluster(name))


def test_a_placement_file_beside_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_text("1 0")
    cluster = load_cluster(write(tmp_path, 'placement = "order.txt"'))
    assert cluster.placed_gpus == (1, 0)


def test_a_dragonfly_needs_no_spines(tmp_path: Path) -> None:
    more = [number(key, int(DRAGONFLY[key])) for key in ("leaves_per_group", "local_cables", "global_cables")]
    changes = {"fabric": 'fabric = "dragonfly"', "spine_oversubscription": None}
    changes["nodes_per_leaf"] = number("nodes_per_leaf", 1)
    assert load_cluster(write(tmp_path, *more, **changes)).fabric == "dragonfly"
    with pytest.raises(InputError, match="key 'spine_oversubscription' is missing"):
        load_cluster(write(tmp_path, spine_oversubscription=None))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("nvlink = 1", "unknown key 'nvlink'; did you mean 'nvlinks'?"),
        ("leaves_per_pods = 1", "did you mean 'leaves_per_pod'?"),
        ('routing = "rails"', "routing cannot be 'rails'; did you mean 'rail'?"),
        ('placement = "roundrobin"', "did you mean 'round_robin'?"),
        ("placement = 3", "placement must be a text, got 3"),
        ("placement = [0, -1]", "placement: expected a list of whole numbers, but it has -1"),
        ("nic_of_gpu = [0, 1]", "nic_of_gpu: expected { value = [...], source"),
        ("nic_of_gpu = { value = [0] }", "nic_of_gpu: key 'source' is missing"),
        ('nic_of_gpu = { value = [0], unit = "x", source = "x" }', "unknown key 'unit'"),
        ('nic_of_gpu = { value = [], source = "x" }', "expected a list of NICs, or lists of NICs, got []"),
        ('nic_of_gpu = { value = [0.5], source = "x" }', "but it has 0.5"),
        ('nic_of_gpu = { value = [true], source = "x" }', "but it has True"),
        ('nvlinks = { value = [[0, 1]], source = "x" }', "[GPU, GPU, links], but it has [0, 1]"),
        ('cpu_of_gpu = { value = [[0]], source = "x" }', "expected a list of whole numbers, but it has [0]"),
        ('cpu_of_gpu = { value = [-1], source = "x" }', "but it has -1"),
        (number("leaves_per_pod", 0), "leaves_per_pod: must be positive"),
        (number("core_oversubscription", 0.5, "ratio"), "core_oversubscription: must be at least 1"),
        (number("pcie_bytes_per_s", 0, "GB/s"), "pcie_bytes_per_s: must be positive"),
    ],
)  # fmt: skip
def test_what_is_refused_names_file_and_key(tmp_path: Path, line: str, complaint: str) -> None:
    path = write(tmp_path, line)
    with pytest.raises(InputError) as caught:
        load_cluster(path)
    assert complaint in str(caught.value)
    assert re.match(re.escape(path), str(caught.value))


def test_the_hash_follows_wiring_and_placement() -> None:
    base = hardware_hash(load_cluster("dgx1v-16"))
    others = [
        {"cluster.nvlinks": "[[0,1,6],[2,3,6],[4,5,6],[6,7,6]]"},
        {"cluster.placement": "round_robin"},
        {"cluster.routing": "ecmp"},
        {"cluster.leaves_per_pod": "4"},
    ]
    hashes = {hardware_hash(load_cluster("dgx1v-16", changes)) for changes in others}
    assert len(hashes | {base}) == 5
