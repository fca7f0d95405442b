"""Who communicates with whom, said of a job and read from its graph."""

from __future__ import annotations

import pytest

from simcore.graph.communicators import communicators_of
from workloads.jobs import complete
from workloads.parallel.communicators import communicators, outside_holders
from workloads.parallel.job import Job

JOBS = [
    ("llama3-8b", 16, {"tp": 2, "pp": 2}, {}),
    ("llama3-8b", 64, {"tp": 4, "pp": 4, "cp": 2}, {}),
    ("llama3-8b", 16, {"pp": 4, "virtual_stages": 2}, {}),
    ("mixtral-8x7b", 16, {"ep": 8, "pp": 2}, {}),
    ("llama3-8b", 8, {}, {"sharding": "fsdp2"}),
    ("llama3-8b", 16, {"tp": 2}, {"sharding": "ddp"}),
]


def described(model, gpus, parallel, training, **software):
    content = {
        "model": model, "parallel": parallel,
        "training": {"seq": 2048, "global_batch": 64, **training}, "software": software,
    }  # fmt: skip
    return complete(content, "a job", num_gpus=gpus, generation="hopper")


@pytest.mark.parametrize(("model", "gpus", "parallel", "training"), JOBS)
def test_a_job_has_the_communicators_of_its_graph(model, gpus, parallel, training) -> None:
    job = described(model, gpus, parallel, training)
    graph = job.graph()
    for program in (graph.programs[0], graph.programs[-1]):
        said = {one.name: one for one in communicators(Job.of(job), program.stage)}
        read = {one.name: one for one in communicators_of(graph, program)}
        assert said.keys() == read.keys()
        for name, one in said.items():
            assert (one.ranks, one.peers) == (read[name].ranks, read[name].peers)
            assert {kind for kind, _ in one.calls} == {kind for kind, _ in read[name].calls}


def test_buffers_of_other_libraries() -> None:
    model, tokens = "llama3-8b", 2048 * 4096 * 2  # bytes of a microbatch's hidden states in bf16
    overlapped = {"tp_overlap": True, "micro_batch": 1}
    engine = described(model, 8, {"tp": 2}, overlapped, preset="megatron-core")
    assert ("user buffers", 10 * tokens) in outside_holders(Job.of(engine)).buffers
    torch = described(model, 8, {"tp": 2}, overlapped, preset="torchtitan-fsdp2")
    assert ("symmetric memory", 2 * tokens // 2) in outside_holders(Job.of(torch)).buffers
    flex = described("mixtral-8x7b", 8, {"ep": 8}, {"micro_batch": 1}, moe_dispatcher="flex")
    # DeepEP: 12 channels x 8 ranks x 288 tokens of 4,096 x 2 bytes and what stands beside each.
    assert ("exchange of experts", 12 * 8 * 288 * (8192 + 8 + 128 * 12 + 512)) in outside_holders(
        Job.of(flex)
    ).buffers
