"""Items of a stream that are made several at once are those that are made one by one."""

from __future__ import annotations

import pytest

from simcore.cost import RooflineCost
from simcore.engine.launches import host_costs
from simcore.engine.sequence import KernelSequence
from simcore.engine.tape import TapeCompiler
from simcore.hardware import load_cluster
from tests.engine.test_steady import job


def compiler(graph):
    gpu = load_cluster("h100").gpu
    demands = RooflineCost(gpu).demands(graph.ops)
    return TapeCompiler(graph, demands, gpu.hbm_bytes_per_s, host_costs(gpu), {})


def played(item):
    """What an item is, whichever object says it."""
    if isinstance(item.work, KernelSequence):
        return item[:4], item.work.demand, item.work.launch, item.work.alone.after, item.on_copy_engine
    return item[:4], [call.number for call in item.work.calls], item.work.sequence, item.on_copy_engine


@pytest.mark.parametrize("graph", [job(24), job(16, schedule="interleaved", virtual_stages=2)])
def test_in_a_row_and_one_by_one(graph):
    at_once = 0
    for program in graph.programs:
        streams = [compiler(graph).compile(program).streams for _ in range(2)]
        for forwards, backwards in zip(*streams, strict=True):
            in_turn = [played(item) for item in forwards]
            one_by_one = [played(backwards[number]) for number in reversed(range(len(backwards)))]
            assert in_turn == one_by_one[::-1]
            at_once += max(0, len(in_turn) - 2) if forwards and len(in_turn[0]) == 4 else 0
    assert at_once > 50  # calls that no other work interrupts


def test_equal_kernels_are_strung_together_once():
    graph = job(8)
    of_one, contents = compiler(graph), {}
    for program in graph.programs:
        for stream in of_one.compile(program).streams:
            for item in stream:
                if isinstance(item.work, KernelSequence):
                    content = tuple(item.work.demand), tuple(item.work.launch), tuple(item.work.alone.after)
                    assert contents.setdefault(content, item.work) is item.work
    assert len(contents) > 10
