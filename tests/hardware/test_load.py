"""Profiles that come with the project, profiles of a user, and overrides."""

import re
from pathlib import Path

import pytest

from simcore.errors import InputError
from simcore.hardware import (
    OVERRIDE_KEYS,
    Topology,
    assumptions,
    cluster_names,
    gpu_names,
    hardware_hash,
    is_hardware_key,
    load_cluster,
    load_gpu,
)

PROFILES = Path(__file__).parents[2] / "hardware_profiles"


#: Keys that need others beside them; tests/hardware/test_shapes.py has them all.
NOT_ALONE = {
    f"cluster.{key}"
    for key in (
        *("nvlinks", "pcie_switch_of_gpu", "pcie_switch_of_nic", "cpu_of_pcie_switch", "cpu_of_gpu"),
        *("pcie_bytes_per_s", "pcie_switch_bytes_per_s", "pcie_efficiency", "pcie_latency_s"),
        *("cpu_bytes_per_s", "cpu_latency_s", "leaves_per_group", "local_cables", "global_cables"),
        *("core_oversubscription", "node_xml"),
    )
}


def write_gpu(folder, **changes):
    """A copy of the H800 profile with whole ``key = ...`` lines replaced (None: removed)."""
    lines = (PROFILES / "gpu" / "h800.toml").read_text().splitlines()
    for key, line in changes.items():
        index = next(i for i, text in enumerate(lines) if text.startswith(f"{key} ="))
        lines[index] = line or ""
    path = folder / "mine.toml"
    path.write_text("\n".join(lines))
    return path


def test_every_profile_loads_and_has_a_source_for_each_number():
    ampere = ("a10", "a100-40", "a100-80", "a100-pcie-40", "a100-pcie-80", "a30", "a40", "a800")
    hopper = ("h100-96gb", "h100-nvl", "h100-pcie", "h100-sxm", "h20", "h200", "h200-nvl", "h800")
    blackwell = ("b200-sxm", "b300-sxm", "gb200", "gb300", "rtx-pro-6000")
    instinct = ("mi300x", "mi325x", "mi350x", "mi355x")
    small = ("l4", "l40", "l40s", "rtx-a5000", "rtx3090", "rtx4090", "v100", "v100-16")
    assert set(gpu_names()) == {*ampere, *hopper, *blackwell, *instinct, *small}
    assert {"dgx1v", "h100-fat-tree", "hgx4-a100", "h800"} < set(cluster_names())
    for name in gpu_names():
        gpu = load_gpu(name)
        assert {f"peak_flops.{mode}" for mode in gpu.peak_flops} < gpu.sources.keys()
        assert all(gpu.sources.values())
    for name in cluster_names():
        assert Topology(load_cluster(name)).num_gpus == load_cluster(name).num_gpus


def test_h800_has_the_figures_of_its_datasheet():
    gpu = load_gpu("h800")
    assert (gpu.num_sms, gpu.hbm_bytes_per_s, gpu.nvlink_bytes_per_s, gpu.nvlink_links) == (
        132,
        3.35e12,
        200e9,  # 400 GB/s counts both directions
        8,
    )
    assert gpu.peak_flops["bf16"] == 989.4e12
    assert gpu.peak_flops["fp64"] == 1e12


@pytest.mark.parametrize("name", ["h800", "h100-sxm", "h200", "a100-40", "a100-80", "a800", "v100"])
def test_peaks_agree_with_sms_and_clock(name):
    # CUDA cores: 2 flop per FMA; 128 fp32 lanes per SM on Hopper, 64 before.
    gpu = load_gpu(name)
    lanes = 128 if gpu.generation == "hopper" else 64
    assert gpu.peak_flops["fp32"] == pytest.approx(gpu.num_sms * lanes * 2 * gpu.boost_clock_hz, rel=0.01)
    # A link of every NVLink generation from Volta to Hopper carries 25 GB/s per direction.
    assert gpu.nvlink_bytes_per_s == gpu.nvlink_links * 25e9


def test_default_cluster_is_echos_testbed():
    cluster = load_cluster()
    assert (cluster.name, cluster.num_nodes, cluster.gpus_per_node, cluster.nics_per_node) == (
        "h800-96",
        12,
        8,
        8,
    )
    assert cluster.nic_bytes_per_s == 50e9  # 400 Gb/s
    assert cluster.gpu == load_gpu("h800")


