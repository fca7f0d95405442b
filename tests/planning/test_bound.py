"""Bounds below step times: never above what is simulated, and exact where nothing is shared."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from simcore.apps.bench.published import FOLDER
from simcore.apps.run.loading import loaded
from simcore.apps.run.scenario import resolve_scenario
from simcore.apps.run.simulation import setup_of
from simcore.errors import InputError
from simcore.hardware import load_cluster
from simcore.planning.bound import Bound
from simcore.planning.paths import Prices
from simcore.planning.rough import RoughBounds
from simcore.run import Setup, priced, run, wired
from workloads.jobs import complete
from workloads.parallel.job import Job

TINY = {
    "layers": 4, "hidden": 1024, "heads": 8, "kv_heads": 4, "ffn": 4096, "vocab": 32000, "gated": True,
    "tied_embeddings": False,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "top_k": 2, "ffn": 1024}


def bounds_and_step(done, cluster, setup=None):
    """(rough bound, close bound, simulated step), ps."""
    setup = setup or Setup()
    _, planner = wired(cluster, setup.nccl)
    size, precision = done.parallel.world_size, done.training.precision
    prices = Prices(priced(cluster.gpu, size, precision, setup), planner, cluster.gpu)
    job = Job(done.model, done.parallel, done.training, done.software)
    step = run(done.graph(), cluster, setup).result.step_ps
    return RoughBounds(prices).step_ps(job), Bound(job, prices).step_ps(), step


def drawn(draw: random.Random):
    """Any job of a few layers on 16 GPUs, or None where the numbers do not go together."""
    experts = draw.random() < 0.3
    model = {**TINY, "layers": 4 * draw.choice([1, 1, 2]), **({"moe": EXPERTS} if experts else {})}
    parallel = {
        "tp": draw.choice([1, 2, 4]), "pp": draw.choice([1, 2, 4]), "cp": draw.choice([1, 1, 2]),
        "ep": draw.choice([2, 4]) if experts else 1, "virtual_stages": draw.choice([1, 1, 2]),
        "schedule": draw.choice(["1f1b", "1f1b", "gpipe", "zero_bubble", "zb_v", "dualpipe", "dualpipe_v"]),
        "sequence_parallel": draw.random() < 0.5,
    }  # fmt: skip
    training = {
        "seq": draw.choice([1024, 4096]), "micro_batch": draw.choice([1, 2]),
        "global_batch": draw.choice([16, 32]), "precision": draw.choice(["bf16", "bf16", "fp8"]),
        "recompute": draw.choice(["none", "selective", "full"]),
        "sharding": draw.choice(["ddp", "zero1", "zero2", "fsdp1", "fsdp2", "zero3"]),
        "overlap_grad_reduce": draw.random() < 0.5, "overlap_param_gather": draw.random() < 0.5,
        "tp_overlap": draw.random() < 0.5, "overlap_p2p": draw.random() < 0.5,
        "ep_overlap": experts and draw.random() < 0.5,
    }  # fmt: skip
    preset = draw.choice(["megatron-core", "megatron-lm-2022", "torchtitan-fsdp2", "deepspeed"])
    said = {"model": model, "parallel": parallel, "training": training, "software": preset}
    try:
        done = complete(said, "a job", num_gpus=16, generation="hopper")
        done.graph()
    except InputError:
        return None
    return done


def test_no_bound_is_above_a_simulation():
    draw, kinds = random.Random(7), Counter()
    cluster = load_cluster("h100-16")
    while sum(kinds.values()) < 80:
        done = drawn(draw)
        if done is None:
            continue
        rough, close, step = bounds_and_step(done, cluster)
        assert 0 < rough <= step, done
        assert 0 < close <= step, done
        kinds[done.parallel.schedule] += 1
    assert len(kinds) >= 6


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
    prices = Prices(priced(cluster.gpu, 4, "bf16", Setup()), planner, cluster.gpu)
    rough = RoughBounds(prices)
    job = Job(done.model, done.parallel, done.training, done.software)
    layers = job.chunks[1][0].pieces
    each = sum(rough._chunk_ps(job, layers, kind, (0,)) for kind in "FB")
    assert (8 + 4 - 1) * each < rough.step_ps(job) < 1.15 * (8 + 4 - 1) * each
