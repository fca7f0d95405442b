"""Out of memory says which stage, the parts, and what would help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcore.graph import GraphBuilder, MemoryProfile
from simcore.hardware import load_gpu
from simcore.memory import OutsideMemory, parts_and_advice, peak_memory
from simcore.units import GIB


@pytest.fixture
def gpu():
    return replace(load_gpu("h800"), hbm_bytes=80 * GIB, reserved_bytes=GIB)


def job(*static_gib, activations_gib=0, options=None, dims=None, **workload):
    """One rank per entry: static memory split evenly into parameters, gradients and twice that of states."""
    build = GraphBuilder(len(static_gib), options=options or {}, dims=dims or {"tp": 1, "pp": 2}, **workload)
    template = build.template("fwd")
    template.compute("keep", alloc_bytes=activations_gib * GIB)
    for rank, static in enumerate(static_gib):
        part = static * GIB // 4
        profile = MemoryProfile(parameters=part, gradients=part, optimizer_states=2 * part)
        build.program([rank], [(template, 3, 0)], stage=rank, memory=profile)
    return build.build()


def lines(graph, gpu):
    outside = OutsideMemory((("driver and context", gpu.reserved_bytes),))
    return "\n".join(parts_and_advice(graph, gpu, peak_memory(graph), outside))


def test_the_fullest_stage_is_named_with_its_parts(gpu):
    text = lines(job(80, 96, activations_gib=4), gpu)
    assert "stage 1 (rank 1) needs about 100.00 GiB" in text
    assert "has 79.00 GiB (80.00 GiB less driver and context 1.00)" in text
    assert "parameters 24.00 GiB, gradients 24.00 GiB, optimizer states 48.00 GiB" in text
    assert "activations 4.00 GiB (peak in 'fwd' of microbatch 3)" in text
    assert "2 of 2 rank classes do not fit" in text
    # 100 / 79 rounds up to 2.
    assert "model parallelism 2 times higher would do (now tp=1, pp=2)" in text


def test_recomputation_is_advised_when_it_could_help(gpu):
    assert "may take 39.00 GiB: trace with full recomputation" in lines(job(40, activations_gib=60), gpu)
    assert "recomputation" not in lines(job(40, activations_gib=60, options={"recompute": "full"}), gpu)


def test_a_distributed_optimizer_is_advised_when_it_suffices(gpu):
    # 96 static, half of it optimizer states: over dp=4 that is 48 + 12 = 60.
    dims = {"tp": 1, "pp": 1, "dp": 4}
    assert "distributed optimizer would shard its states over dp=4" in lines(job(96, dims=dims), gpu)
    assert "shard its states" not in lines(job(96, dims=dims, options={"distributed_optimizer": True}), gpu)
