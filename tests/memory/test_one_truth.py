"""Described and traced programs hold the same memory, stage by stage: both are played on the allocator.

The traced ones are kept in ``tests/models/graphs``.  They are small, so that what is allocated is compared:
segments of 2 and 20 MiB are more than they hold.  Neither has the workspaces of libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from simcore.graph import apply_kernels, load_graph
from simcore.memory.caching import AllocatorSettings
from simcore.memory.played import PlayedStage
from simcore.memory.recorded import played_programs
from tests.models import test_one_truth_titan as titan
from tests.models.traced_cases import CASES
from workloads.edits.described.description import described
from workloads.parallel.job import Job
from workloads.parallel.played import played_stages

GRAPHS = Path(__file__).parents[1] / "models/graphs"
MEGATRON = (
    "context-parallel", "interleaved", "overlapped", "param-gather", "sequence-parallel", "uneven", "experts",
)  # fmt: skip
#: PyTorch's DDP (buckets beside gradients, which go in the step) and FSDP.
TORCH = (
    "ddp-accumulate", "ddp-checkpoint-first", "ddp-frozen", "fsdp1", "fsdp2-checkpoint", "hsdp",
)  # fmt: skip
WITHIN = dict.fromkeys(TORCH, 0.001)


def pairs(name: str) -> Iterator[tuple[PlayedStage, PlayedStage]]:
    graph = load_graph(GRAPHS / name)
    if name in MEGATRON:
        graph = apply_kernels(graph, "megatron")
        job = Job.of(described(graph.workload, "megatron"))
    elif name in TORCH:
        job = CASES[name].job(batch_first=True)
        if "adam" not in CASES[name].arguments:
            sgd = job.training.model_copy(update={"optimizer_bytes_per_parameter": 0})
            job = replace(job, training=sgd)
    else:
        job = titan.job(name.removeprefix("titan-"))
    traced = played_programs(graph, {}, AllocatorSettings(), 0, near=0)
    return zip(traced, played_stages(job), strict=True)


@pytest.mark.parametrize(
    "name", [*MEGATRON, *TORCH, "titan-cp", "titan-tp", "titan-ep", "titan-fsdp", "titan-pp"]
)
def test_a_description_allocates_what_a_trace_does(name: str) -> None:
    for traced, made in pairs(name):
        assert traced.stage == made.stage
        assert made.memory.peak_allocated == pytest.approx(
            traced.memory.peak_allocated, rel=WITHIN.get(name, 0.02)
        )
