"""Out of memory says which stage, the parts, and what would help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simcore.errors import OutOfMemoryError
from simcore.graph import GraphBuilder, MemoryProfile
from simcore.hardware import load_gpu
from simcore.memory import check_fits, peak_memory
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


def test_what_fits_is_returned(gpu):
    graph = job(40, 60)
    assert check_fits(graph, gpu) == peak_memory(graph)


def test_exactly_full_fits(gpu):
    check_fits(job(76, activations_gib=3), gpu)  # 76 + 3 = 80 less 1 reserved


def test_the_fullest_stage_is_named_with_its_parts(gpu):
    with pytest.raises(OutOfMemoryError) as error:
        check_fits(job(80, 96, activations_gib=4), gpu)
    text = str(error.value)
    assert error.value.exit_code == 3
    assert "stage 1 (rank 1) needs 100.00 GiB" in text
    assert "has 79.00 GiB (80.00 GiB less 1.00 GiB reserved)" in text
    assert "parameters 24.00 GiB, gradients 24.00 GiB, optimizer states 48.00 GiB" in text
    assert "activations 4.00 GiB (peak in 'fwd' of microbatch 3)" in text
    assert "2 of 2 rank classes do not fit" in text
    # 100 / 79 rounds up to 2.
    assert "model parallelism 2 times higher would do (now tp=1, pp=2)" in text


def test_recomputation_is_advised_when_it_could_help(gpu):
    with pytest.raises(OutOfMemoryError, match=r"may take 39\.00 GiB: trace with full recomputation"):
        check_fits(job(40, activations_gib=60), gpu)
    with pytest.raises(OutOfMemoryError) as error:
        check_fits(job(40, activations_gib=60, options={"recompute": "full"}), gpu)
    assert "recomputation" not in str(error.value)


def test_a_distributed_optimizer_is_advised_when_it_suffices(gpu):
    # 96 static, half of it optimizer states: over dp=4 that is 48 + 12 = 60.
    dims = {"tp": 1, "pp": 1, "dp": 4}
    with pytest.raises(OutOfMemoryError, match="distributed optimizer would shard its states over dp=4"):
        check_fits(job(96, dims=dims), gpu)
    with pytest.raises(OutOfMemoryError) as error:
        check_fits(job(96, dims=dims, options={"distributed_optimizer": True}), gpu)
    assert "shard its states" not in str(error.value)
