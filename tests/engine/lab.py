"""A bench for engine tests: a cluster whose launches cost nothing, kernels and transfers given by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from simcore.collectives.plan import CollectivePlan, LinkUse
from simcore.cost.demand import Demands
from simcore.engine import SimulationResult
from simcore.engine.shortcuts import SHORTCUTS, simulate
from simcore.graph import Graph, GraphBuilder, OpKind, OpTable
from simcore.hardware import Topology, load_cluster

US = 1_000_000  # ps


@dataclass(frozen=True)
class K:
    """A kernel: SM time (us), thread blocks (0: fluid), HBM bytes, start cost (us)."""

    us: float = 0.0
    blocks: int = 0
    occ: int = 1
    hbm_bytes: int = 0
    fixed_us: float = 0.0


@dataclass(frozen=True)
class C:
    """A transfer: latency (us), volume, rate cap, SMs, HBM bytes per byte, links by (name, weight)."""

    us: float = 0.0
    channels: int = 0
    volume: float = 0.0
    bytes_per_s: float = float("inf")
    hbm_per_byte: float = 0.0
    links: tuple[tuple[str, float], ...] = ()


@dataclass
class TableCost:
    """Kernels by op name; recorded durations as they are."""

    kernels: Mapping[str, K]

    def demands(self, ops: OpTable, used: npt.NDArray[np.bool_] | None = None) -> Demands:
        made = Demands.zeros(len(ops))
        for row in range(len(ops)):
            if ops.kind[row] in (OpKind.COMPUTE, OpKind.MEMCPY):
                if ops.recorded_ps[row] >= 0:
                    made.sm_ps[row] = ops.recorded_ps[row]
                    continue
                kernel = self.kernels[ops.name[row]]
                made.sm_ps[row] = round(kernel.us * US)
                made.blocks[row] = kernel.blocks
                made.blocks_per_sm[row] = kernel.occ
                made.hbm_bytes[row] = kernel.hbm_bytes
                made.fixed_ps[row] = round(kernel.fixed_us * US)
                made.copy_engine[row] = ops.kind[row] == OpKind.MEMCPY
        return made


@dataclass
class TablePlanner:
    """Transfers by their size in bytes, which serves as a name: the same plan for the same ranks."""

    transfers: Mapping[int, C]
    topology: Topology
    made: dict[object, CollectivePlan] = field(default_factory=dict)

    def plan(self, collective: str, num_bytes: int, ranks: tuple[int, ...]) -> CollectivePlan:
        c = self.transfers[num_bytes]
        links = tuple(LinkUse(self.topology.links.names.index(name), weight) for name, weight in c.links)
        rate = min([c.bytes_per_s, *(self.topology.links.bytes_per_s[u.link] / u.weight for u in links)])
        latency = round(c.us * US)
        data_ps = round(c.volume / rate * 1e12) if c.volume and rate > 0 else 0
        return CollectivePlan(
            collective=collective, num_bytes=num_bytes, ranks=ranks, algorithm="table", protocol="Simple",
            channels=c.channels, chunk_bytes=0, num_chunks=1, num_steps=1, latency_ps=latency,
            volume_bytes=c.volume, rate_cap_bytes_per_s=c.bytes_per_s, hbm_bytes_per_byte=c.hbm_per_byte,
            links=links, alone_ps=latency + data_ps,
        )  # fmt: skip

    def plan_p2p(self, num_bytes: int, src_rank: int, dst_rank: int) -> CollectivePlan:
        return self.plan("send_recv", num_bytes, (src_rank, dst_rank))


def cluster(
    num_nodes: int = 1, *, launch_us: float = 0.0, latency_us: float = 0.0, name: str = "h800-96",
    **changes: object,
) -> Topology:  # fmt: skip
    """132 SMs and 3.35 TB/s a GPU, 50 GB/s a NIC; launches as given."""
    spec = load_cluster(name, {})
    gpu = replace(
        spec.gpu, num_sms=132, hbm_bytes_per_s=3.35e12, launch_overhead_s=launch_us * 1e-6,
        launch_latency_s=latency_us * 1e-6, kernel_gap_s=0.0,
    )  # fmt: skip
    plain = {"nic_bytes_per_s": 50e9, "nic_efficiency": 1.0}
    return Topology(replace(spec, gpu=gpu, num_nodes=num_nodes, **{**plain, **changes}))


def run(
    graph: Graph,
    kernels: Mapping[str, K] | None = None,
    transfers: Mapping[int, C] | None = None,
    *,
    topology: Topology | None = None,
    check_both: bool = True,
    network: str = "fluid",
) -> SimulationResult:
    """Simulate every rank; also without shortcuts, and folded: times must agree to the picosecond."""
    topology = topology or cluster()

    def once(shortcuts: tuple[str, ...], fold: bool) -> SimulationResult:
        planner = TablePlanner(transfers or {}, topology)
        cost = TableCost(kernels or {})
        return simulate(graph, topology, cost, planner, shortcuts=shortcuts, fold=fold, network=network)

    result = once(SHORTCUTS, False)
    if check_both:
        for other in (once((), False), once(SHORTCUTS, True)):
            for rank in range(graph.world_size):
                ours, theirs = result.times_of(rank), other.times_of(rank)
                np.testing.assert_array_equal(ours.start_ps, theirs.start_ps)
                np.testing.assert_array_equal(ours.end_ps, theirs.end_ps)
                np.testing.assert_array_equal(ours.ready_ps, theirs.ready_ps)
    return result


def single(fill: Callable[[GraphBuilder], None] | None = None, world: int = 1) -> GraphBuilder:
    """A builder with a group "self" of one rank each: its collectives stand for any communication."""
    build = GraphBuilder(world, name="bench")
    build.group("self", ((1, 1),))
    if fill is not None:
        fill(build)
    return build


def end_us(result: SimulationResult, op: int, rank: int = 0) -> float:
    """End of a flat op in us."""
    return float(result.times[rank].end_ps[op]) / US
