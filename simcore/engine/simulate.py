"""Simulate one step: a graph on a cluster, one rank of each class, until nobody has anything left to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from simcore.clock import Clock, Progress, uncollected
from simcore.collectives.plan import Planner
from simcore.engine.execution import Execution
from simcore.engine.gpu import Gpu
from simcore.engine.launches import host_costs
from simcore.engine.rank import Rank
from simcore.engine.record import PlanTable, all_times, link_counters, link_log
from simcore.engine.rendezvous import Communicators
from simcore.engine.result import Answered, PlayedOut, SimulationResult
from simcore.engine.stuck import deadlock
from simcore.engine.tape import Tape, TapeCompiler
from simcore.engine.variants import Noise, Variants
from simcore.errors import InputError, nearest
from simcore.graph import Graph
from simcore.hardware.sm import fences_ps
from simcore.network.fluid import FixedNetwork, FluidNetwork, fluid_network
from simcore.network.fluid_planner import FluidPlanner
from simcore.network.packet import PacketSettings
from simcore.records import dataclass
from simcore.symmetry import Partition, Quotient, partition

if TYPE_CHECKING:
    from simcore.cost.demand import CostModel
    from simcore.engine.execution import Processor
    from simcore.engine.rank import Player
    from simcore.engine.record import FloatArray
    from simcore.engine.result import Int32Array
    from simcore.engine.sequence import Demand, KernelSequence
    from simcore.graph.ops import IntArray
    from simcore.hardware import GpuSpec, Topology
    from simcore.interference import LearnedInterference
    from simcore.network.packet import PacketNetwork

NETWORKS = ("alphabeta", "fluid", "packet")


class Aid:
    """Who may answer for the engine in places (:mod:`simcore.engine.shortcuts`); this one never does.

    ``execution``: what a sequence of kernels runs as; GPUs keep it, so it must not hold the aid, which would
    then outlive the job.  ``num_events``: what was played apart.  ``num_ops``: op executions that were no
    event of their own, by who answered for them, other than players.
    """

    execution: Callable[[Processor, KernelSequence, int], Execution] = Execution
    num_events: int = 0

    @property
    def num_ops(self) -> dict[str, int]:
        """Op executions answered for."""
        return {}

    def begin(self, graph: Graph, network: FluidNetwork, communicators: Communicators) -> None:
        """A job is about to be played on a network of links that flows share."""

    def player(self, rank: Rank) -> Player | None:  # noqa: ARG002
        """Who answers for stretches of the rank's stream, if anybody does."""
        return None

    def start(self, ranks: Sequence[Rank], tapes: Tapes) -> None:
        """``ranks`` are about to play ``tapes``."""

    def end(self, ranks: Sequence[Rank], network: FluidNetwork | None) -> None:
        """The job has been played."""

    def log(self) -> tuple[IntArray, Int32Array, FloatArray] | None:
        """Changes of rates that the network was not told: (time, number of the plan, bytes/ps) columns."""
        return None


def simulate(
    graph: Graph,
    topology: Topology,
    cost: CostModel,
    planner: Planner,
    *,
    network: str = "fluid",
    packets: PacketSettings | None = None,
    fold: bool = True,
    variants: Variants | None = None,
    learned: LearnedInterference | None = None,
    noise: Noise | None = None,
    begin_ps: IntArray | None = None,
    counters: bool = True,
    aid: Aid | None = None,
    progress: Callable[[float], None] | None = None,
) -> SimulationResult:
    """Simulate one training step of all ranks of ``graph`` on ``topology``, from its first event to the last.

    ``cost`` prices kernels, ``planner`` collectives.  ``fold`` plays one rank for all that must behave like
    it; without, every rank is simulated, and the result is the same.  ``variants`` are ranks whose GPUs
    differ; ``learned`` decides how communication slows kernels on GPUs that it covers (with a warning about
    others); ``noise`` makes every rank different, which unfolds the job (with a warning), as does network
    "packet", which ``packets`` says more about.  ``begin_ps``: when hosts begin, by class of ranks (by their
    representatives); 0 else.  ``counters``: whether what happens on links is told.  ``aid`` may answer for
    stretches; without, every kernel is an event.
    ``progress`` gets the share done, 0..1.

    Errors: InputError (unknown network, more ranks than GPUs, a job too large for packets), GraphError
    (members of a group disagree), DeadlockError (no rank can go on).
    """
    if network not in NETWORKS:
        raise InputError(f"unknown network model {network!r}{nearest(network, NETWORKS)}")
    if graph.world_size > topology.num_gpus:
        raise InputError(
            f"the workload has {graph.world_size} ranks but the cluster has {topology.num_gpus} GPUs"
        )
    if noise is not None and noise.sigma == 0.0:
        noise = None
    if variants is None:
        variants = Variants((topology.cluster.gpu,), (cost,), np.zeros(graph.world_size, dtype=np.int64))
    fold = fold and noise is None and network != "packet"
    if network == "fluid":
        planner = FluidPlanner(planner, topology.links.bytes_per_s)
    job = _Job(
        graph,
        topology,
        planner,
        network,
        packets,
        fold,
        variants,
        learned,
        noise,
        begin_ps,
        counters,
        aid or Aid(),
        progress,
    )
    with uncollected():  # hundreds of thousands of objects that last until the end would be scanned
        return job.play().result()


