"""The examples of docs/extend.md: short, and they run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simcore.hardware import load_cluster
from simcore.run import run
from tests.synthetic import write_two_stage_run
from workloads.jobs import complete

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "extend"


def ran(example, *arguments):
    done = subprocess.run(
        [sys.executable, EXAMPLES / example, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_each_example_is_short_and_the_page_names_it():
    page = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
    for example in sorted(path for path in EXAMPLES.iterdir() if path.is_file()):
        assert len(example.read_text(encoding="utf-8").splitlines()) <= 60, example.name
        assert f"(extend/{example.name})" in page


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ("schedule.py", "eager_1f1b:"),
        ("axis.py", "2 workers:"),
        ("block.py", "short convolutions:"),
        ("collective.py", "all_to_all_v:5,1,1,1:"),
    ],
)
def test_a_thing_in_a_file_of_its_own_is_described_generated_and_simulated(example, said):
    assert any(line.startswith(said) for line in ran(example))  # the example asserts what it is for


def test_a_framework_is_a_file():
    said = {"model": "llama3-8b", "training": {"seq": 2048}}
    jobs = {
        software: complete({**said, "software": software}, "job", num_gpus=8, folder=EXAMPLES)
        for software in ("framework.toml", "torchtitan-fsdp2")
    }
    own, base = jobs["framework.toml"], jobs["torchtitan-fsdp2"]
    assert (own.software.name, own.software.attention, own.software.compiled) == ("framework", "flash3", True)
    assert base.software.attention == "flash2"
    seconds = {name: run(job.graph(), load_cluster("h100-8", job.gpu)).step_s for name, job in jobs.items()}
    assert seconds["framework.toml"] != seconds["torchtitan-fsdp2"]


def test_an_output_is_a_function_of_a_timeline(tmp_path):
    write_two_stage_run(tmp_path / "run")
    lines = ran("output.py", tmp_path / "run", 0)
    # Rank 0, in units of 1,000 ps: one kernel from 0 to 100, one that runs again from 200 to 260.
    assert "compute;fwd;layer 0;gemm 100" in lines
    assert "compute;recompute;no layer;gemm 60" in lines
