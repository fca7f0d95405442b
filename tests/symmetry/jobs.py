"""Jobs whose folded and unfolded runs are compared: all kinds of parallelism, sharing, broken symmetry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from simcore.collectives import NcclPlanner
from simcore.engine import SimulationResult, Variants
from simcore.engine.shortcuts import simulate
from simcore.graph import Graph, GraphBuilder, external
from simcore.graph.schedules import Schedule, interleaved_one_f_one_b, one_f_one_b
from simcore.hardware import Topology, load_cluster
from tests.engine.lab import K, TableCost

MB = 1_000_000
KERNELS = {
    "gemm": K(200, blocks=1100, hbm_bytes=60 * MB, fixed_us=1.6),
    "wgrad": K(190, blocks=132, hbm_bytes=80 * MB, fixed_us=1.6),
    "norm": K(20, hbm_bytes=90 * MB, fixed_us=1.6),
    "adam": K(100, hbm_bytes=900 * MB, fixed_us=1.6),
    "head": K(310, blocks=1500, hbm_bytes=70 * MB, fixed_us=1.6),
}


def topology(num_nodes: int, **changes: object) -> Topology:
    """H800 nodes; ``changes`` are fields of the cluster."""
    spec = load_cluster("h800-96", {})
    return Topology(replace(spec, num_nodes=num_nodes, **changes))


def run(graph: Graph, where: Topology, *, fold: bool, variants: Variants | None = None) -> SimulationResult:
    """Simulate with NCCL's plans on ``where``."""
    cost = TableCost(KERNELS)
    return simulate(graph, where, cost, NcclPlanner(where), fold=fold, variants=variants)


def slow_ranks(where: Topology, world: int, factor: float, ranks: Sequence[int]) -> Variants:
    """``ranks`` take ``factor`` times as long for everything that runs on SMs."""
    of_rank = np.zeros(world, dtype=np.int64)
    of_rank[list(ranks)] = 1
    slow = {name: replace(kernel, us=kernel.us * factor) for name, kernel in KERNELS.items()}
    gpu = where.cluster.gpu
    return Variants((gpu, gpu), (TableCost(KERNELS), TableCost(slow)), of_rank)


def pipeline(
    schedule: Schedule,
    tp: int,
    dp: int,
    *,
    layers: Callable[[int], int] = lambda stage: 2,
    overlap: bool = True,
) -> Graph:
    """PP x DP x TP in Megatron's order (tp fastest, pp slowest).

    Forward: per layer a GEMM, an all_reduce over tp on the compute stream, a norm.  Backward: a GEMM, its
    all_reduce beside a weight-gradient GEMM.  The last backward reduces gradients over dp, per layer beside
    the next one if ``overlap``, else at the end; then the optimizer.  ``layers(virtual stage)``.
    """
    stages, chunks = len(schedule), 1 + max(action.chunk for action in schedule[0])
    microbatches = 1 + max(action.microbatch for action in schedule[0])
    world = stages * tp * dp
    build = GraphBuilder(world, name="pipeline")
    build.group("tp", ((tp, 1),))
    build.group("dp", ((dp, tp),))
    if stages > 1:
        build.group("pp", ((stages, tp * dp),))
    last = stages * chunks - 1
    for stage, actions in enumerate(schedule):
        templates = {}
        for action in actions:
            virtual = action.chunk * stages + stage
            final = action.kind == "B" and action.microbatch == microbatches - 1
            key = (action.kind, action.chunk, final)
            if key not in templates:
                write = _forward if action.kind == "F" else _backward
                templates[key] = write(
                    build, virtual, last, layers(virtual), tp, dp if final and overlap else 1
                )
        optimizer = build.template("optimizer")
        if dp > 1 and not overlap:
            optimizer.collective("all_reduce", "dp", 60 * MB, stream="compute")
        optimizer.compute("adam", waits=(external("dp"),) if dp > 1 and overlap else ())
        skeleton = [
            (
                templates[a.kind, a.chunk, a.kind == "B" and a.microbatch == microbatches - 1],
                a.microbatch,
                a.chunk,
            )
            for a in actions
        ]
        ranks = range(stage * tp * dp, (stage + 1) * tp * dp)
        build.program(ranks, [*skeleton, (optimizer, -1, 0)], stage=stage)
    return build.build()


def _forward(build: GraphBuilder, virtual: int, last: int, layers: int, tp: int, dp: int):
    template = build.template("fwd")
    waits = ()
    if virtual > 0 and build.has_group("pp"):
        waits = (template.recv("pp", -1, 30 * MB, stream="pp.recv.fwd"),)
    done = None
    for _ in range(layers):
        done = template.compute("gemm", waits=waits)
        waits = ()
        if tp > 1:
            template.collective("all_reduce", "tp", 20 * MB, stream="compute")
        done = template.compute("norm")
    if virtual == last:
        template.compute("head")
    elif build.has_group("pp"):
        template.send("pp", 1, 30 * MB, stream="pp.send.fwd", waits=(done,))
    return template