@dataclass(frozen=True)
class _Job:
    """Everything that :func:`simulate` is told."""

    graph: Graph
    topology: Topology
    planner: Planner
    network: str
    packets: PacketSettings | None
    fold: bool
    variants: Variants
    learned: LearnedInterference | None
    noise: Noise | None
    begin_ps: IntArray | None
    counters: bool
    aid: Aid
    progress: Callable[[float], None] | None

    def play(self) -> _Played:
        """From the first event to the last."""
        graph, topology, planner, variants = self.graph, self.topology, self.planner, self.variants
        parts = partition(graph, topology, planner, variants.of_rank, fold=self.fold)
        clock = Clock()
        fluid = fluid_network(clock, topology) if self.network == "fluid" else None
        packet = None
        if self.network == "packet":
            from simcore.network.packet import PacketNetwork  # few runs need it: the others start sooner

            settings = replace(self.packets or PacketSettings(), software=True)
            packet = PacketNetwork(clock, topology, settings)
        carrier = fluid or packet or FixedNetwork(clock)
        communicators = Communicators(Quotient(parts, topology, planner), graph.groups, carrier, clock)
        if fluid is not None:
            self.aid.begin(graph, fluid, communicators)
        tapes = Tapes(graph, variants, self.noise)
        ranks: list[Rank] = []
        for number in parts.representatives.tolist():
            spec = variants.gpus[variants.of_rank[number]]
            gpu = self._gpu_type(spec)(
                clock,
                carrier,
                num_sms=spec.num_sms,
                hbm_bytes_per_s=spec.hbm_bytes_per_s,
                copy_engines=spec.copy_engines,
                execution=self.aid.execution,
                fence_ps=fences_ps(spec.table("sm"))[0],
            )
            rank = Rank(number, tapes.of_rank(number), gpu, communicators, clock)
            if self.begin_ps is not None:
                rank.begin_ps = int(self.begin_ps[len(ranks)])
            if fluid is not None:
                rank.player = self.aid.player(rank)
            for coroutine in rank.coroutines():
                clock.start(coroutine)
            ranks.append(rank)
        if packet is not None:
            from simcore.engine.packets import fit_packets

            fit_packets(packet, ranks)
        self.aid.start(ranks, tapes)
        events = clock.drain(_share_done(ranks, self.progress))
        if any(rank.is_stuck for rank in ranks):
            raise deadlock(graph, ranks, parts.class_of)
        return _Played(self, tapes.graph, ranks, parts, events + self.aid.num_events, fluid, packet)

    def _gpu_type(self, spec: GpuSpec) -> Callable[..., Gpu]:
        learned = self.learned
        if learned is not None and learned.covers(spec.num_sms):
            from simcore.engine.learned import LearnedGpu

            return partial(LearnedGpu, learned=learned)
        return Gpu


