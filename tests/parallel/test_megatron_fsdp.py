"""Megatron-FSDP: shards beside masters, what is gathered ahead, and buffers of gradients that wait."""

from __future__ import annotations

import pytest

from simcore.memory.caching import play
from tests.parallel.jobs import model
from workloads.models.software import SoftwareSpec
from workloads.parallel import ParallelSpec, TrainingSpec, unit_storages
from workloads.parallel.generate import schedule_of
from workloads.parallel.job import Job
from workloads.parallel.lifetimes import stage_lifetimes
from workloads.parallel.memory import estimate_memory
from workloads.parallel.static import gathered_bytes, static_memory

LAYERS = 6


def made(**training) -> Job:
    said = {"sharding": "zero3", "global_batch": 8, "micro_batch": 1, "seq": 64, **training}
    software = SoftwareSpec(transformer_engine=True, grad_accumulation_fusion=False)
    return Job(model(LAYERS, tied=False), ParallelSpec(dp=4), TrainingSpec(**said), software)


def most_held(job: Job, name: str) -> int:
    """Storages of layers of that name, at most at once; all are released in the end."""
    schedule, _ = schedule_of(job.parallel, job.num_microbatches)
    found = stage_lifetimes(job, 0, schedule[0])
    live, most = set(), 0
    for k in range(len(found.events)):
        storage, num_bytes = int(found.events.storage[k]), int(found.events.num_bytes[k])
        if num_bytes < 0:
            live.discard(storage)
            continue
        holder = found.holders[int(found.holder[k])]
        if holder.name == name and holder.layer >= 0:
            live.add(storage)
            most = max(most, len(live))
    assert not live
    return most


def test_what_is_gathered_has_shards_beside_fp32_masters():
    job = made()
    assert job.by_megatron_fsdp
    static = static_memory(job, 0)
    numel = job.numel(job.pieces.all_pieces)
    # dp = 4: of 2 bytes in bf16, 4 of the master and 8 of moments, and 4 of summed gradients a quarter each.
    assert static.parameters == pytest.approx(2 * numel / 4, rel=1e-4)
    assert static.states == pytest.approx(12 * numel / 4, rel=1e-4)
    assert static.gradients == pytest.approx(4 * numel / 4, rel=1e-4)


@pytest.mark.parametrize(
    ("queue", "gathered", "buffers"),
    # Of 1e9 elements all layers. Of one and a half layers: ahead of the layer at hand until three quarters
    # are, which is one; buffers of one and of a second layer, for the first is awaited before the third.
    [(None, LAYERS, LAYERS), (1.5, 2, 3)],
)
def test_layers_are_gathered_ahead_and_buffers_of_gradients_wait(monkeypatch, queue, gathered, buffers):
    job = made()
    layer = job.numel((job.pieces.layers[0],))
    if queue:
        monkeypatch.setattr(unit_storages, "MEGATRON_QUEUE", int(queue * layer))
    assert most_held(job, "all_gather") == gathered
    # One more that is filled while those wait.
    assert most_held(job, "buffer of a unit") == buffers


def test_the_closed_form_walks_the_same_storages():
    job = made(seq=512)
    schedule, _ = schedule_of(job.parallel, job.num_microbatches)
    played = play(stage_lifetimes(job, 0, schedule[0]).events)
    estimate = estimate_memory(job, 0, schedule[0])
    assert estimate.total - estimate.fragmentation == pytest.approx(played.peak_allocated, rel=0.02)


def test_in_fp8_weights_of_products_alone_are_gathered_in_8_bits():
    job = made(precision="fp8", param_gather_dtype="fp8")
    head = job.chunks[0][0].pieces[-1:]
    # The head's product is no Transformer Engine's: 2 bytes an element.
    assert gathered_bytes(job, head) == 2 * job.numel(head)
    layer = job.pieces.layers[:1]
    assert job.numel(layer) < gathered_bytes(job, layer) < 1.05 * job.numel(layer)
