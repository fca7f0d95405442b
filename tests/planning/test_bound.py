"""Bounds below step times: never above what is simulated, and exact where nothing is shared."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from simcore.apps.bench.published import FOLDER
from simcore.apps.bench.tightness import bounds_and_step, random_jobs
from simcore.apps.run.loading import loaded
from simcore.apps.run.scenario import resolve_scenario
from simcore.apps.run.simulation import setup_of
from simcore.hardware import load_cluster
from simcore.planning.paths import Prices
from simcore.planning.rough import RoughBounds
from simcore.run import Setup, priced, wired
from workloads.jobs import complete
from workloads.parallel.job import Job

TINY = {
    "layers": 4, "hidden": 1024, "heads": 8, "kv_heads": 4, "ffn": 4096, "vocab": 32000, "gated": True,
    "tied_embeddings": False,
}  # fmt: skip


def test_no_bound_is_above_a_simulation():
    cluster, kinds = load_cluster("h100-16"), Counter()
    for _, done in zip(range(40), random_jobs(random.Random(7)), strict=False):
        rough, close, step = bounds_and_step(done, cluster)
        assert 0 < rough <= step, done
        assert 0 < close <= step, done
        kinds[done.parallel.schedule] += 1
    assert len(kinds) >= 6


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipe_v"])
@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("preset", ["megatron-core", "deepspeed"])
def test_no_bound_is_above_passes_that_take_turns(schedule, cp, preset):
    # What a pass waits for (exchanges of tokens, the ring of attention) runs beside the other's compute;
    # gradients that are reduced behind every backward (DeepSpeed's) are in both, bound and simulation.
    said = {
        "model": {**TINY, "moe": {"num_experts": 8, "top_k": 2, "ffn": 1024}},
        "parallel": {"pp": 2, "cp": cp, "ep": 4, "schedule": schedule,
                     "virtual_stages": 2 if schedule == "dualpipe_v" else 1},
        "training": {"seq": 1024, "global_batch": 32, "sharding": "zero1", "ep_overlap": True},
        "software": preset,
    }  # fmt: skip
    done = complete(said, "a job", num_gpus=16, generation="hopper")
    rough, close, step = bounds_and_step(done, load_cluster("h100-16"))
    assert 0 < rough <= step
    assert 0.8 * step < close <= step


@pytest.mark.parametrize("family", ["dgxc_llama8b", "fms_fsdp", "dgxc_pax175b"])
def test_no_bound_is_above_a_published_run(family):
    scenario = resolve_scenario(str(Path(FOLDER) / f"{family}.yaml"), settings={})
    found = loaded(scenario)
    rough, close, step = bounds_and_step(found.description, found.cluster, setup_of(scenario))
    assert 0.8 * step < close <= step
    assert 0 < rough <= step


def test_the_bound_is_the_step_where_nothing_is_shared():
    # One GPU: kernels one after the other, no communication.  All that the engine adds is nothing.
    said = {"model": TINY, "training": {"seq": 2048, "global_batch": 4, "micro_batch": 1}}
    done = complete(said, "a job", num_gpus=1, generation="hopper")
    cluster = load_cluster("h100-8", done.gpu)
    _, close, step = bounds_and_step(done, cluster)
    assert close == pytest.approx(step, rel=1e-3)


def test_the_rough_bound_is_the_closed_form_of_1f1b():
    # (m + p - 1) (F + B), arXiv 2104.04473: p = 4 equal stages of layers alone, m = 8; messages, embedding
    # and head come on top, so that the bound lies between this form of the inner stages' passes and the step.
    said = {
        "model": {**TINY, "layers": 16, "vocab": 128}, "parallel": {"pp": 4, "dp": 1},
        "training": {"seq": 4096, "global_batch": 8, "micro_batch": 1},
    }  # fmt: skip
    done = complete(said, "a job", num_gpus=4, generation="hopper")
    cluster = load_cluster("h100-8", done.gpu)
    _, planner = wired(cluster, {})
    prices = Prices(priced(cluster.gpu, 4, "bf16", Setup()), planner, cluster)
    rough = RoughBounds(prices)
    job = Job(done.model, done.parallel, done.training, done.software)
    layers = job.chunks[1][0].pieces
    each = sum(rough.timed(job, (0,)).chunk_ps(layers, kind) for kind in "FB")
    assert (8 + 4 - 1) * each < rough.step_ps(job) < 1.15 * (8 + 4 - 1) * each