def test_size_follows_the_family_name():
    assert load_cluster("h800-64").num_nodes == 8
    assert load_cluster("a100-40gb-128").num_nodes == 16
    assert load_cluster("a800-8").num_nodes == 1
    # Some GPUs of one node: behind NVSwitches as if there were no others, else the first ones.
    some = load_cluster("h100-3")
    assert (some.num_nodes, some.gpus_per_node, some.num_placed) == (1, 3, 3)
    wired = load_cluster("a100-pcie-3")
    assert (wired.num_nodes, wired.gpus_per_node, wired.num_placed) == (1, 8, 3)
    assert wired.placed_gpus == (0, 1, 2)
    with pytest.raises(InputError, match=r"95 GPUs are no whole number of 8-GPU .* h800-88 or h800-96"):
        load_cluster("h800-95")
    with pytest.raises(InputError, match="0 GPUs"):
        load_cluster("h800-0")


@pytest.mark.parametrize(("name", "nodes"), [("h800-99999992", "1"), ("h800-8", "1e7")])
def test_a_cluster_beyond_memory_is_refused(name, nodes):
    with pytest.raises(InputError, match="GPUs are more than the 16777216"):
        load_cluster(name, {} if nodes == "1" else {"cluster.num_nodes": nodes})


def test_unknown_names_get_the_nearest():
    with pytest.raises(InputError, match="unknown gpu 'h80'; did you mean 'h800'"):
        load_gpu("h80")
    with pytest.raises(InputError, match="unknown cluster 'h8000-96'"):
        load_cluster("h8000-96")


def test_a_users_file_loads_and_its_gpu_path_is_relative_to_it(tmp_path):
    write_gpu(tmp_path, hbm_bytes='hbm_bytes = { value = 96, unit = "GiB", source = "invoice" }')
    text = (PROFILES / "cluster" / "h800.toml").read_text().replace('gpu = "h800"', 'gpu = "mine.toml"')
    path = tmp_path / "pod.toml"
    path.write_text(text)
    cluster = load_cluster(str(path))
    assert cluster.gpu.hbm_bytes == 96 * 1024**3
    assert cluster.gpu.sources["hbm_bytes"] == "invoice"


@pytest.mark.parametrize(
    ("key", "line", "complaint"),
    [
        ("num_sms", None, "key 'num_sms' is missing"),
        ("num_sms", "num_sms = 132", "num_sms: expected { value"),
        ("num_sms", 'num_smss = { value = 1, unit = "count", source = "x" }', "did you mean 'num_sms'?"),
        ("num_sms", 'num_sms = { value = 1, unit = "count" }', "num_sms: key 'source' is missing"),
        ("num_sms", 'num_sms = { value = 1, unit = "count", source = " " }', "source must be a text"),
        (
            "num_sms",
            'num_sms = { value = true, unit = "count", source = "x" }',
            "expected a number, got True",
        ),
        ("num_sms", 'num_sms = { value = "1", unit = "count", source = "x" }', "expected a number"),
        ("num_sms", 'num_sms = { value = 1, unit = "count", note = "x" }', "unknown key 'note'"),
        ("num_sms", 'num_sms = { value = nan, unit = "count", source = "x" }', "must be a finite number"),
        ("hbm_bytes", 'hbm_bytes = { value = 1, unit = "GB/s", source = "x" }', "not a unit of size"),
        ("hbm_bytes", 'hbm_bytes = { value = -1, unit = "GB", source = "x" }', "must be positive"),
        ("generation", 'generation = "hoper"', "did you mean 'hopper'?"),
        ("fp64", 'fp46 = { value = 1, unit = "Tflop/s", source = "x" }', "unknown key 'fp46'"),
        ("name", 'name = "', "not valid TOML"),
    ],
)
def test_a_malformed_file_is_refused_by_file_and_key(tmp_path, key, line, complaint):
    path = write_gpu(tmp_path, **{key: line})
    with pytest.raises(InputError, match=re.escape(str(path))) as caught:
        load_gpu(str(path))
    assert complaint in str(caught.value)


