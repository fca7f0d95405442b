"""A job that says no layout gets one that fits, near to what the planner finds."""

from __future__ import annotations

import pytest

from simcore.apps.plan.asking import asked
from simcore.apps.run.loading import loaded
from simcore.apps.run.scenario import resolve_scenario
from simcore.planning.appraisal import Appraiser
from simcore.planning.space import asked_axes, candidates
from simcore.planning.usual import usual_settings
from workloads.jobs import Description


def described(model: str, cluster: str, settings: dict[str, str] | None = None) -> Description:
    """The job as ``run_sim.py`` completes it, which has looked whether it fits."""
    scenario = resolve_scenario(model, cluster=cluster, settings=settings or {})
    found = loaded(scenario)
    assert found.description is not None
    found.fits(found.graph, found.cluster, scenario)  # OutOfMemoryError where it does not
    return found.description


@pytest.mark.parametrize(
    ("model", "cluster"),
    [
        ("llama3-8b", "h100-8"), ("llama3-8b", "a100-64"), ("llama3-70b", "h100-64"),
        ("mixtral-8x7b", "h100-64"), ("gpt2-small", "h100-8"),
        ("llama3-8b", "gb200-72"), ("bert-large", "v100-16"), ("vit-huge", "h100-8"), ("t5-3b", "a100-8"),
    ],
)  # fmt: skip
def test_it_fits_and_nobody_has_one_sequence(model: str, cluster: str) -> None:
    job = described(model, cluster)
    tokens = job.model.sequence(job.training.seq)
    assert job.parallel.world_size == int(cluster.rpartition("-")[2])
    assert job.training.num_microbatches(job.parallel) >= 2
    # 131,072 tokens for each of few GPUs, 4 Mi for more, as a power of two of samples (times 9 on 72 GPUs:
    # 288 samples of 8,192 tokens are 2.25 Mi): at least half of it.
    usual = min(131_072 * job.parallel.world_size, 4 << 20)
    assert usual / 2 < job.training.global_batch * tokens <= usual
    assumed = {one.key for one in job.assumed}
    assert {"training.seq", "training.global_batch", "parallel.tp", "parallel.pp"} <= assumed


def test_a_model_has_its_own_context_up_to_8192() -> None:
    assert described("gpt3-1.3b", "h100-8").training.seq == 2048
    assert described("llama3-8b", "h100-8").training.seq == 8192
    assert described("vit-huge", "h100-8").training.seq == 257  # 16 x 16 patches of 14 pixels, and a token
    assert described("llama3-8b", "h100-8", {"training.seq": "1024"}).training.seq == 1024


def test_replicas_of_one_gpu_divide_a_usual_batch() -> None:
    job = described("llama3-8b", "gb200-72")  # 8 billion parameters fit a GPU of 186 GB whole
    assert (job.parallel.tp, job.parallel.pp, job.parallel.dp) == (1, 1, 72)


def test_what_is_said_of_the_layout_is_all() -> None:
    job = described("llama3-8b", "h100-16", {"parallel.tp": "4"})
    assert (job.parallel.tp, job.parallel.pp, job.parallel.dp, job.training.recompute) == (4, 1, 4, "none")
    kept = described("llama3-8b", "h100-16", {"training.recompute": "full", "training.micro_batch": "2"})
    assert (kept.training.recompute, kept.training.micro_batch) == ("full", 2)
    assert not {"training.recompute", "training.micro_batch"} & {one.key for one in kept.assumed}


def test_it_has_nearly_the_lowest_bound_of_all_candidates() -> None:
    """Of all of the planner's axes, llama3-8b on 16 GPUs; tried only is a small part of them."""
    question = asked("llama3-8b", "h100-16", []).question
    appraiser = Appraiser(question)
    every = list(candidates(question.ground, asked_axes("tp,pp,recompute,micro_batch", ())))
    best = min(one.rough_ps for one in appraiser.appraised(every) if not one.reason)
    usual = appraiser.appraised([usual_settings(question)])[0]
    assert not usual.reason
    assert usual.rough_ps <= 1.05 * best


def test_shards_that_travel_for_each_microbatch_ask_for_few_of_them() -> None:
    """The rough bound has both micro batches within 0.03%; what is gathered twice makes one 10% slower."""
    settings = {
        "training.sharding": "fsdp2", "training.global_batch": "32", "training.seq": "4096",
        "training.recompute": "full",
    }  # fmt: skip
    question = asked("llama3-8b", "h100-16", [f"{key}={value}" for key, value in settings.items()]).question
    usual = usual_settings(question)
    assert usual["training.micro_batch"] == "2"
    appraiser = Appraiser(question)
    one = {**usual, "training.micro_batch": "1"}
    assert appraiser.simulated(usual).step_s < 0.92 * appraiser.simulated(one).step_s


def test_sharded_experts_are_dealt_out() -> None:
    """Gathering all experts for each microbatch takes longer than exchanging their tokens."""
    job = described("mixtral-8x7b", "h100-64", {"training.sharding": "fsdp2"})
    assert job.parallel.ep == 8
