"""One pass over a timeline: everything that the summary, the JSON object and the plots show."""

from __future__ import annotations

from collections import defaultdict

from simcore.analysis.breakdown import (
    Breakdown,
    break_down,
    mean_breakdown,
)
from simcore.analysis.intervals import Intervals
from simcore.analysis.metrics import Throughput, throughput
from simcore.analysis.totals import Key, Total, Totals
from simcore.analysis.waterfall import RankWork, Waterfall, parts_of, waterfall_of
from simcore.records import dataclass
from simcore.timeline.reader import Timeline
from simcore.units import s_from_ps

_COLUMNS = (
    "stage",
    "name",
    "kind",
    "phase",
    "group",
    "algorithm",
    "protocol",
    "bytes",
    "flops",
    "ready_ps",
    "start_ps",
    "end_ps",
    "alone_ps",
)


@dataclass(frozen=True)
class RankStep:
    """One rank's step, standing for ``num_ranks``.

    ``bubble_ps``: time in which its stage runs neither a kernel nor a collective (send and recv do not
    count as work of the stage).  ``compute_contention_ps``, ``communication_contention_ps``: sum of
    ``(end - start) - alone`` of its kernels.  ``waiting_ps``: time in which some communication is between
    ready and start: waiting for SMs, then holding them and waiting for peers.
    """

    rank: int
    num_ranks: int
    stage: int
    breakdown: Breakdown
    profiled: Breakdown
    bubble_ps: int
    compute_contention_ps: int
    communication_contention_ps: int
    waiting_ps: int
    queueing_ps: int


@dataclass(frozen=True)
class StepAnalysis:
    """A simulated step, analysed.  Means are over all ranks; times in ps unless a name says otherwise.

    ``kernels`` by (name,), ``collectives`` by (name, group, algorithm, protocol), ``phases`` by
    (phase, kind): totals over all ranks, longest first.  ``bubble_fraction`` is mean ``bubble_ps`` / step.
    ``profiled`` is the breakdown that a profiler's trace would give: a communication kernel counts from when
    it is on the GPU, waiting for peers included.  ``waterfall``: where the step goes, from the ideal one on.
    """

    step_ps: int
    num_ranks: int
    breakdown: Breakdown
    profiled: Breakdown
    bubble_fraction: float
    compute_contention_ps: float
    communication_contention_ps: float
    waiting_ps: float
    queueing_ps: float
    throughput: Throughput
    ranks: tuple[RankStep, ...]
    kernels: list[tuple[Key, Total]]
    collectives: list[tuple[Key, Total]]
    phases: list[tuple[Key, Total]]
    waterfall: Waterfall

    @property
    def step_s(self) -> float:
        """Step time, s."""
        return s_from_ps(self.step_ps)

    @property
    def stage_of(self) -> dict[int, int]:
        """Stage of each rank that stands for a class."""
        return {rank.rank: rank.stage for rank in self.ranks}

    def breakdown_s(self) -> dict[str, float]:
        """Mean breakdown by part, s."""
        return {name: s_from_ps(part) for name, part in self.breakdown.parts().items()}

    def stages(self) -> dict[int, Breakdown]:
        """Mean breakdown of the ranks of each stage."""
        found: dict[int, list[tuple[Breakdown, int]]] = {}
        for rank in self.ranks:
            found.setdefault(rank.stage, []).append((rank.breakdown, rank.num_ranks))
        return {stage: mean_breakdown(found[stage]) for stage in sorted(found)}


def analyse(timeline: Timeline) -> StepAnalysis:
    """Analyse a run.  Reads the timeline rank by rank; memory is that of one row group."""
    info = timeline.info
    step_ps = info.step_ps
    kernels, phases = Totals(("name",)), Totals(("phase", "kind"))
    collectives = Totals(("name", "group", "algorithm", "protocol"))
    ranks: list[RankStep] = []
    parts: dict[str, int] = defaultdict(int)
    for rows in timeline.representatives(_COLUMNS):
        seen = RankWork.of(rows)
        for which, apart, times in zip((kernels, collectives), *seen.told_apart(), strict=True):
            times_ps = apart.summed(times)
            which.add(rows, apart, times_ps)
            phases.add(rows, apart, times_ps)
        ranks.append(_rank_step(seen, step_ps))
        for name, ps in parts_of(seen, info).items():
            parts[name] += ps * rows.num_ranks
    num_ranks = sum(rank.num_ranks for rank in ranks)

    def mean(field: str) -> float:
        total: int = sum(getattr(rank, field) * rank.num_ranks for rank in ranks)
        return total / num_ranks

    return StepAnalysis(
        step_ps=step_ps,
        num_ranks=num_ranks,
        breakdown=mean_breakdown([(rank.breakdown, rank.num_ranks) for rank in ranks]),
        profiled=mean_breakdown([(rank.profiled, rank.num_ranks) for rank in ranks]),
        bubble_fraction=mean("bubble_ps") / step_ps if step_ps else 0.0,
        compute_contention_ps=mean("compute_contention_ps"),
        communication_contention_ps=mean("communication_contention_ps"),
        waiting_ps=mean("waiting_ps"),
        queueing_ps=mean("queueing_ps"),
        throughput=throughput(info, step_ps),
        ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
        kernels=kernels.ranked(),
        collectives=collectives.ranked(),
        phases=phases.ranked(),
        waterfall=waterfall_of(parts, info),
    )


def _rank_step(seen: RankWork, step_ps: int) -> RankStep:
    rows, compute, communication = seen.rows, seen.compute, seen.communication
    on_gpu = Intervals.union(communication.ready, communication.end)
    collecting = Intervals.union(communication.start[seen.collectives], communication.end[seen.collectives])
    return RankStep(
        rank=rows.rank,
        num_ranks=rows.num_ranks,
        stage=int(rows.ints("stage")[0]),
        breakdown=break_down(seen.computing, seen.communicating, step_ps),
        profiled=break_down(seen.computing, on_gpu, step_ps),
        bubble_ps=step_ps - seen.computing.joined(collecting).total,
        compute_contention_ps=compute.contention,
        communication_contention_ps=communication.contention,
        waiting_ps=Intervals.union(communication.ready, communication.start).total,
        queueing_ps=int((compute.start - compute.ready).sum()),
    )
