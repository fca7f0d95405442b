"""A GPU of a generation that nobody described before: two TOML files, no code."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.errors import InputError
from simcore.hardware import assumptions, load_cluster, load_gpu
from simcore.run import Setup, run
from workloads.jobs import complete

GPU = """
name = "X1"
generation = "xanadu"
num_sms = { value = 160, unit = "count", source = "data sheet" }
boost_clock_hz = { value = 2.1, unit = "GHz", source = "data sheet" }
hbm_bytes = { value = 192, unit = "GiB", source = "data sheet" }
hbm_bytes_per_s = { value = 8, unit = "TB/s", source = "data sheet" }
l2_bytes = { value = 128, unit = "MiB", source = "data sheet" }
l2_bytes_per_s = { value = 20, unit = "TB/s", source = "assumption: as its SMs" }
nvlink_bytes_per_s = { value = 900, unit = "GB/s", source = "data sheet" }
nvlink_links = { value = 18, unit = "count", source = "data sheet" }
nvlink_efficiency = { value = 0.8, unit = "ratio", source = "assumption: as before" }
copy_engines = { value = 3, unit = "count", source = "data sheet" }
launch_overhead_s = { value = 3, unit = "us", source = "assumption: as before" }
launch_latency_s = { value = 6, unit = "us", source = "assumption: as before" }
kernel_gap_s = { value = 1.5, unit = "us", source = "assumption: as before" }
gemm_efficiency = { value = 0.78, unit = "ratio", source = "assumption: as before" }
hbm_efficiency = { value = 0.9, unit = "ratio", source = "assumption: as before" }
reserved_bytes = { value = 2, unit = "GiB", source = "assumption: as before" }

[peak_flops]
fp32 = { value = 80, unit = "Tflop/s", source = "data sheet" }
bf16 = { value = 2.5, unit = "Pflop/s", source = "data sheet" }
fp8 = { value = 5, unit = "Pflop/s", source = "data sheet" }
fp4 = { value = 10, unit = "Pflop/s", source = "data sheet" }
"""
CLUSTER = """
name = "pod"
gpu = "x1.toml"
intra_node = "nvswitch"
fabric = "rail"
nccl_version = "2.27.3"
num_nodes = { value = 2, unit = "count", source = "plan" }
gpus_per_node = { value = 8, unit = "count", source = "plan" }
nvlink_latency_s = { value = 3, unit = "us", source = "assumption: as before" }
nics_per_node = { value = 8, unit = "count", source = "plan" }
nic_bytes_per_s = { value = 800, unit = "Gb/s", source = "plan" }
nic_efficiency = { value = 0.94, unit = "ratio", source = "assumption: as before" }
nic_latency_s = { value = 3, unit = "us", source = "assumption: as before" }
hop_latency_s = { value = 0.5, unit = "us", source = "assumption: as before" }
nodes_per_leaf = { value = 2, unit = "count", source = "plan" }
spine_oversubscription = { value = 1, unit = "ratio", source = "plan" }
"""


def write(folder: Path, gpu: str = GPU) -> str:
    (folder / "x1.toml").write_text(gpu)
    (folder / "pod.toml").write_text(CLUSTER)
    return str(folder / "pod.toml")


@pytest.mark.parametrize("network", ["fluid", "alphabeta"])
def test_two_files_are_enough_for_a_step(tmp_path: Path, network: str) -> None:
    assert len((GPU + CLUSTER).splitlines()) <= 60
    cluster = load_cluster(write(tmp_path))
    sizes = {"layers": 2, "hidden": 1024, "heads": 8, "ffn": 4096, "vocab": 32000}
    said = {"model": sizes, "parallel": {"tp": 8, "dp": 2}, "training": {"micro_batch": 1, "global_batch": 4}}
    job = complete(said, "a job", num_gpus=cluster.num_gpus, generation=cluster.gpu.generation)
    ran = run(job.graph(), cluster, Setup(network=network))
    # (2 x 12 x 1024^2 + 32000 x 1024) parameters x 6 flop x 8192 tokens over 16 GPUs: 71 us at peak.
    assert 71e-6 < ran.step_s < 1
    assert any("xanadu has no constants of kernels" in warning for warning in ran.warnings)
    assert any(line.startswith("gpu.generation: assumption: xanadu") for line in assumptions(cluster))


def test_the_latest_generation_stands_in_unless_the_file_names_another(tmp_path: Path) -> None:
    write(tmp_path)
    latest = load_gpu(str(tmp_path / "x1.toml"))
    assert (latest.generation, latest.table("cost"), latest.table("nccl")) == ("xanadu", "hopper", "hopper")
    write(tmp_path, GPU.replace('"xanadu"', '"xanadu"\nlike = "ampere"'))
    named = load_gpu(str(tmp_path / "x1.toml"))
    assert named.table("cost") == "ampere"
    assert "those of ampere, which its file says it is like" in named.sources["generation"]


@pytest.mark.parametrize(
    ("generation", "words"),
    [
        ('generation = "hoper"', "generation cannot be 'hoper'; did you mean 'hopper'? A new one says"),
        ('generation = "xanadu"\nlike = "hoper"', "like cannot be 'hoper'; did you mean 'hopper'?"),
    ],
)
def test_a_misspelt_generation_is_no_new_one(tmp_path: Path, generation: str, words: str) -> None:
    write(tmp_path, GPU.replace('generation = "xanadu"', generation))
    with pytest.raises(InputError) as caught:
        load_gpu(str(tmp_path / "x1.toml"))
    assert words in str(caught.value) and "x1.toml" in str(caught.value)


def test_a_name_near_a_known_one_is_new_once_it_says_what_it_is_like(tmp_path: Path) -> None:
    write(tmp_path, GPU.replace('generation = "xanadu"', 'generation = "hopper2"\nlike = "hopper"'))
    assert load_gpu(str(tmp_path / "x1.toml")).table("cost") == "hopper"
