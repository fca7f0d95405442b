"""A stage's storages through a step: nothing leaks, and the peak is where the schedule holds most."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simcore.memory.caching import play
from tests.parallel.jobs import jobs, model
from workloads.jobs import complete
from workloads.models.software import SoftwareSpec
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import schedule_of
from workloads.parallel.job import Job
from workloads.parallel.lifetimes import stage_lifetimes
from workloads.parallel.memory import estimate_memory
from workloads.parallel.played import played_stages
from workloads.parallel.static import static_memory

STATIC = {"parameters", "gradients", "optimizer states"}


def lifetimes(job, *, forward_only=False):
    schedule, _ = schedule_of(job.parallel, job.num_microbatches, forward_only=forward_only)
    return [stage_lifetimes(job, stage, actions) for stage, actions in enumerate(schedule)], schedule


def described(model, **words):
    made = complete({"model": model, **words}, "a job", num_gpus=64, generation="hopper")
    return Job(made.model, made.parallel, made.training, made.software)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs())
def test_what_a_step_allocates_it_releases_but_for_what_lives_through_it(job):
    job = Job(*job, SoftwareSpec())
    found, _ = lifetimes(job)
    for stage, one in enumerate(found):
        live = play(one.events).live
        made = {
            int(storage): (one.holders[holder].category, int(num_bytes))
            for storage, num_bytes, holder in zip(
                one.events.storage, one.events.num_bytes, one.holder, strict=True
            )
            if num_bytes >= 0 and storage in live
        }
        static = static_memory(job, stage)
        for category, num_bytes in (
            ("parameters", static.parameters), ("optimizer states", static.states),
            ("gradients", static.gradients), ("buffers", static.buckets + static.workspace),
        ):  # fmt: skip
            found_bytes = sum(size for own, size in made.values() if own == category)
            # FSDP's last reduction is still held.
            assert found_bytes == num_bytes or (category == "buffers" and job.is_fsdp)
        others = {category for category, _ in made.values()} - STATIC - {"buffers"}
        assert others == set()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs(), st.sampled_from(["all", "none", "layers.*[02].*mlp"]))
def test_the_closed_form_is_what_is_played_stage_by_stage(job, trainable):
    model, parallel, training = job
    job = Job(model, parallel, training.model_copy(update={"trainable": trainable}), SoftwareSpec())
    found, schedule = lifetimes(job, forward_only=trainable == "none")
    for stage, one in enumerate(found):
        total = estimate_memory(job, stage, schedule[stage])
        assert total.total - total.fragmentation == pytest.approx(play(one.events).peak_allocated, rel=0.02)


def test_the_first_stage_of_1f1b_peaks_with_as_many_microbatches_as_stages():
    job = described("llama3-8b", parallel={"tp": 2, "pp": 4}, training={"global_batch": 64})
    assert job.num_microbatches == 8
    found, _ = lifetimes(job)
    first = found[0]
    played = play(first.events)
    action = first.actions[int(first.action[played.peak_at])]
    # Warm-up is 3 forwards; with the fourth under way, or when its backward comes first, most is held.
    assert (action.kind, action.microbatch) in {("F", 3), ("B", 0)}
    begins = [int(np.flatnonzero(first.action == place)[0]) - 1 for place in range(5)]
    held = np.diff(played.allocated[begins])
    each = sum(piece.saved_bytes for piece in job.chunks[0][0].pieces)
    # Each forward leaves what its pieces keep, in blocks that may be up to 1 MiB larger.
    assert np.all(held[:3] >= each)
    assert np.all(held[:3] <= each * 1.05)


def test_what_graphs_make_is_in_a_pool_of_its_own():
    said = {"parallel": {"tp": 2, "pp": 4}, "training": {"global_batch": 64}}
    found = {}
    for kind in (False, "modules", True):
        job = described("llama3-8b", **said, software={"cuda_graphs": kind})
        lived, schedule = lifetimes(job)
        one = lived[0]
        made = one.events.num_bytes >= 0
        pooled = {
            one.holders[holder].module for holder in one.holder[made & (one.events.owner == 1)].tolist()
        }
        found[kind] = play(one.events), pooled
        total = estimate_memory(job, 0, schedule[0])
        assert total.total - total.fragmentation == pytest.approx(found[kind][0].peak_allocated, rel=0.02)
    assert found[False][1] == set()
    # Attention, norms: what one graph after another captures; the feed-forward block stays outside.
    assert any("self_attention" in module for module in found["modules"][1])
    assert not any("linear_fc1" in module for module in found["modules"][1])
    assert any("linear_fc1" in module for module in found[True][1])
    eager, *graphed = (found[kind][0] for kind in (False, "modules", True))
    # The same storages live as long: as much is allocated (rounding apart), and two pools reserve no less.
    for played in graphed:
        assert played.peak_allocated == pytest.approx(eager.peak_allocated, rel=1e-3)
    assert found["modules"][0].peak_reserved >= eager.peak_reserved


def test_zero1_of_deepspeed_releases_gradients_in_its_step_and_makes_them_anew():
    spec = model(4, tied=False)
    training = TrainingSpec(
        engine="deepspeed", sharding="zero1", precision="bf16", grad_dtype="bf16", grad_reduce_dtype="bf16",
        optimizer_bytes_per_parameter=12, bucket_parameters=10_000, global_batch=16, micro_batch=1, seq=128,
    )  # fmt: skip
    job = Job(spec, ParallelSpec(dp=4), training, SoftwareSpec(grad_accumulation_fusion=False))
    assert job.gradients_go_in_step
    (one,), schedule = lifetimes(job)
    numel = job.numel(job.chunks[0][0].pieces)
    sizes = {}
    for num_bytes, holder in zip(one.events.num_bytes, one.holder, strict=True):
        if num_bytes >= 0:
            sizes.setdefault(one.holders[holder].name, set()).add(int(num_bytes))
    # A share of a quarter of all; the largest are embedding and head, of 1,000 rows padded to 1,024.
    share = -(-numel // 4)
    assert sizes["gradients in fp32"] == {4 * share} and sizes["flat gradients"] == {2 * share}
    assert sizes["gradient in fp64"] == {8 * min(1024 * 256, share)}
    assert sizes["gradients to reduce"] == {2 * 1024 * 256}  # a gradient is not cut for a bucket
    with_buffer = replace(job, training=training.model_copy(update={"bucket_buffer": True}))
    # Today's ZeRO-1 has a whole bucket's buffer instead, 2 bytes of each of 10,000 elements.
    assert static_memory(with_buffer, 0).buckets == 2 * 10_000 and static_memory(job, 0).buckets == 0
    assert not any(one.name == "gradients to reduce" for one in lifetimes(with_buffer)[0][0].holders)
    played = play(one.events)
    live = {
        one.holders[int(one.holder[np.flatnonzero(one.events.storage == k)[0]])].category for k in played.live
    }
    assert "gradients" not in live
    # Played, a gradient of an activation that also has a bias' stays with the gradients: 4 of 128 KiB.
    total = estimate_memory(job, 0, schedule[0])
    assert total.total - total.fragmentation == pytest.approx(played.peak_allocated, rel=0.03)


def test_stages_of_pytorchs_pipelines_have_buffers_for_all_messages_and_keep_what_they_sent():
    spec = model(4, tied=False)
    training = TrainingSpec(global_batch=6, micro_batch=1, seq=128, sharding="ddp")
    peaks = []
    for per_peer in (False, True):
        parallel = ParallelSpec(pp=3, stage_layers=(1, 2, 1))
        one = training.model_copy(update={"p2p_per_peer": per_peer})
        found, schedule = lifetimes(Job(spec, parallel, one, SoftwareSpec()))
        of_backward = []
        for stage, made in enumerate(found):
            total = estimate_memory(Job(spec, parallel, one, SoftwareSpec()), stage, schedule[stage])
            played = play(made.events)
            whole = total.total - total.fragmentation
            assert whole == pytest.approx(played.peak_allocated, rel=0.02)
            is_backward = [number >= 0 and made.actions[number].kind == "B" for number in made.action]
            of_backward.append(int(played.allocated[is_backward].max()))
        peaks.append(of_backward)
    hidden, logits = 128 * 256 * 2, 128 * 1024 * 2
    # The first stage has three microbatches in flight: six gradients to receive for the one that is there,
    # and three outputs.  The middle one two: six of each kind for a gradient and two inputs, and two outputs.
    # The last one's loss: six inputs for one, and logits in bf16.
    more = [b - a for a, b in zip(*peaks, strict=True)]
    assert more == [(6 - 1 + 3) * hidden, (12 - 1 - 2 + 2) * hidden, (6 - 1) * hidden + logits]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama3-8b", {"training": {"sharding": "fsdp2"}}),
        ("llama3-8b", {"training": {"sharding": "fsdp2", "recompute": "full"}}),
        ("llama3-70b", {"parallel": {"tp": 8, "pp": 4}}),
        ("gpt3-175b", {"parallel": {"tp": 8, "pp": 4, "virtual_stages": 2}}),
        ("mixtral-8x7b", {"parallel": {"tp": 8, "pp": 4}}),
    ],
)
def test_the_closed_form_is_near_what_the_allocator_holds(name, words):
    job = described(name, **words)
    for stage in played_stages(job, near=0.9):
        assert stage.closed_form_bytes == pytest.approx(stage.memory.peak_reserved, rel=0.08)