def test_a_missing_file_or_folder_is_refused(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(InputError, match="cannot read cluster profile"):
            load_cluster(str(path))


def test_overrides_reach_gpu_cluster_and_peaks():
    cluster = load_cluster(
        "h800-16",
        {
            "gpu.num_sms": "100",
            "gpu.peak_flops.bf16": "500Tflop/s",
            "cluster.num_nodes": "4",
            "cluster.fabric": "leaf_spine",
            "cluster.gpu": "h100-sxm",
        },
    )
    assert (cluster.gpu.num_sms, cluster.gpu.peak_flops["bf16"]) == (100, 500e12)
    assert (cluster.num_gpus, cluster.fabric, cluster.gpu.name) == (32, "leaf_spine", "H100-SXM5-80GB")
    assert cluster.sources["num_nodes"] == "override 4"


def test_clock_scales_compute_alone():
    half = load_gpu("h800", {"gpu.clock": "50%", "gpu.peak_flops.fp16": "800e12"})
    full = load_gpu("h800")
    assert half.boost_clock_hz == full.boost_clock_hz / 2
    assert half.peak_flops["bf16"] == full.peak_flops["bf16"] / 2
    assert half.peak_flops["fp16"] == 400e12  # an overridden peak is scaled, too
    assert half.hbm_bytes_per_s == full.hbm_bytes_per_s


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("gpu.hbm_byte", "gpu.hbm_bytes"),
        ("gpu.peak_flops.bf61", "gpu.peak_flops.bf16"),
        ("cluster.num_node", "cluster.num_nodes"),
        ("clutser.num_nodes", "cluster.num_nodes"),
    ],
)
def test_unknown_override_names_the_nearest(key, nearest):
    with pytest.raises(
        InputError, match=re.escape(f"unknown hardware key {key!r}; did you mean {nearest!r}?")
    ):
        load_cluster("h800-8", {key: "1"})


def test_every_override_key_is_accepted():
    texts = {"gpu.generation": "ampere", "cluster.gpu": "a100-80", "cluster.intra_node": "nvswitch"}
    texts |= {"cluster.fabric": "rail", "cluster.gpus_per_node": "8", "gpu.hbm_bytes": "2GiB"}
    texts |= {
        "gpu.conditions": "cool",
        "gpu.power_limit_w": "500W",
        "cluster.routing": "ecmp",
        "cluster.transport": "roce",
        "cluster.nic_of_gpu": "0,1,2,3,4,5,6,7",
        "cluster.leaves_per_pod": "8",
    }
    for key in OVERRIDE_KEYS:
        assert is_hardware_key(key)
        if key not in NOT_ALONE:
            load_cluster("h800-8", [(key, texts.get(key, "1"))], force=True)
    assert not is_hardware_key("kernels")


def test_what_is_reserved_must_leave_memory():
    with pytest.raises(InputError, match="805,306,368 must be less than hbm_bytes = 1,000"):
        load_gpu("h800", {"gpu.hbm_bytes": "1000"}, force=True)


@pytest.mark.parametrize("key", ["gpu.launch_overhead_s", "gpu.kernel_gap_s", "cluster.nic_latency_s"])
def test_a_latency_beyond_a_second_is_refused(key):
    with pytest.raises(InputError, match=f"{key}: must be at most 1, got 1E"):
        load_cluster("h800-8", {key: "1e30"})


@pytest.mark.parametrize("key", ["cluster.nodes_per_leaf", "cluster.num_nodes", "gpu.num_sms"])
def test_a_count_beyond_reason_is_refused(key):
    with pytest.raises(InputError, match=f"{key}: must be at most 16777216, got 1E"):
        load_cluster("h800-8", {key: "1e30"})


def test_the_name_follows_the_size():
    # 3 nodes of 8 GPUs
    assert load_cluster("h800-96", {"cluster.num_nodes": "3"}).name == "h800-24"
    assert load_cluster("h800-96", {"cluster.num_nodes": "3", "cluster.name": "mine"}).name == "mine"
    assert load_cluster("h800", {"cluster.num_nodes": "3"}).name == "h800"


def test_a_gpu_alone_has_no_cluster_keys():
    with pytest.raises(InputError, match=r"'cluster\.num_nodes' needs a cluster"):
        load_gpu("h800", {"cluster.num_nodes": "3"})


def test_hash_follows_numbers_not_names():
    base = hardware_hash(load_cluster("h800-96"))
    assert base == hardware_hash(load_cluster("h800", {"cluster.name": "mine"}))
    assert base != hardware_hash(load_cluster("h800-88"))
    assert base != hardware_hash(load_cluster("h800-96", {"gpu.hbm_efficiency": "0.5"}))
    assert base != hardware_hash(load_cluster("h800-96", {"link.leaf.0.up.latency_s": "1us"}))


def test_assumptions_are_listed_until_overridden():
    keys = [line.split(":")[0] for line in assumptions(load_cluster())]
    assert "gpu.hbm_efficiency" in keys
    assert "gpu.num_sms" not in keys
    overridden = assumptions(load_cluster("h800-96", {"gpu.hbm_efficiency": "0.9"}))
    assert not any(line.startswith("gpu.hbm_efficiency") for line in overridden)
