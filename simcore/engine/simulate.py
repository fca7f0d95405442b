"""Simulate one step: a graph on a cluster, every rank, until nobody has anything left to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simcore.clock import Clock
from simcore.engine.gpu import Gpu
from simcore.engine.launches import HostCosts
from simcore.engine.rank import Rank
from simcore.engine.record import distinct_plans, link_counters, rank_times
from simcore.engine.rendezvous import Communicator, Planner
from simcore.engine.result import SimulationResult
from simcore.engine.stuck import deadlock
from simcore.engine.tape import TapeCompiler
from simcore.errors import InputError, nearest
from simcore.graph import Graph, OpKind
from simcore.network.fluid import FixedNetwork, FluidNetwork
from simcore.units import ps_from_s

if TYPE_CHECKING:
    from simcore.cost.demand import CostModel
    from simcore.hardware import Topology
    from simcore.network.flow import Network

NETWORKS = ("alphabeta", "fluid")


def simulate(
    graph: Graph,
    topology: Topology,
    cost: CostModel,
    planner: Planner,
    *,
    network: str = "fluid",
    coalesce: bool = True,
    progress: Callable[[float], None] | None = None,
) -> SimulationResult:
    """Simulate one training step of all ranks of ``graph`` on ``topology``.

    ``cost`` prices kernels, ``planner`` collectives.  ``coalesce`` plays undisturbed kernels as one event;
    without it every kernel is an event and the result is the same.  ``progress`` gets the share done, 0..1.

    Errors: InputError (unknown network, more ranks than GPUs), GraphError (members of a group disagree),
    DeadlockError (no rank can go on).
    """
    if network not in NETWORKS:
        raise InputError(f"unknown network model {network!r}{nearest(network, NETWORKS)}")
    if graph.world_size > topology.num_gpus:
        raise InputError(
            f"the workload has {graph.world_size} ranks but the cluster has {topology.num_gpus} GPUs"
        )
    clock = Clock()
    links = topology.links
    fluid = FluidNetwork(clock, links.bytes_per_s, links.names) if network == "fluid" else None
    carrier = fluid if fluid is not None else FixedNetwork(clock)

    spec = topology.cluster.gpu
    demands = cost.demands(graph.ops)
    alone_ps = demands.alone_ps(spec.hbm_bytes_per_s)
    host = HostCosts(ps_from_s(spec.launch_overhead_s), ps_from_s(spec.launch_latency_s))
    compiler = TapeCompiler(graph, demands, alone_ps, host)
    tapes = tuple(compiler.compile(program) for program in graph.programs)
    communicators = _Communicators(graph, planner, carrier, clock)
    ranks: list[Rank] = []
    for number, program in enumerate(graph.program_of_rank.tolist()):
        gpu = Gpu(
            clock,
            carrier,
            num_sms=spec.num_sms,
            hbm_bytes_per_s=spec.hbm_bytes_per_s,
            copy_engines=spec.copy_engines,
            coalesce=coalesce,
        )
        rank = Rank(number, tapes[program], gpu, communicators.of_rank(number), clock)
        for coroutine in rank.coroutines():
            clock.process(coroutine)
        ranks.append(rank)

    events = clock.drain(_share_done(ranks, progress) if progress is not None else None)
    if any(rank.is_stuck for rank in ranks):
        raise deadlock(graph, ranks)

    times = tuple(rank_times(rank, graph.ops.kind) for rank in ranks)
    plans, plan_of = distinct_plans(ranks, tapes)
    counters = link_counters(fluid) if fluid is not None else None
    result = SimulationResult(
        times=times,
        alone_ps=alone_ps,
        plans=tuple(plans),
        plan_of=tuple(plan_of),
        step_ps=max((int(t.end_ps.max()) for t in times if len(t.end_ps)), default=0),
        engine_events=events,
    )
    if counters is None:
        return result
    return replace(
        result,
        resources=tuple(links.names),
        counter_time_ps=counters.time_ps,
        counter_resource=counters.resource,
        counter_value=counters.value,
    )


class _Communicators:
    """Process groups resolved to communicators, shared by their members."""

    def __init__(self, graph: Graph, planner: Planner, network: Network, clock: Clock) -> None:
        self._planner, self._network, self._clock = planner, network, clock
        used = np.isin(graph.ops.kind, (OpKind.COLLECTIVE, OpKind.SEND, OpKind.RECV))
        names = {graph.ops.group[row] for row in np.flatnonzero(used).tolist()}
        self._families = [graph.groups[name] for name in sorted(names)]
        self._by_ranks: dict[tuple[str, tuple[int, ...]], Communicator] = {}

    def of_rank(self, rank: int) -> dict[str, Communicator]:
        """Communicators that ``rank`` is a member of, by group symbol."""
        mine = {}
        for family in self._families:
            if family.contains(rank):
                key = (family.name, family.ranks_of(rank))
                if key not in self._by_ranks:
                    self._by_ranks[key] = Communicator(*key, self._planner, self._network, self._clock)
                mine[family.name] = self._by_ranks[key]
        return mine


def _share_done(ranks: list[Rank], progress: Callable[[float], None]) -> Callable[[int], None]:
    total = max(1, sum(rank.tape.num_items for rank in ranks))

    def report(_: int) -> None:
        progress(sum(sum(rank.done) for rank in ranks) / total)

    return report
