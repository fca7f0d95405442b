"""Recorded programs on the caching allocator: two steps, with what the step before left."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.graph import GraphBuilder, MemoryProfile
from simcore.memory import peak_memory
from simcore.memory.caching import AllocatorSettings, play
from simcore.memory.recorded import HeldSizes, played_programs, recorded_lifetimes

MIB = 1 << 20


def job(microbatches=1, warm_up=0, stages=1):
    """A forward keeps 24 MiB and needs 12 beside; a backward releases the 24.  The first one makes a gradient
    of 16 MiB, behind the release of the step before's.  Parameters are 16 MiB, states 32.
    """
    build = GraphBuilder(stages)
    forward, backward, again, optimizer = map(build.template, ("fwd", "bwd", "bwd", "optimizer"))
    kept = forward.compute("keep", alloc_bytes=24 * MIB)
    scratch = forward.compute("mm", op_class="gemm", alloc_bytes=12 * MIB)
    forward.free(scratch, 12 * MIB, owner=scratch)
    backward.free(None, 16 * MIB)
    made = backward.compute("grad", op_class="gemm", alloc_bytes=16 * MIB)
    backward.free(made, 24 * MIB, owner=kept)
    again.free(again.compute("add", op_class="gemm"), 24 * MIB, owner=kept)
    optimizer.compute("step")
    forwards = [(forward, m, 0) for m in range(microbatches)]
    backwards = [(again if m else backward, m, 0) for m in range(microbatches)]
    steady = [pair for both in zip(forwards[warm_up:], backwards, strict=False) for pair in both]
    skeleton = [*forwards[:warm_up], *steady, *backwards[microbatches - warm_up :], (optimizer, -1, 0)]
    profile = MemoryProfile(parameters=16 * MIB, gradients=16 * MIB, optimizer_states=32 * MIB)
    for stage in range(stages):
        build.program([stage], skeleton, stage=stage, memory=profile)
    return build.build()


def levels(lifetimes):
    return (play(lifetimes.events).allocated // MIB).tolist()


def test_states_come_with_the_first_step_and_gradients_stay_for_the_next():
    graph = job()
    found = levels(recorded_lifetimes(graph, graph.programs[0]))
    # Parameters; kept, beside, beside gone; gradient, kept gone; states.  The second step: kept, beside and
    # gone; the first step's gradient goes; its own comes, kept gone.
    assert found == [16, 40, 52, 40, 56, 32, 64, 88, 100, 88, 72, 88, 64]


def test_sums_that_one_pass_makes_and_another_releases_are_there_once():
    """Two sums of 16 and 8 MiB, made at once by the first backward and reduced behind the last one."""
    build = GraphBuilder(1)
    forward, backward, again, exchange, optimizer = map(
        build.template, ("fwd", "bwd", "bwd", "exchange", "optimizer")
    )
    kept = forward.compute("keep", alloc_bytes=4 * MIB)
    backward.free(backward.compute("sums", alloc_bytes=24 * MIB), 4 * MIB, owner=kept)
    again.free(again.compute("add"), 4 * MIB, owner=kept)
    reduced = exchange.compute("reduce", alloc_bytes=2 * MIB)
    for size in (16, 8):
        exchange.free(reduced, size * MIB)
    exchange.free(reduced, 2 * MIB, owner=reduced)
    optimizer.compute("step")
    skeleton = [
        (forward, 0, 0), (backward, 0, 0), (forward, 1, 0), (again, 1, 0), (exchange, -1, 0),
        (optimizer, -1, 0),
    ]  # fmt: skip
    build.program([0], skeleton, memory=MemoryProfile(parameters=MIB))
    graph = build.build()
    found = recorded_lifetimes(graph, graph.programs[0])
    # Kept, the sums (two storages), kept gone; kept again and gone; the reduction beside the sums, all gone.
    step = [5, 13, 29, 25, 29, 25, 27, 25, 17, 1]
    assert levels(found) == [1, *step, *step]


def test_what_a_graph_calls_its_peak_is_the_second_steps():
    graph = job()
    # What lasts is 16 + 16 + 32, 24 and 12 come beside it.
    assert peak_memory(graph)[0].total == 100 * MIB
    assert play(recorded_lifetimes(graph, graph.programs[0]).events).peak_allocated == 100 * MIB


def test_each_thread_that_multiplies_has_a_workspace():
    graph = job()
    without = play(recorded_lifetimes(graph, graph.programs[0]).events)
    found = recorded_lifetimes(graph, graph.programs[0], workspace_bytes=32 * MIB)
    assert play(found.events).peak_allocated == without.peak_allocated + 2 * 32 * MIB
    names = [one.name for one in found.holders if one.category == "buffers"]
    assert names == ["workspace of products"]


def test_storages_that_last_are_made_one_by_one_where_they_are_known():
    graph = job()
    sizes = HeldSizes((("parameters", (10 * MIB, 2 * MIB)), ("optimizer states", (20 * MIB, 12 * MIB))))
    found = recorded_lifetimes(graph, graph.programs[0], sizes)
    # 10 + 2 and what is missing of 16: 4.
    assert levels(found)[:3] == [10, 12, 16]
    # Segments: 10, and one of 20 for 2 and 4.
    assert play(found.events).reserved[2] == 30 * MIB


def test_holders_are_told_by_what_becomes_of_storages():
    graph = job()
    found = recorded_lifetimes(graph, graph.programs[0])
    assert {one.name: one.category for one in found.holders} == {
        "parameters": "parameters", "keep": "activations", "mm": "temporaries", "grad": "gradients",
        "optimizer states": "optimizer states",
    }  # fmt: skip
    at = int(np.argmax(play(found.events).allocated))
    assert found.actions[found.action[at]].kind == "F"


@given(microbatches=st.integers(1, 9), warm_up=st.integers(0, 4))
@settings(max_examples=25, deadline=None)
def test_long_pipelines_hold_what_short_ones_do(microbatches, warm_up):
    warm_up = min(warm_up, microbatches - 1)
    graph = job(microbatches, warm_up)
    (found,) = played_programs(graph, {}, AllocatorSettings(), 0, 0.0)
    whole = play(recorded_lifetimes(graph, graph.programs[0]).events)
    assert found.memory.peak_allocated == whole.peak_allocated
    assert found.memory.peak_reserved == whole.peak_reserved
    # Parameters, states and a gradient, warm_up + 1 microbatches in flight, 12 beside.
    assert found.memory.peak_allocated == (16 + 32 + 16 + 24 * (warm_up + 1) + 12) * MIB
    assert (found.memory.reserved >= found.memory.allocated).all()


def test_of_each_stage_the_fullest_program_is_played():
    graph = job(stages=2)
    programs = list(graph.programs)
    programs[1] = dataclasses.replace(
        programs[1], memory=dataclasses.replace(programs[1].memory, optimizer_states=400 * MIB)
    )
    graph = dataclasses.replace(graph, programs=tuple(programs))
    assert [one.stage for one in played_programs(graph, {}, AllocatorSettings(), 0, 0.9)] == [1]
    assert [one.stage for one in played_programs(graph, {}, AllocatorSettings(), 0, 0.0)] == [0, 1]


@pytest.mark.parametrize("near", [0.0, 0.9])
def test_a_graph_without_allocations_has_nothing_to_play(near):
    build = GraphBuilder(1)
    template = build.template("fwd")
    template.compute("mm")
    build.program([0], [(template, 0, 0)])
    assert played_programs(build.build(), {}, AllocatorSettings(), 0, near) == []