@dataclass(frozen=True)
class _Played:
    """A job that has been played: its ranks' records.  ``graph`` is what they have played in the end."""

    job: _Job
    graph: Graph
    ranks: list[Rank]
    parts: Partition
    events: int
    fluid: FluidNetwork | None
    packet: PacketNetwork | None

    def result(self) -> SimulationResult:
        """Times by op, the links' log, and warnings.  Uses the records up."""
        job, ranks, parts = self.job, self.ranks, self.parts
        job.aid.end(ranks, self.fluid)
        for tape in {rank.tape for rank in ranks}:
            tape.forget_items()
        kind = self.graph.ops.kind
        # Sorting it takes several columns as long as it is: the times of all ops are made after that.
        told = self.fluid if job.counters else None
        log = link_log(told, job.aid.log()) if told is not None else None
        times, in_cells = all_times(ranks, kind)
        table = PlanTable(len(kind))
        programs = tuple(self.graph.program_of_rank[parts.representatives].tolist())
        plan_of = PlayedOut(self.graph, programs, tuple(table.of_rank(rank) for rank in ranks))
        alone_ps: Sequence[IntArray] = tuple(rank.tape.alone_ps for rank in ranks)
        if job.noise is None:
            alone_ps = PlayedOut(self.graph, programs, tuple(alone_ps))
        warnings: list[str] = []
        if job.noise is not None:
            warnings.append("noise makes every rank different: nothing was folded")
        if job.learned is not None:
            warnings += _not_learned(job.learned, job.variants)
        if self.packet is not None:
            warnings += self.packet.remarks()
        for rank in ranks:
            rank.player = None  # the one circle by which ranks, and with them their tapes, would be kept
        sizes = np.array([len(rank.tape.flat) for rank in ranks])
        total = int(sizes[parts.class_of].sum())
        return SimulationResult(
            class_of=parts.class_of,
            representatives=parts.representatives,
            times=times,
            alone_ps=alone_ps,
            plan_of=plan_of,
            plans=tuple(table.plans),
            step_ps=max((int(t.end_ps.max()) for t in times if len(t.end_ps)), default=0),
            engine_events=self.events,
            resources=job.topology.links.names if self.fluid is not None else (),
            log=log,
            answered=Answered(total, total - int(sizes.sum()), cells=in_cells, **job.aid.num_ops),
            warnings=tuple(warnings),
        )


def counted(result: SimulationResult) -> SimulationResult:
    """With the use of links that its log says."""
    return result if result.log is None else replace(result, counters=link_counters(result.log), log=None)


def _not_learned(learned: LearnedInterference, variants: Variants) -> list[str]:
    """Which GPUs the learned interference says nothing about."""
    return [
        f"the learned interference knows no GPU of {size} SMs (only {', '.join(map(str, learned.num_sms))}):"
        " there kernels share SMs and HBM with communication"
        for size in sorted({spec.num_sms for spec in variants.gpus})
        if not learned.covers(size)
    ]


class Tapes:
    """Tapes of ``graph`` by program and GPU variant; with noise by rank."""

    def __init__(self, graph: Graph, variants: Variants, noise: Noise | None) -> None:
        self.graph = graph
        self._variants = variants
        self._noise = noise
        self._compilers: dict[int, TapeCompiler] = {}
        self._numbers: dict[tuple[Demand, int], int] = {}  # of different kernels
        self._tapes: dict[tuple[int, int], Tape] = {}

    def of_rank(self, rank: int) -> Tape:
        """What ``rank`` plays."""
        variant = int(self._variants.of_rank[rank])
        index = int(self.graph.program_of_rank[rank])
        compiler = self._compilers.get(variant)
        if compiler is None:
            spec = self._variants.gpus[variant]
            demands = self._variants.costs[variant].demands(self.graph.ops)
            compiler = TapeCompiler(
                self.graph, demands, spec.hbm_bytes_per_s, host_costs(spec), self._numbers
            )
            self._compilers[variant] = compiler
        program = self.graph.programs[index]
        if self._noise is not None:
            num_ops = len(self.graph.flat_ops(program))
            return compiler.compile(program, self._noise.factors(rank, num_ops))
        tape = self._tapes.get((index, variant))
        if tape is None:
            tape = self._tapes[index, variant] = compiler.compile(program)
        return tape

    def change(self, graph: Graph) -> None:
        """From here on they are of ``graph``, which differs in how often templates are played."""
        self.graph = graph
        self._tapes.clear()


def _share_done(ranks: list[Rank], progress: Callable[[float], None] | None) -> Progress | None:
    if progress is None:
        return None

    def report(_: int) -> None:
        total = max(1, sum(rank.tape.num_items for rank in ranks))  # may become more or less
        progress(sum(sum(rank.done) for rank in ranks) / total)

    return report
