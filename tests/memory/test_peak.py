"""Peak memory is what a walk over allocations and releases finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.graph import GraphBuilder, MemoryProfile
from simcore.memory import peak_memory

K = 1024


def one_f_one_b_memory(warm_up, microbatches):
    """A forward keeps 8 K for its backward and needs 4 K beside; a backward needs 2 K and frees 8 K."""
    build = GraphBuilder(1)
    forward, backward = build.template("fwd"), build.template("bwd")
    kept = forward.compute("keep", alloc_bytes=8 * K)
    scratch = forward.compute("scratch", alloc_bytes=4 * K)
    forward.free(scratch, 4 * K, owner=scratch)
    first = backward.compute("grad", alloc_bytes=2 * K)
    backward.free(first, 8 * K, owner=kept)
    backward.free(first, 2 * K, owner=first)
    backward.compute("rest")
    forwards = [(forward, m, 0) for m in range(microbatches)]
    backwards = [(backward, m, 0) for m in range(microbatches)]
    steady = [pair for both in zip(forwards[warm_up:], backwards, strict=False) for pair in both]
    skeleton = [*forwards[:warm_up], *steady, *backwards[microbatches - warm_up :]]
    profile = MemoryProfile(parameters=100, gradients=200, optimizer_states=300)
    build.program([0], skeleton, memory=profile)
    return build.build()


@pytest.mark.parametrize("warm_up", [0, 1, 3])
def test_peak_counts_the_microbatches_in_flight(warm_up):
    # warm_up + 1 microbatches are kept when the next forward needs its 4 K of scratch.
    memory = peak_memory(one_f_one_b_memory(warm_up, 8))[0]
    assert memory.activations == (warm_up + 1) * 8 * K + 4 * K
    assert memory.total == 600 + memory.activations
    assert (memory.peak_template, memory.peak_microbatch) == ("fwd", warm_up)


def test_the_first_peak_is_reported():
    memory = peak_memory(one_f_one_b_memory(0, 4))[0]
    assert memory.peak_instance == 0


def test_releases_at_the_start_of_a_template():
    build = GraphBuilder(1)
    make, drop = build.template("fwd"), build.template("bwd")
    kept = make.compute("keep", alloc_bytes=8 * K)
    drop.free(None, 8 * K, owner=kept)
    drop.compute("after", alloc_bytes=8 * K)
    build.program([0], [(make, 0, 0), (drop, 0, 0)])
    # Released before the second op allocates: never both at once.
    assert peak_memory(build.build())[0].activations == 8 * K


def test_blocks_are_rounded_to_512_bytes():
    build = GraphBuilder(1)
    template = build.template("fwd")
    one = template.compute("pair", alloc_bytes=513 + 3)  # two storages: 1024 and 512 bytes of blocks
    template.free(one, 513, owner=one)
    template.free(one, 3, owner=one)
    build.program([0], [(template, 0, 0)] * 3)
    assert peak_memory(build.build())[0].activations == 1024 + 512


def test_recorded_peak_without_allocations():
    build = GraphBuilder(1)
    template = build.template("fwd")
    template.compute("gemm")
    build.program([0], [(template, 0, 0)], memory=MemoryProfile(parameters=5, activations_peak=70, peak=75))
    memory = peak_memory(build.build())[0]
    assert memory.total == 75
    assert memory.peak_instance == -1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_peak_equals_a_walk(data):
    build = GraphBuilder(1)
    templates, sizes = [], []
    for number in range(data.draw(st.integers(1, 3))):
        template = build.template(f"t{number}")
        allocs = data.draw(st.lists(st.integers(0, 40).map(lambda k: 512 * k), min_size=1, max_size=5))
        ops = [template.compute("op", alloc_bytes=size) for size in allocs]
        freed = {}
        for index, size in enumerate(allocs):
            after = data.draw(st.integers(index, len(allocs)))
            if after < len(allocs):
                template.free(ops[after], size, owner=ops[index])
                freed.setdefault(after, []).append(size)
        templates.append(template)
        sizes.append((allocs, freed))
    order = data.draw(st.lists(st.integers(0, len(templates) - 1), min_size=1, max_size=8))
    build.program([0], [(templates[index], 0, 0) for index in order])
    live = peak = 0
    for index in order:
        allocs, freed = sizes[index]
        for position, size in enumerate(allocs):
            live += size
            peak = max(peak, live)
            live -= sum(freed.get(position, ()))
    assert peak_memory(build.build())[0].activations == peak
