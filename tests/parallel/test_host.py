"""Eager frameworks: what the host does for each kernel bounds the step where tensors are small."""

from __future__ import annotations

import pytest

from simcore.graph import Graph, OpKind
from simcore.hardware import load_gpu
from tests.parallel.jobs import model, step
from workloads.models.software import SoftwareSpec
from workloads.parallel import ParallelSpec, TrainingSpec
from workloads.parallel.generate import generate


def graph(software: SoftwareSpec) -> Graph:
    training = TrainingSpec(global_batch=1, micro_batch=1, seq=64)
    return generate(model(4), ParallelSpec(), training, software)


def num_kernels(made: Graph) -> int:
    played = made.flat_ops(made.programs[0]).row
    return int((made.ops.kind[played] == OpKind.COMPUTE).sum())


def test_small_tensors_are_bound_by_the_host() -> None:
    eager = graph(SoftwareSpec(host_us_per_kernel=30.0))
    seconds = step(eager).step_ps * 1e-12
    # 30 us of Python and the launch call for each kernel, one after the other; kernels themselves hide.
    each = 30e-6 + load_gpu("h100-sxm").launch_overhead_s
    assert seconds == pytest.approx(num_kernels(eager) * each, rel=0.05)


def test_graphs_take_the_host_away() -> None:
    eager = step(graph(SoftwareSpec(host_us_per_kernel=30.0))).step_ps
    captured = graph(SoftwareSpec(cuda_graphs=True, host_us_per_kernel=30.0))
    kept = step(captured).step_ps * 1e-12
    # All of the host's 30 us, and what launch calls last beyond the kernels' own starts, which are left.
    assert kept < eager * 1e-12 / 5
    assert kept > num_kernels(captured) * load_gpu("h100-sxm").kernel_gap_s
    assert kept <= step(graph(SoftwareSpec())).step_ps * 1e-12


def test_exchanges_of_experts_hide_behind_another_microbatch() -> None:
    """What an exchange takes is no longer in the step, and the step is never shorter than its compute."""
    large = model(4, experts=8).model_copy(update={"hidden": 1024, "ffn": 1024})
    parallel = ParallelSpec(dp=8, ep=8)
    times = {}
    for overlap in (False, True):
        training = TrainingSpec(micro_batch=8, global_batch=256, seq=1024, ep_overlap=overlap)
        made = generate(large, parallel, training)
        result = step(made)
        ops = made.flat_ops(made.programs[0]).row
        spent = result.times[0].end_ps - result.times[0].start_ps
        exchange = int(spent[made.ops.collective.equals("all_to_all")[ops]].sum())
        compute = int(result.alone_ps[0].sum())
        times[overlap] = result.step_ps
        assert times[overlap] >= compute
    assert 0.5 * exchange < times[False] - times[True] < 1.5 * exchange


def test_exchanges_hide_only_where_another_microbatch_runs() -> None:
    """Of four microbatches on two stages the first forward and the last backward stand alone, on both."""
    parallel = ParallelSpec(pp=2, dp=4, ep=4)
    training = TrainingSpec(global_batch=16, ep_overlap=True)
    made = generate(model(2, experts=4), parallel, training)
    exchanges = made.ops.collective.equals("all_to_all")
    aside = made.ops.stream.equals("ep")
    for program in made.programs:
        ops = made.flat_ops(program).row
        # One layer: two exchanges forward and two backward for each microbatch.
        assert int(exchanges[ops].sum()) == 4 * 4
        assert int((exchanges & aside)[ops].sum()) == 3 * 4


def test_large_tensors_hide_the_host() -> None:
    training = TrainingSpec(global_batch=1, micro_batch=1, seq=65536)
    plain, eager = (
        step(generate(model(1), ParallelSpec(), training, SoftwareSpec(host_us_per_kernel=us))).step_ps
        for us in (0.0, 5.0)
    )
    assert plain <= eager < 1.2 * plain


def test_graphs_of_some_modules_leave_the_rest_to_the_host() -> None:
    def eager_us(graphs: object) -> float:
        software = SoftwareSpec.model_validate({"cuda_graphs": graphs, "host_us_per_kernel": 30.0})
        made = graph(software)
        played = made.flat_ops(made.programs[0]).row
        return float(made.ops.recorded_ps[played][made.ops.kind[played] == OpKind.HOST].sum()) / 1e6

    whole, modules = eager_us(False), eager_us("modules")
    # Attention and norms of a layer are graphs; products of the feed-forward block, and both ends, are not.
    assert 0.2 * whole < modules < 0.7 * whole
    assert eager_us(True) == 0
