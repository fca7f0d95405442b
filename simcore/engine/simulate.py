"""Simulate one step: a graph on a cluster, one rank of each class, until nobody has anything left to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simcore.clock import Clock
from simcore.engine.gpu import Gpu
from simcore.engine.launches import HostCosts
from simcore.engine.rank import Rank
from simcore.engine.record import PlanTable, link_counters, rank_times
from simcore.engine.rendezvous import Communicators
from simcore.engine.result import SimulationResult
from simcore.engine.stuck import deadlock
from simcore.engine.tape import COMM_KINDS, TapeCompiler
from simcore.errors import InputError, nearest
from simcore.graph import Graph
from simcore.network.fluid import FixedNetwork, FluidNetwork
from simcore.symmetry import Partition, Planner, Quotient, partition
from simcore.units import ps_from_s

if TYPE_CHECKING:
    from simcore.cost.demand import CostModel
    from simcore.hardware import Topology

NETWORKS = ("alphabeta", "fluid")


def simulate(
    graph: Graph,
    topology: Topology,
    cost: CostModel,
    planner: Planner,
    *,
    network: str = "fluid",
    coalesce: bool = True,
    fold: bool = True,
    progress: Callable[[float], None] | None = None,
) -> SimulationResult:
    """Simulate one training step of all ranks of ``graph`` on ``topology``.

    ``cost`` prices kernels, ``planner`` collectives.  ``coalesce`` plays undisturbed kernels as one event,
    ``fold`` one rank for all that must behave like it; without them every kernel is an event, every rank is
    simulated, and the result is the same.  ``progress`` gets the share done, 0..1.

    Errors: InputError (unknown network, more ranks than GPUs), GraphError (members of a group disagree),
    DeadlockError (no rank can go on).
    """
    if network not in NETWORKS:
        raise InputError(f"unknown network model {network!r}{nearest(network, NETWORKS)}")
    if graph.world_size > topology.num_gpus:
        raise InputError(
            f"the workload has {graph.world_size} ranks but the cluster has {topology.num_gpus} GPUs"
        )
    parts = partition(graph, topology, planner, fold=fold)
    clock = Clock()
    links = topology.links
    fluid = FluidNetwork(clock, links.bytes_per_s, links.names) if network == "fluid" else None
    carrier = fluid if fluid is not None else FixedNetwork(clock)
    communicators = Communicators(Quotient(parts, topology, planner), graph.groups, carrier, clock)

    spec = topology.cluster.gpu
    demands = cost.demands(graph.ops)
    host = HostCosts(ps_from_s(spec.launch_overhead_s), ps_from_s(spec.launch_latency_s))
    compiler = TapeCompiler(graph, demands, demands.alone_ps(spec.hbm_bytes_per_s), host)
    tapes = [compiler.compile(program) for program in graph.programs]
    ranks: list[Rank] = []
    for number in parts.representatives.tolist():
        gpu = Gpu(
            clock,
            carrier,
            num_sms=spec.num_sms,
            hbm_bytes_per_s=spec.hbm_bytes_per_s,
            copy_engines=spec.copy_engines,
            coalesce=coalesce,
        )
        rank = Rank(number, tapes[graph.program_of_rank[number]], gpu, communicators, clock)
        for coroutine in rank.coroutines():
            clock.process(coroutine)
        ranks.append(rank)

    events = clock.drain(_share_done(ranks, progress) if progress is not None else None)
    if any(rank.is_stuck for rank in ranks):
        raise deadlock(graph, ranks, parts.class_of)
    result = _result(graph, ranks, parts, events)
    if fluid is None:
        return result
    counters = link_counters(fluid)
    return replace(
        result,
        resources=links.names,
        counter_time_ps=counters.time_ps,
        counter_resource=counters.resource,
        counter_value=counters.value,
    )


def _result(graph: Graph, ranks: list[Rank], parts: Partition, events: int) -> SimulationResult:
    times = tuple(rank_times(rank, graph.ops.kind) for rank in ranks)
    is_comm = np.isin(graph.ops.kind, COMM_KINDS)
    table = PlanTable()
    plan_of = tuple(table.of_rank(rank, is_comm) for rank in ranks)
    return SimulationResult(
        class_of=parts.class_of,
        representatives=parts.representatives,
        times=times,
        alone_ps=tuple(rank.tape.alone_ps for rank in ranks),
        plan_of=plan_of,
        plans=tuple(table.plans),
        step_ps=max((int(t.end_ps.max()) for t in times if len(t.end_ps)), default=0),
        engine_events=events,
    )


def _share_done(ranks: list[Rank], progress: Callable[[float], None]) -> Callable[[int], None]:
    total = max(1, sum(rank.tape.num_items for rank in ranks))

    def report(_: int) -> None:
        progress(sum(sum(rank.done) for rank in ranks) / total)

    return report
