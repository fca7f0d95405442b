"""Playing an imported recording: the engine runs its graph, and the steps are read off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np

from simcore.analysis.breakdown import break_down
from simcore.analysis.intervals import Intervals
from simcore.collectives.recorded import RecordedPlanner
from simcore.cost.demand import RecordedCost
from simcore.engine import SimulationResult
from simcore.errors import InputError
from simcore.graph import Graph
from simcore.graph.ops import IntArray
from simcore.hardware import ClusterSpec, load_cluster
from simcore.records import dataclass
from simcore.run import Setup, run
from simcore.units import s_from_ps
from workloads.imports import ImportedJob
from workloads.imports.recorded import BoolArray, ImportedRank
from workloads.imports.recording.graph import ends_late


@dataclass(frozen=True)
class Replay:
    """A recording and its replay: ``graph`` was played on ``cluster``, rank ``i`` of the import as rank
    ``rank_of[i]`` of the graph.

    ``start_ps[i]``, ``end_ps[i]`` are the times of the recorded ops of rank ``i`` of the import, as a
    profiler would see them: a communication kernel starts when it is placed, long before its last peer comes.
    ``notes`` say what was assumed; ``origins`` is the share of kernel time by origin of its estimate.
    """

    job: ImportedJob
    graph: Graph
    cluster: ClusterSpec
    network: str
    result: SimulationResult
    rank_of: tuple[int, ...]
    start_ps: tuple[IntArray, ...]
    end_ps: tuple[IntArray, ...]
    notes: tuple[str, ...] = ()
    origins: Mapping[str, float] = field(default_factory=dict)

    def doubts(self) -> list[str]:
        """What limits trust in it, worst first; what the network decides is no longer in doubt."""
        report = self.job.report
        return (replace(report, lone_collectives=0) if self.network == "fluid" else report).doubts()

    def steps(self, step: int | None = None) -> list[ReplayedStep]:
        """All steps of all ranks, or those numbered ``step``.  InputError for a step that no trace has."""
        known = sorted({found.number for rank in self.job.ranks for found in rank.steps})
        if step is not None and step not in known:
            numbers = (
                ", ".join(map(str, known[:12])) if known != [-1] else "none (no ProfilerStep annotations)"
            )
            raise InputError(f"no step {step} in the traces; steps: {numbers}")
        rows = []
        for index, rank in enumerate(self.job.ranks):
            for found, members in zip(rank.steps, rank.step_ops, strict=True):
                if step is None or found.number == step:
                    recorded = self._recorded(index, found.number, rank, members)
                    replayed = split(rank, members, self.start_ps[index], self.end_ps[index])
                    rows.append(ReplayedStep(rank.number, found.number, recorded, replayed, index, members))
        return rows

    def _recorded(self, index: int, step: int, rank: ImportedRank, members: IntArray) -> Split:
        """A step as it was before edits: a schedule written anew has ops that nobody recorded."""
        for one in self.job.unedited[index : index + 1]:
            known = [ops for found, ops in zip(one.steps, one.step_ops, strict=True) if found.number == step]
            if known:
                rank, members = one, known[0]
        return split(rank, members, rank.recorded.start_ps, rank.recorded.end_ps)


#: How far steps may be off, on average, when all gaps are typical ones.
TYPICAL_BAND = 0.10


def check_typical_gaps(job: ImportedJob) -> None:
    """InputError for a job, imported with typical gaps, whose steps do not come back so.

    What then happens between its ops differs from time to time: no gap is typical, and no answer that rests
    on typical ones is worth anything.
    """
    off = float(np.mean([abs(row.error) for row in play(job).steps()]))
    if off > TYPICAL_BAND:
        raise InputError(
            f"--gaps typical: steps would take {off:.0%} more or less than recorded, on average (at most"
            f" {TYPICAL_BAND:.0%}): gaps between the ops of this recording are not alike; use --gaps recorded"
        )


def play(job: ImportedJob) -> Replay:
    """Replay with recorded durations.  Errors: DeadlockError when the imported graph hangs."""
    cluster = stand_in_cluster(job)
    ranks = tuple(range(len(job.ranks)))
    return replay_of(job, job.graph, cluster, "recorded", simulate_job(job), ranks, origins={"recorded": 1.0})


def replay_of(
    job: ImportedJob,
    graph: Graph,
    cluster: ClusterSpec,
    network: str,
    result: SimulationResult,
    rank_of: tuple[int, ...],
    *,
    notes: tuple[str, ...] = (),
    origins: Mapping[str, float] | None = None,
) -> Replay:
    """The replay that ``result`` is, with times of the recorded ops."""
    starts, ends = [], []
    for number, rank in zip(rank_of, job.ranks, strict=True):
        times = result.times_of(number)
        start = times.ready_ps[rank.flat]
        computes = ~rank.recorded.is_comm
        start[computes] = times.start_ps[rank.flat][computes]
        rows = graph.flat_ops(graph.programs[graph.program_of_rank[number]]).row[rank.flat].astype(np.int64)
        end = times.end_ps[rank.flat + ends_late(graph.ops, rows)]
        if rank.seen_after is not None:
            since = np.where(rank.seen_after >= 0, times.end_ps[rank.seen_after], start)
            start = np.minimum(end, np.maximum(start, since))
        starts.append(start)
        ends.append(end)
    return Replay(
        job, graph, cluster, network, result, rank_of, tuple(starts), tuple(ends), notes, origins or {}
    )


def simulate_job(job: ImportedJob) -> SimulationResult:
    """Play the graph of an import: every op as long as recorded, every wait resolved by the engine."""
    setup = Setup(network="alphabeta", fold=False)
    cluster = stand_in_cluster(job)
    return run(job.graph, cluster, setup, cost=RecordedCost(), planner=RecordedPlanner()).result


def stand_in_cluster(job: ImportedJob) -> ClusterSpec:
    """Any cluster that is large enough: what its hardware can do is not asked."""
    cluster = load_cluster("h800-96", {})
    # Launches and copies cost what was recorded: the host's times are ops of the graph.
    gpu = replace(
        cluster.gpu, launch_overhead_s=0.0, launch_latency_s=0.0, copy_engines=len(job.ranks[0].recorded)
    )
    nodes = -(-len(job.ranks) // cluster.gpus_per_node)
    name = next((rank.gpu for rank in job.ranks if rank.gpu), "unknown GPU")
    return replace(cluster, name="recorded", gpu=replace(gpu, name=name), num_nodes=nodes)


@dataclass(frozen=True)
class Split:
    """A step of one rank, seconds; the parts add up to ``span``.

    HolisticTraceAnalysis' convention: a communication kernel counts from its start, waiting for its peers
    included; copies and memsets are neither compute nor communication.  ``other`` is copies and idle time.
    """

    span: float
    exposed_compute: float
    overlapped: float
    exposed_communication: float
    other: float

    def parts(self) -> dict[str, float]:
        """The parts by name."""
        return {name: value for name, value in vars(self).items() if name != "span"}


@dataclass(frozen=True)
class ReplayedStep:
    """One step of one rank: recorded and replayed.  ``step`` -1: the trace has no steps.

    ``index`` is the rank's place in the import, ``members`` its ops that belong to the step.
    """

    rank: int
    step: int
    recorded: Split
    replayed: Split
    index: int
    members: IntArray

    @property
    def error(self) -> float:
        """Relative error of the replayed span."""
        return self.replayed.span / self.recorded.span - 1.0 if self.recorded.span else 0.0


def split(rank: ImportedRank, members: IntArray, start: IntArray, end: IntArray) -> Split:
    """Where the time of ``members`` goes, given start and end of all ops of the rank, ps."""
    start, end = start[members], end[members]
    is_comm = rank.recorded.is_comm[members]
    is_kernel = rank.recorded.is_kernel[members]

    def covered(mask: BoolArray) -> Intervals:
        return Intervals.union(start[mask], end[mask])

    span = int(end.max() - start.min())
    parts = break_down(covered(is_kernel & ~is_comm), covered(np.asarray(is_comm)), span)
    return Split(
        s_from_ps(span), s_from_ps(parts.exposed_compute), s_from_ps(parts.overlapped),
        s_from_ps(parts.exposed_communication), s_from_ps(parts.idle),
    )  # fmt: skip
