"""JobFeatures of a job: one truth for specs and graphs; what a traced graph does not say; rows as text."""

from __future__ import annotations

import dataclasses

import pytest

from simcore.errors import InputError
from simcore.graph import load_graph
from workloads import catalog
from workloads.evidence import (
    JobFeatures,
    MeasuredRun,
    job_features,
    measured_runs,
    read_runs,
    workload_features,
    write_runs,
)
from workloads.jobs import complete

BOARD = "H100-SXM5-80GB"


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_a_described_job_and_its_graph_have_the_same_features(model: str) -> None:
    overrides = {"parallel.pp": "2", "parallel.tp": "2", "training.global_batch": "16", "model.layers": "4"}
    job = complete({"model": model}, "here", overrides=overrides, num_gpus=16)
    plain = job.model.model_dump(), job.parallel.model_dump(), job.training.model_dump()
    of_job = job_features(*plain, framework=job.software.name, source="described", board=BOARD, die="gh100")
    assert workload_features(dataclasses.asdict(job.graph().workload), BOARD, "gh100") == of_job
    assert (of_job.gpus, of_job.dp, of_job.microbatches) == (16, 4, 4)  # 16 samples / (4 x 1)
    assert of_job.blocks == ("experts" if model.startswith("mix") else "dense")


@pytest.mark.parametrize(
    ("model", "trainable", "expected"),
    [
        ("dlrm-small", "all", "tables"),
        ("dlrm-small", "none", "tables forward"),
        ("resnet50", "all", "images"),
    ],
)
def test_lists_of_blocks_say_what_they_take(model: str, trainable: str, expected: str) -> None:
    optimizer = "sgd" if trainable == "all" else "none"
    overrides = {"training.trainable": trainable, "training.optimizer": optimizer}
    job = complete({"model": model}, "here", overrides=overrides, num_gpus=8)
    found = workload_features(dataclasses.asdict(job.graph().workload), BOARD, "gh100")
    assert (found.blocks, found.is_list) == (expected, True)


def test_parameters_count_all_experts() -> None:
    job = complete({"model": "mixtral-8x7b"}, "here", overrides={}, num_gpus=8)
    plain = job.model.model_dump(), job.parallel.model_dump(), job.training.model_dump()
    found = job_features(*plain, framework="", source="described", board=BOARD, die="gh100")
    # 32 layers: attention 4096 x 128 x 2 x (32 + 8), 8 experts of 3 x 4096 x 14336; 4096 x 32000 embedded.
    layer = 4096 * 128 * 2 * 40 + 8 * 3 * 4096 * 14336
    assert found.params_b == pytest.approx((32 * layer + 4096 * 32000) / 1e9)


def test_a_traced_program_is_known_as_far_as_its_graph_says() -> None:
    workload = dataclasses.asdict(load_graph(catalog.path("gpt-13b-pp8-tp4-dp2")).workload)
    found = workload_features(workload, "H800-SXM5-80GB", "gh100")
    assert (found.source, found.framework, found.die, found.blocks) == (
        "traced",
        "megatron-core",
        "gh100",
        "dense",
    )
    assert (found.gpus, found.tp, found.pp, found.dp, found.cp) == (64, 4, 8, 2, 1)
    # 40 layers: attention 4 x 5120^2, two products with 20480; 51200 words.
    assert found.params_b == pytest.approx((40 * (4 * 5120**2 + 2 * 5120 * 20480) + 5120 * 51200) / 1e9)
    script = {
        **workload,
        "framework": "pytorch",
        "command": "torchtitan --module llama3",
        "versions": {},
        "model": {"family": "script"},
        "options": {},
        "dims": {"dp": 64},
    }
    found = workload_features(script, "H800-SXM5-80GB", "gh100")
    assert found.framework == "torchtitan"  # its command names the library
    assert (found.blocks, found.layers, found.tp, found.dp, found.sharding) == ("", 0, 0, 64, "")


def test_runs_are_written_and_read_again() -> None:
    job = JobFeatures(framework="megatron-core", source="row", gpus=64, seq=4096)
    runs = (
        MeasuredRun("one", "f", "A", job, 1.5, 1.25, 1.25, 1.25, 1.25, reach=0.5),
        MeasuredRun("two, quoted", "f", "B", job, 2.0, 2.5, 2.5, 2.5, 3.0, odd="slow, twice"),
    )
    text = write_runs(runs)
    assert read_runs(text) == runs
    assert runs[0].miss == pytest.approx(0.18232, abs=1e-5)  # ln(1.5 / 1.25)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("measured_s", "seconds", "no column 'measured_s'"),
        ("1.5", "fast", "line 2: could not convert"),
        ("1.5", "-1", "line 2: a time is not a positive number"),
    ],
)
def test_bad_residuals_are_refused(old: str, new: str, said: str) -> None:
    text = write_runs([MeasuredRun("one", "f", "A", JobFeatures(), 1.5, 1.25, 1.25, 1.25, 1.25)])
    with pytest.raises(InputError, match=said):
        read_runs(text.replace(old, new, 1))


def test_committed_runs_are_complete() -> None:
    runs = measured_runs()
    assert len({run.id for run in runs}) == len(runs) > 500
    assert all((run.reach is None) == bool(run.odd) for run in runs)
    assert all(
        run.low_s <= run.predicted_s * (1 + 1e-5) and run.predicted_s <= run.high_s * (1 + 1e-5)
        for run in runs
    )
    assert all(run.features.framework and run.features.die and run.features.gpus for run in runs)