def _backward(build: GraphBuilder, virtual: int, last: int, layers: int, tp: int, dp: int):
    template = build.template("bwd")
    waits = ()
    if virtual < last and build.has_group("pp"):
        waits = (template.recv("pp", 1, 30 * MB, stream="pp.recv.bwd"),)
    done = None
    for _ in range(layers):
        done = template.compute("gemm", waits=waits)
        waits = ()
        if tp > 1:
            waits = (template.collective("all_reduce", "tp", 20 * MB, waits=(done,)),)
        done = template.compute("wgrad")
        if dp > 1:
            template.collective("all_reduce", "dp", 25 * MB, waits=(done,))
    done = template.compute("norm", waits=waits)
    if virtual > 0 and build.has_group("pp"):
        template.send("pp", -1, 30 * MB, stream="pp.send.bwd", waits=(done,))
    return template


def dense_3d() -> Graph:
    return pipeline(one_f_one_b(4, 6), tp=8, dp=4)


def gradients_at_the_end() -> Graph:
    return pipeline(one_f_one_b(2, 3), tp=4, dp=8, overlap=False)


def uneven_stages() -> Graph:
    return pipeline(one_f_one_b(4, 5), tp=4, dp=4, layers=lambda stage: 3 - (stage in (0, 3)))


def interleaved() -> Graph:
    return pipeline(interleaved_one_f_one_b(4, 8, 2), tp=8, dp=2, layers=lambda virtual: 1)


def data_parallel(world: int = 64, buckets: int = 6) -> Graph:
    """DDP: buckets are reduced beside backward."""
    build = GraphBuilder(world, name="ddp")
    build.group("dp", ((world, 1),))
    bwd, optimizer = build.template("bwd"), build.template("optimizer")
    for _ in range(buckets):
        done = bwd.compute("gemm")
        bwd.compute("wgrad")
        bwd.collective("all_reduce", "dp", 25 * MB, waits=(done,))
    optimizer.compute("adam", waits=(external("dp"),))
    build.program(range(world), [(bwd, 0, 0), (optimizer, -1, 0)])
    return build.build()


def one_sum(world: int, num_bytes: int) -> Graph:
    """A kernel, then one all_reduce over everybody."""
    build = GraphBuilder(world, name="sum")
    build.group("world", ((world, 1),))
    template = build.template("step")
    template.compute("gemm")
    template.collective("all_reduce", "world", num_bytes, stream="compute")
    build.program(range(world), [(template, 0, 0)])
    return build.build()


def two_jobs(world_each: int = 64, *, second_mb: int = 40) -> Graph:
    """Two data-parallel jobs, interleaved node by node, so that both cross the same spines."""
    build = GraphBuilder(2 * world_each, name="two jobs")
    nodes = [range(8 * n, 8 * n + 8) for n in range(world_each // 4)]
    jobs = [[rank for n in nodes[k::2] for rank in n] for k in (0, 1)]
    for k, (ranks, size) in enumerate(zip(jobs, (25, second_mb), strict=True)):
        # Rings of one GPU per node: local rank r of all nodes of the job.
        build.group(f"dp{k}", explicit=[[rank for rank in ranks if rank % 8 == r] for r in range(8)])
        bwd = build.template("bwd")
        for _ in range(4):
            done = bwd.compute("gemm")
            bwd.collective("all_reduce", f"dp{k}", size * MB, waits=(done,))
        bwd.compute("adam", waits=(done,))
        build.program(ranks, [(bwd, 0, 0)], name=f"job{k}")
    return build.build()


def across_rails() -> Graph:
    """Groups whose members sit at different places of two nodes: data passes ports of GPUs on the way."""
    build = GraphBuilder(16, name="across rails")
    build.group("x", explicit=[[k, 8 + (k + 4) % 8] for k in range(8)])
    build.group("y", explicit=[[k, (k + 1) % 4 + 8, k + 4, (k + 1) % 4 + 12] for k in range(4)])
    template = build.template("fwd")
    for _ in range(3):
        done = template.compute("gemm")
        template.collective("all_reduce", "x", 8 * MB, waits=(done,))
        template.collective("all_reduce", "y", 12 * MB, waits=(done,))
    build.program(range(16), [(template, 0, 0)])
    return build.build()


def pairs_across_rails() -> Graph:
    """Sends between different places of two nodes, which go over the receiver's rail."""
    build = GraphBuilder(16, name="pairs across rails")
    build.group("pair", explicit=[[k, 8 + (k + 3) % 8] for k in range(8)])
    first, second = build.template("fwd"), build.template("fwd")
    for _ in range(2):
        done = first.compute("gemm")
        first.send("pair", 1, 30 * MB, waits=(done,))
        got = second.recv("pair", -1, 30 * MB)
        second.compute("norm", waits=(got,))
    build.program(range(8), [(first, 0, 0)])
    build.program(range(8, 16), [(second, 0, 0)])
    return build.build()


def expert_parallel(world: int = 64, ep: int = 16) -> Graph:
    """all_to_all before and after an expert GEMM, over groups that span two nodes; gradients over all."""
    build = GraphBuilder(world, name="moe")
    build.group("ep", ((ep, 1),))
    build.group("edp", ((world // ep, ep),))
    template = build.template("fwd")
    for _ in range(3):
        template.collective("all_to_all", "ep", 16 * MB, stream="compute")
        done = template.compute("gemm")
        template.collective("all_to_all", "ep", 16 * MB, stream="compute")
        template.collective("all_reduce", "edp", 10 * MB, waits=(done,))
    build.program(range(world), [(template, 0, 0)])
    return build.build()
