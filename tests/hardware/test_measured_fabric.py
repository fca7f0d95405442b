"""Fabrics by their names, and what is said of those that nobody measured."""

from pathlib import Path

import pytest

from simcore.hardware import cluster_names, load_cluster
from simcore.hardware.profiles import fabric_profile, named_fabric
from simcore.hardware.record import unmeasured_fabric


@pytest.mark.parametrize(
    ("said", "fabric"),
    [
        ("float; out-of-place; GCP A3 Mega", "tcpxo"),
        ("a3-megagpu-8g with GPUDirect-TCPXO", "tcpxo"),
        ("GPUDirect-TCPX", "tcpx"),
        ("a3-highgpu-8g, TCP-X", "tcpx"),
        ("EFA 3200 Gb/s per node", "efa"),
        ("2x p4d.24xlarge", "efa"),
        ("1600 Gb/s RoCE per node", "roce"),
        ("RoCEv2", "roce"),
        ("InfiniBand NDR", None),
        ("default; prefax; heroce", None),
    ],
)
def test_words_name_fabrics(said: str, fabric: str | None) -> None:
    assert named_fabric(said) == fabric


def test_a_fabric_and_a_gpu_make_a_cluster() -> None:
    assert fabric_profile("a100-40gb", "EFA") == ("a100-efa", "a100-40")
    assert fabric_profile("h200", "EFA") == ("h100-efa", "h200")
    assert fabric_profile("a100", "TCPX") is None  # Google joins no A100 so
    assert fabric_profile("v100", "EFA") is None
    assert fabric_profile("h100", "NDR InfiniBand") is None
    for family, said in (("a100", "RoCE"), ("h800", "RoCE"), ("h100", "A3 Mega"), ("h20", "TCPX")):
        found = fabric_profile(family, said)
        assert found is not None and found[0] in cluster_names()
        assert load_cluster(found[0], {"cluster.gpu": found[1]}).gpu.name


def test_what_was_measured_is_part_of_the_profile() -> None:
    for name in ("h100", "h200", "h800-96", "h100-efa", "h100-tcpxo", "a100"):
        assert unmeasured_fabric(load_cluster(name)) is None
    said = unmeasured_fabric(load_cluster("h100-tcpx"))
    assert said is not None and "never measured" in said and "(tcpx, 4 x 200 Gb/s per node)" in said
    assert "nic_latency_s: assumption" in said
    # One node has no fabric.
    assert unmeasured_fabric(load_cluster("h100-tcpx-8")) is None


def test_what_a_user_replaces_is_no_longer_what_was_measured() -> None:
    said = unmeasured_fabric(load_cluster("h100", {"cluster.nic_bytes_per_s": "25GB/s"}))
    assert said is not None and "not measured with another nic_bytes_per_s" in said
    # The size of a job is not its fabric.
    assert unmeasured_fabric(load_cluster("h100-64", {"cluster.nodes_per_leaf": "8"})) is None


def test_a_file_of_ones_own_is_unmeasured_unless_it_says_otherwise(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "hardware_profiles/cluster/h100.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("fabric_measured")]
    mine = tmp_path / "mine.toml"
    mine.write_text("\n".join(lines))
    assert "never measured" in (unmeasured_fabric(load_cluster(str(mine))) or "")
    mine.write_text("\n".join(['fabric_measured = "nccl-tests of ours, 4 nodes"', *lines]))
    assert unmeasured_fabric(load_cluster(str(mine))) is None
