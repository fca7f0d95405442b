"""A GPU of a generation that nobody described before: the two TOML files of docs/extend, no code."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.errors import InputError
from simcore.hardware import assumptions, load_cluster, load_gpu
from simcore.run import Setup, run
from tests.extend import EXAMPLES
from workloads.jobs import complete

GPU = (EXAMPLES / "gpu.toml").read_text(encoding="utf-8")
CLUSTER = (EXAMPLES / "cluster.toml").read_text(encoding="utf-8")


def write(folder: Path, gpu: str = GPU) -> str:
    (folder / "gpu.toml").write_text(gpu)
    (folder / "cluster.toml").write_text(CLUSTER)
    return str(folder / "cluster.toml")


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
    latest = load_gpu(str(tmp_path / "gpu.toml"))
    assert (latest.generation, latest.table("cost"), latest.table("nccl")) == (
        "xanadu",
        "blackwell",
        "blackwell",
    )
    write(tmp_path, GPU.replace('"xanadu"', '"xanadu"\nlike = "ampere"'))
    named = load_gpu(str(tmp_path / "gpu.toml"))
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
        load_gpu(str(tmp_path / "gpu.toml"))
    assert words in str(caught.value) and "gpu.toml" in str(caught.value)


def test_a_name_near_a_known_one_is_new_once_it_says_what_it_is_like(tmp_path: Path) -> None:
    write(tmp_path, GPU.replace('generation = "xanadu"', 'generation = "hopper2"\nlike = "hopper"'))
    assert load_gpu(str(tmp_path / "gpu.toml")).table("cost") == "hopper"
