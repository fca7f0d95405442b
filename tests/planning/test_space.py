"""The space of strategies, and what is refused of it and counted."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from simcore.apps.plan.asking import asked
from simcore.errors import InputError
from simcore.planning.appraisal import Appraiser
from simcore.planning.census import Census, kinds
from simcore.planning.space import AXES, asked_axes, candidates
from workloads.jobs import complete
from workloads.jobs.advice import peak_bytes as memory_of
from workloads.parallel.job import Job
from workloads.parallel.memory import estimate_memory, least_bytes, peak_bytes

SMALL = ["model.layers=4", "training.seq=2048", "training.global_batch=16"]


def question(*settings, cluster="h100-16", framework=None):
    return asked("llama3-8b", cluster, [*SMALL, *settings], framework=framework).question


def census(asks, axes):
    found = Census(asks)
    for one in Appraiser(asks).appraised(list(candidates(asks.ground, axes))):
        found.add(one)
    return found


def test_degrees_are_the_divisors_and_multiply_to_the_cluster():
    # 16 GPUs: tp 1, 2, 4, 8 within a node of 8; pp at most 4 layers; the rest is data parallel.
    asks = question()
    found = list(candidates(asks.ground, asked_axes("tp,pp", asks.said)))
    degrees = [(int(one["parallel.tp"]), int(one["parallel.pp"])) for one in found]
    assert sorted(degrees) == [(tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4) if tp * pp <= 16]
    for settings, (tp, pp) in zip(found, degrees, strict=True):
        assert asks.completed(settings).parallel.dp == 16 // (tp * pp)


def test_a_job_keeps_what_it_says_unless_the_axis_is_asked_for():
    asks = question("parallel.tp=2")
    assert "tp" not in [axis.name for axis, _ in asked_axes("", asks.said)]
    assert {one.get("parallel.tp") for one in candidates(asks.ground, asked_axes("pp", asks.said))} == {None}
    assert {one["parallel.tp"] for one in candidates(asks.ground, asked_axes("tp=1:4", asks.said))} == {
        "1",
        "4",
    }


def test_data_parallelism_takes_what_is_left_whatever_a_job_says():
    asks = question("parallel.dp=2")
    found = list(candidates(asks.ground, asked_axes("tp,pp", asks.said)))
    assert {asks.completed(one).parallel.world_size for one in found} == {16}


@pytest.mark.parametrize(
    ("framework", "schedules", "shardings"),
    [
        ("megatron-core", {"1f1b"}, {"zero1", "ddp"}),
        ("torchtitan-fsdp2", {"1f1b", "gpipe", "zero_bubble", "zb_v", "dualpipe_v"}, {"fsdp2"}),
        ("deepspeed", {"1f1b"}, {"zero1", "zero2", "zero3"}),
    ],
)
def test_a_framework_offers_what_it_runs(framework, schedules, shardings):
    asks = question(framework=framework)
    found = list(candidates(asks.ground, asked_axes("pp,schedule,sharding", asks.said)))
    assert {one["parallel.schedule"] for one in found} == schedules
    assert {one["training.sharding"] for one in found} == shardings
    assert not any(asks.completed(one).warnings for one in found)


@pytest.mark.parametrize(
    ("framework", "most"),
    [("megatron-core", (8, 2, 4)), ("megatron-deepspeed", (8, 2, 4)), ("deepspeed", (1, 1, 1))],
)
def test_what_a_frameworks_file_does_not_deal_out_is_not_proposed(framework, most):
    # 16 GPUs in nodes of 8, 2,048 tokens, 4 layers.
    asks = question(framework=framework)
    found = list(candidates(asks.ground, asked_axes("tp,cp,pp", asks.said)))
    assert tuple(max(int(one[f"parallel.{key}"]) for one in found) for key in ("tp", "cp", "pp")) == most
    named = candidates(asks.ground, asked_axes("tp=1:2", asks.said))  # what is named is tried all the same
    assert [one["parallel.tp"] for one in named] == ["1", "2"]


def test_every_candidate_is_counted_once_with_its_reason():
    asks = question("model.heads=6", "model.kv_heads=6", "model.hidden=768", "model.head_size=128")
    axes = asked_axes("tp,micro_batch", asks.said)
    found = census(asks, axes)
    assert found.num_candidates == len(list(candidates(asks.ground, axes))) == 4 * 4
    # 6 heads: tp 4 and 8 do not divide them, whatever the micro batch.
    assert found.rejected["parallel.tp=4 does not divide 6 attention heads"] == 4
    assert found.rejected["parallel.tp=8 does not divide 6 attention heads"] == 4
    # tp 1 on 16 GPUs: 8 x dp 16 is more than 16 samples, as are 4 x 16 and 2 x 16.
    assert sum("is no multiple of micro_batch" in reason for reason in found.rejected) > 0
    assert len(found.fitting) + sum(found.rejected.values()) == 16


def test_what_does_not_fit_is_what_a_run_refuses():
    asks = asked("llama3-70b", "h100-8", ["training.global_batch=8", "training.seq=2048"]).question
    found = census(asks, asked_axes("tp=4:8,recompute,sharding", asks.said))
    assert not found.fitting
    assert set(found.rejected) == {"out of memory"}
    # What is far from fitting has a bound of what it needs; the leanest is looked at exactly.
    assert all(one.peak_bytes > asks.available_bytes for one in found.every)
    needs = [memory_of(asks.completed(one.settings)) for one in found.every]
    assert all(one.peak_bytes <= need for one, need in zip(found.every, needs, strict=True))
    missing = (min(needs) - asks.available_bytes) / 2**30
    assert f"GPUs with {missing:.1f} GiB more" in found.advice()
    # What would fit is asked of the same closed form: twice the GPUs, by another pipeline stage.
    assert re.search(r"16 of them: tp8 pp2 .* needs [0-9.]+ GiB", found.advice())


def test_a_rule_that_nothing_obeys_is_named():
    asks = question("model.heads=3", "model.kv_heads=3", "model.hidden=384", "model.head_size=128")
    found = census(asks, asked_axes("tp=2:4", asks.said))
    rule = "parallel.tp=2 does not divide 3 attention heads; nearest: parallel.tp=1 or 3"
    assert found.advice() == f"most often (2 of 2): {rule}"


def test_reasons_that_differ_in_numbers_alone_are_one_line():
    rejected = {
        "tp=4 does not divide 6 heads": 3, "tp=8 does not divide 6 heads": 5,
        "tp x cp=2.5 is too much": 4, "zero1 has no room": 2, "zero3 has no room": 1,
    }  # fmt: skip
    found = kinds(rejected)
    # 3 + 5 = 8; what a name ends in is no number.
    assert [(kind.commonest, kind.count, kind.total) for kind in found] == [
        ("tp=8 does not divide 6 heads", 5, 8), ("tp x cp=2.5 is too much", 4, 4),
        ("zero1 has no room", 2, 2), ("zero3 has no room", 1, 1),
    ]  # fmt: skip
    assert str(found[0]) == "tp=8 does not divide 6 heads (5), or other numbers"
    assert str(found[1]) == "tp x cp=2.5 is too much"
    asks = question("model.heads=6", "model.kv_heads=6", "model.hidden=768", "model.head_size=128")
    lines = census(asks, asked_axes("tp,micro_batch", asks.said)).lines()
    assert lines[1] == "  8: parallel.tp=4 does not divide 6 attention heads (4), or other numbers"


def test_memory_of_the_fullest_stage_is_that_of_all_stages():
    draw = random.Random(19)
    kinds = Counter()
    for _ in range(60):
        parallel = {
            "tp": draw.choice([1, 2]), "pp": draw.choice([1, 2, 4]), "virtual_stages": draw.choice([1, 2]),
            "schedule": draw.choice(["1f1b", "gpipe", "zero_bubble", "zb_v", "dualpipe", "dualpipe_v"]),
        }  # fmt: skip
        training = {
            "global_batch": draw.choice([32, 256]), "seq": 2048, "sharding": draw.choice(["zero1", "fsdp2"]),
        }  # fmt: skip
        try:
            done = complete(
                {"model": "llama3-8b", "parallel": parallel, "training": training}, "a job", num_gpus=16
            )
            schedule, _ = done.schedule()
        except InputError:
            continue
        job = Job(done.model, done.parallel, done.training, done.software)
        every = [estimate_memory(job, stage, actions).total for stage, actions in enumerate(schedule)]
        assert least_bytes(job) <= peak_bytes(job) == max(every)
        kinds[done.parallel.schedule] += 1
    assert len(kinds) >= 5


def test_unknown_axes_are_named_with_the_nearest():
    with pytest.raises(InputError, match="unknown axis 'microbatch'; did you mean 'micro_batch'"):
        asked_axes("tp,microbatch", ())
    with pytest.raises(InputError, match="tp is named twice"):
        asked_axes("tp,tp=2", ())
    with pytest.raises(InputError, match="values have colons"):
        asked_axes("tp=2:", ())
    wrong = {
        "tp=0": "must be more than 0", "recompute=fulll": "did you mean 'full'", "pp=two": "a whole number",
        "schedule=1f1b:gpip": "did you mean 'gpipe'", "order=tp-cp-ep-dp-p": "unknown axis 'p'",
        "recompute_modules=layernorms": "did you mean 'layernorm'", "stage_layers=7+x": "a whole number",
    }  # fmt: skip
    for word, reason in wrong.items():
        with pytest.raises(InputError, match=reason):
            asked_axes(word, ())
    assert len({axis.name for axis in AXES}) == len(AXES)


def test_usual_stands_for_the_axes_that_are_searched_unasked():
    asks = question("training.micro_batch=2")
    usual = [axis.name for axis, _ in asked_axes("", asks.said)]
    more = {axis.name: values for axis, values in asked_axes("recompute_layers,usual,tp=2:4", asks.said)}
    assert {*more} == {*usual, "recompute_layers"} and "micro_batch" not in more
    assert more["tp"] == ["2", "4"] and more["pp"] == ()


def test_what_is_kept_may_wait_in_the_hosts_memory():
    # Queries, keys, values and the output of all tokens are kept whole; with the modules in the host's
    # memory less is, and of full recomputation, which keeps nothing of them, nothing is offered.
    asks = question()
    found = Appraiser(asks).appraised(
        list(candidates(asks.ground, asked_axes("recompute,offload", asks.said)))
    )
    peaks = {(one.settings["training.recompute"], one.settings.get("training.offload")): one for one in found}
    assert {how for how, moved in peaks if moved} == {"none", "selective"}
    every = "[attn_norm,core_attn,attn_proj,mlp_norm]"
    assert peaks["none", every].peak_bytes < peaks["none", "[core_attn]"].peak_bytes
    assert peaks["none", "[core_attn]"].peak_bytes < peaks["none", "[]"].peak_bytes
    assert "offload:core_attn" in asks.named(peaks["none", "[core_attn]"].settings)
    assert not any(
        "offload" in one
        for one in candidates(question(framework="nemo-24.07").ground, asked_axes("offload", asks.said))
    )
    with pytest.raises(InputError, match="no experts, whose moe_act"):
        memory_of(asks.completed({"training.offload": "[moe_act]"}))


@pytest.mark.parametrize(
    ("framework", "offers"), [("megatron-core", {"true", "false"}), ("deepspeed", {"false"})]
)
def test_overlap_that_a_framework_has_is_offered_to_jobs_that_say_no_degree(framework, offers):
    # Completed without a degree the job has nothing to overlap; its candidates have.
    asks = question(framework=framework)
    assert not asks.ground.base.training.tp_overlap
    found = list(candidates(asks.ground, asked_axes("tp=2,tp_overlap", asks.said)))
    assert {one["training.tp_overlap"] for one in found} == offers
    assert {asks.completed(one).training.tp_overlap for one in found} == {one == "true" for one in offers}


@pytest.mark.parametrize(("framework", "gathers"), [("megatron-core", "true"), ("deepspeed", "false")])
def test_gathers_are_overlapped_only_where_the_framework_does(framework, gathers):
    asks = question(framework=framework)
    found = [
        (one["training.overlap_grad_reduce"], one["training.overlap_param_gather"])
        for one in candidates(asks.ground, asked_axes("sharding=zero1,grad_overlap", asks.said))
    ]
    assert found == [("true", gathers), ("false", "false")]
