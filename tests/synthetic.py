"""A small simulated step with times written by hand, so that every figure about it can be checked on paper.

Two stages of one rank each (``pp`` = 2), one microbatch; times in ps (the picture is in units of 1,000)::

    rank 0  compute    fwd 0-100   fwd_tail 110-150              bwd 200-260
            pp                send 100-120          recv 180-200
            dp                                                      all_reduce 250-300
    rank 1  compute                 fwd 120-160 bwd 160-180
            pp              recv 100-120         send 180-200
            dp                                                      all_reduce 250-300
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simcore.collectives.plan import CollectivePlan
from simcore.engine.result import LinkCounters, RankTimes, SimulationResult
from simcore.graph import Graph, GraphBuilder, MemoryProfile
from simcore.timeline import RunFacts, RunInfo, write_run

K = 1_000
STEP_PS = 300 * K

#: (ready, start, end) by rank and op, in units of K; ops in issue order.
TIMES = {
    0: [(0, 0, 100), (100, 100, 120), (105, 110, 150), (150, 180, 200), (200, 200, 260), (240, 250, 300)],
    1: [(0, 100, 120), (120, 120, 160), (160, 160, 180), (180, 180, 200), (200, 250, 300)],
}

FACTS = RunFacts(
    cluster={"name": "two", "num_nodes": 1, "gpus_per_node": 2, "gpu": {"name": "tiny"}},
    network="fluid",
    graph_hash="g" * 8,
    profile_hash="p" * 8,
    capacity_bytes=1_000,
    peak_flops_per_s=1e12,
    peak_math="fp32",
    origins={"roofline": 1.0},
    assumptions=("placement is the identity",),
    warnings=("written by hand",),
)


def two_stage_graph() -> Graph:
    """The graph of the picture."""
    build = GraphBuilder(
        2,
        name="two-stages",
        dims={"pp": 2, "dp": 1},
        tokens_per_step=600,
        precision="fp32",
        seq_len=8,
    )
    build.group("pp", dims=((2, 1),))
    build.group("dp", dims=((2, 1),))
    first, second = build.template("stage0"), build.template("stage1")

    first.compute("gemm", op_class="gemm", flops=4_000, bytes_read=10, bytes_written=5, layer=0)
    first.send("pp", 1, 64, layer=0)
    first.compute(
        "aten::bmm",
        op_class="bgemm",
        module="layers.0.self_attention.core",
        flops=1_000,
        layer=1,
        bytes_read=7,
    )
    first.recv("pp", 1, 64, phase="bwd")
    first.compute("gemm", op_class="gemm", flops=2_000, phase="recompute")
    first.collective("all_reduce", "dp", 256, phase="grad_sync")

    second.recv("pp", -1, 64)
    second.compute("gemm", op_class="gemm", flops=4_000, layer=0)
    second.compute("gelu", op_class="elementwise", flops=8_000, layer=0, phase="bwd")
    second.send("pp", -1, 64, phase="bwd")
    second.collective("all_reduce", "dp", 256, phase="grad_sync")

    build.program([0], [(first, 0, 0)], stage=0, memory=MemoryProfile(100, 100, 200, 300, 700))
    build.program(
        [1], [(second, 0, 0)], stage=1, layer_offset=(2,), memory=MemoryProfile(100, 100, 200, 100, 500)
    )
    return build.build()


def plan(collective: str, num_bytes: int, algorithm: str, alone: int) -> CollectivePlan:
    """A plan of ranks 0 and 1 that takes ``alone`` ps."""
    return CollectivePlan(
        collective=collective,
        num_bytes=num_bytes,
        ranks=(0, 1),
        algorithm=algorithm,
        protocol="Simple",
        channels=2,
        chunk_bytes=num_bytes,
        num_chunks=1,
        num_steps=1,
        latency_ps=0,
        volume_bytes=float(num_bytes),
        rate_cap_bytes_per_s=1e9,
        hbm_bytes_per_byte=2.0,
        links=(),
        alone_ps=alone,
    )


def two_stage_result() -> SimulationResult:
    """The times of the picture.  Alone: kernels 10 K less than they took, send/recv 20 K, all_reduce 45 K."""
    times = []
    for rank in (0, 1):
        ready, start, end = (
            np.array(column, dtype=np.int64) * K for column in zip(*TIMES[rank], strict=True)
        )
        times.append(RankTimes(ready, start, end))
    # Rows: 0-5 are rank 0's ops, 6-10 rank 1's.
    alone = np.array([90, 0, 30, 0, 50, 0, 0, 30, 10, 0, 0], dtype=np.int64) * K
    return SimulationResult(
        class_of=np.arange(2),
        representatives=np.arange(2),
        times=tuple(times),
        alone_ps=(alone[:6], alone[6:]),
        plans=(plan("send_recv", 64, "p2p", 20 * K), plan("all_reduce", 256, "ring", 45 * K)),
        plan_of=(
            np.array([-1, 0, -1, 0, -1, 1], dtype=np.int32),
            np.array([0, -1, -1, 0, 1], dtype=np.int32),
        ),
        step_ps=STEP_PS,
        engine_events=17,
        resources=("nvlink.0.out",),
        counters=LinkCounters(
            np.array([100 * K, 120 * K], dtype=np.int64),
            np.zeros(2, dtype=np.int32),
            np.array([1e9, 0.0]),
        ),
        warnings=("from the engine",),
    )


def write_two_stage_run(out_dir: Path) -> RunInfo:
    """Write the run of the picture."""
    return write_run(out_dir, two_stage_graph(), two_stage_result(), FACTS)


@pytest.fixture
def two_stage_run(tmp_path: Path) -> Path:
    """Folder of the run of the picture."""
    out_dir = tmp_path / "two-stages"
    write_two_stage_run(out_dir)
    return out_dir
