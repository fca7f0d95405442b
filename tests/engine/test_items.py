"""What items of a stream play is made once for all that play the same."""

from __future__ import annotations

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
