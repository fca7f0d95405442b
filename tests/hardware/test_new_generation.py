"""A GPU of a generation that nobody described before: TOML files, no code."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

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


def _with_tables_of_its_own(folder: Path, **changes: float) -> None:
    """A copy of the project's data under ``folder`` with a generation "xanadu", complete and all of it TOML.

    ``changes``: constants of its products.
    """
    data = folder / "hardware_profiles"
    shutil.copytree(resources.files("hardware_profiles"), data, ignore=shutil.ignore_patterns("__pycache__"))
    for kind in ("cost", "nccl", "tuner", "sm"):
        table = (data / kind / "blackwell.toml").read_text(encoding="utf-8")
        (data / kind / "xanadu.toml").write_text(table.replace('"blackwell"', '"xanadu"'), encoding="utf-8")
    cost = data / "cost" / "xanadu.toml"
    for name, value in changes.items():
        text = cost.read_text(encoding="utf-8")
        changed, times = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value}", text, count=1)
        assert times == 1
        cost.write_text(changed, encoding="utf-8")
    die = (data / "die" / "gb100.toml").read_text(encoding="utf-8").partition("[boards")[0]
    (data / "die" / "kublai.toml").write_text(die.replace('"b200-sxm"', '"x1"'), encoding="utf-8")
    gpu = GPU.replace('generation = "xanadu"', 'generation = "xanadu"\ndie = "kublai"')
    (data / "gpu" / "x1.toml").write_text(gpu, encoding="utf-8")
    # Sixteen trays of four in one NVLink domain: what joins GPUs is data, too.
    trays = CLUSTER.replace('"gpu.toml"', '"x1"').replace("value = 2, unit", "value = 16, unit", 1)
    trays = trays.replace("value = 8, unit", "value = 4, unit")
    trays += 'nodes_per_domain = { value = 16, unit = "count", source = "plan" }\n'
    (data / "cluster" / "pod.toml").write_text(trays, encoding="utf-8")


def _asked(folder: Path) -> dict[str, Any]:
    """A step of two layers over 64 GPUs of the folder's "pod", asked of the project's unchanged code."""
    words = ["llama3-8b", "--cluster", "pod-64", "--json", "--no-perfetto", "--out", str(folder / "run")]
    for said in ("model.layers=2", "parallel.tp=8", "training.global_batch=8", "training.seq=8192"):
        words += ["--set", said]
    code = str(Path(__file__).parents[2])
    ran = subprocess.run(
        [sys.executable, "-m", "simcore", "run-sim", *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": code}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


def test_a_generation_with_tables_of_its_own_is_toml_alone(tmp_path: Path) -> None:
    steps = []
    for efficiency in (0.78, 0.39):
        folder = tmp_path / f"{efficiency}"
        folder.mkdir()
        _with_tables_of_its_own(folder, efficiency=efficiency)
        told = _asked(folder)
        assert told["gpus"] == 64 and any(text.startswith("X1: its clock") for text in told["warnings"])
        assert not any("has no constants" in text for text in told["warnings"]), told["warnings"]
        steps.append(told["step_time_s"])
    # Products are most of the step, and their tables' rate alone has halved.
    assert 1.2 < steps[1] / steps[0] < 2
