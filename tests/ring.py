"""A job of six ranks that all behave like rank 0, with times written by hand (in units of 1,000 ps)::

    compute   gemm 10-100                          bwd gemm 210-260
    pp                   send, recv 100-120                          send 270-280   recv 280-290
    mp                                all_reduce 150-200
    host                 sync 100-120

The second half belongs to microbatch 3, the first to none.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simcore.engine.result import LinkCounters, RankTimes, SimulationResult
from simcore.graph import Graph, GraphBuilder
from simcore.timeline import write_run
from tests.synthetic import FACTS, K, plan

WORLD_SIZE = 6

#: (start, end) by op, in units of K; every op was ready 2 K before.
_TIMES = ((10, 100), (100, 120), (100, 120), (100, 120), (150, 200), (210, 260), (270, 280), (280, 290))
_PLAN_OF = (-1, 0, 0, -1, 1, -1, 0, 0)

#: (time in K, resource, value); the link of the leaf starts with a value of its own at 0.
_COUNTERS = (
    (0, "leaf.1.up", 5.0),
    (100, "nvlink.0.out", 1e9),
    (100, "leaf.0.up", 2e9),
    (120, "nvlink.0.out", 0.0),
    (120, "leaf.0.up", 0.0),
)
_RESOURCES = ("nvlink.0.out", "nvlink.3.out", "leaf.0.up", "leaf.1.up")


def ring_graph() -> Graph:
    """The graph of the picture."""
    build = GraphBuilder(WORLD_SIZE, name="ring", dims={"pp": WORLD_SIZE}, tokens_per_step=6)
    build.group("pp", dims=((WORLD_SIZE, 1),))
    build.group("mp", dims=((WORLD_SIZE, 1),))
    first, second = build.template("first"), build.template("second")
    first.compute("gemm", op_class="gemm", flops=4_000, bytes_read=10, bytes_written=5)
    first.send("pp", 1, 64)
    first.recv("pp", -1, 64)
    first.sync()
    first.collective("all_reduce", "mp", 256)
    second.compute("gemm", op_class="gemm", flops=4_000, phase="bwd")
    second.send("pp", 1, 64)
    second.recv("pp", -1, 64)
    build.program(range(WORLD_SIZE), [(first, -1, 0), (second, 3, 0)], stage=0)
    return build.build()


def ring_result() -> SimulationResult:
    """The times of the picture: rank 0 stands for all."""
    start, end = (np.array(column, dtype=np.int64) * K for column in zip(*_TIMES, strict=True))
    time, resource, value = zip(*_COUNTERS, strict=True)
    return SimulationResult(
        class_of=np.zeros(WORLD_SIZE, dtype=np.int64),
        representatives=np.zeros(1, dtype=np.int64),
        times=(RankTimes(start - 2 * K, start, end),),
        alone_ps=(end - start,),
        plans=(plan("send_recv", 64, "p2p", 20 * K), plan("all_reduce", 256, "ring", 45 * K)),
        plan_of=(np.array(_PLAN_OF, dtype=np.int32),),
        step_ps=290 * K,
        engine_events=9,
        resources=_RESOURCES,
        counters=LinkCounters(
            np.array(time, dtype=np.int64) * K,
            np.array([_RESOURCES.index(name) for name in resource], dtype=np.int32),
            np.array(value),
        ),
        warnings=(),
    )


def write_ring_run(out_dir: Path) -> Path:
    """Write the run of the picture; returns its folder."""
    write_run(out_dir, ring_graph(), ring_result(), FACTS)
    return out_dir
