"""What stragglers cost a job: what-if questions on a log of its workers.

The method of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025): the ideal
job has every op as long as ops of its type are on average over workers, microbatches and steps (computes: the
mean; communication: the median of transfers, which count from the last arrival).  A part's blame is the
slowdown of the ideal job in which that part alone is as slow as it was.  Delays before ops that no other op
explains (data loading, the host) are taken out first: they are no straggler's doing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType

from simcore.apps.replay.longest_path import LongestPaths
from simcore.graph.ops import IntArray
from simcore.records import dataclass
from simcore.report.summary_tables import number_table
from simcore.units import PS_PER_S, format_time, s_from_ps
from workloads.imports import ImportedJob
from workloads.imports.logs.worker_job import WorkerOps
from workloads.imports.logs.worker_log import COMMUNICATION_TYPES

_MAX_CELLS = 1 << 24  # ops times scenarios at a time: 128 MiB
_MOST_WORKERS = 8  # shown, those who cost most; a job may have thousands
_WORST_PERCENT = 3  # of the workers: those that the paper's M_W blames together
_MERGED = {
    "forward-send": "forward-pp-comm", "forward-recv": "forward-pp-comm",
    "backward-send": "backward-pp-comm", "backward-recv": "backward-pp-comm",
}  # fmt: skip

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Fix:
    """What mending some workers alone would save: of all that stragglers cost, the share ``explained``.

    ``t_fixed_s`` is the mean step with these workers ideal and all others as they were.
    """

    workers: tuple[int, ...]
    t_fixed_s: float
    explained: float


@dataclass(frozen=True)
class Stragglers:
    """Means over steps, seconds, and slowdowns against the ideal (1: none).

    ``t_actual_s`` is recorded, ``t_simulated_s`` without unexplained delays; ``slowdown`` compares the latter
    with ``t_ideal_s`` (the paper's S), ``delay_slowdown`` the former with the latter.  ``by_stage``,
    ``by_dp_rank`` and ``by_optype`` are the paper's S_t of such a part alone; ``by_worker`` (by rank) the
    smaller of the worker's stage and dp_rank (S_w).  ``last_stage`` is its M_S, ``slowest_workers`` its M_W.
    """

    t_actual_s: float
    t_simulated_s: float
    t_ideal_s: float
    by_stage: dict[int, float]
    by_dp_rank: dict[int, float]
    by_worker: dict[int, float]
    by_optype: dict[str, float]
    last_stage: Fix
    slowest_workers: Fix
    steps: dict[int, dict[str, float]]

    @property
    def slowdown(self) -> float:
        """How much longer a step takes than without stragglers."""
        return self.t_simulated_s / self.t_ideal_s

    @property
    def delay_slowdown(self) -> float:
        """How much longer a step takes than without unexplained delays."""
        return self.t_actual_s / self.t_simulated_s

    def as_object(self) -> dict[str, Any]:
        """For JSON; keys of parts are strings."""
        parts = {
            name: {str(part): value for part, value in getattr(self, name).items()}
            for name in ("by_stage", "by_dp_rank", "by_worker", "by_optype", "steps")
        }
        return {
            "t_actual_s": self.t_actual_s,
            "t_simulated_s": self.t_simulated_s,
            "t_ideal_s": self.t_ideal_s,
            "slowdown": self.slowdown,
            "delay_slowdown": self.delay_slowdown,
            **parts,
            "last_stage": vars(self.last_stage),
            "slowest_workers": vars(self.slowest_workers),
        }


class _Scenarios:
    """Durations of an imported log's op rows, and step times of what is made of them."""

    def __init__(self, job: ImportedJob, ops: WorkerOps) -> None:
        graph = job.graph
        self._ops = ops
        self._paths = LongestPaths(graph)
        starts = np.array([graph.template_start[int(p.template[0])] for p in graph.programs], dtype=np.int64)
        self._row = starts[ops.worker] + ops.flat
        delayed = ops.gap >= 0
        self._without_delays = np.maximum(graph.ops.recorded_ps, 0)
        self._without_delays[starts[ops.worker[delayed]] + ops.gap[delayed]] = 0
        self.actual = self._without_delays[self._row]
        self.ideal = self._ideal()
        # The op that begins a step is the first that the step's ops wait for: all workers' at one time.
        self._begin = np.flatnonzero(graph.ops.group.equals("steps"))

    def _ideal(self) -> IntArray:
        ideal: IntArray = self.actual.copy()
        for code, optype in enumerate(self._ops.optype.values):
            rows = self._ops.optype.codes == code
            if rows.any():
                average = np.median if optype in COMMUNICATION_TYPES else np.mean
                ideal[rows] = round(float(average(self.actual[rows])))
        return ideal

    def step_times_ps(self, durations: list[IntArray]) -> IntArray:
        """By scenario and step."""
        at_a_time = max(1, _MAX_CELLS // len(self._without_delays))
        parts = [
            self._times(durations[first : first + at_a_time]) for first in range(0, len(durations), at_a_time)
        ]
        return np.concatenate(parts)

    def _times(self, durations: list[IntArray]) -> IntArray:
        num_steps = len(self._ops.log.steps)
        table = np.tile(self._without_delays, (len(durations), 1))
        table[:, self._row] = np.stack(durations)
        ends = self._paths.end_times(table)
        last = np.zeros((num_steps, len(durations)), dtype=np.int64)
        np.maximum.at(last, self._ops.step, ends[:, self._row].T)
        times: IntArray = last.T - ends[:, self._begin[:num_steps]]
        return times


def analyse_stragglers(job: ImportedJob) -> Stragglers | None:
    """The what-if table of an imported log of workers; None for another kind of import."""
    ops = job.origin
    if not isinstance(ops, WorkerOps):
        return None
    log = ops.log
    scenarios = _Scenarios(job, ops)
    stage, dp_rank = log.stage_of[ops.worker], log.dp_of[ops.worker]
    optype = np.array([_MERGED.get(value, value) for value in log.optype.values])[log.optype.codes]
    parts: dict[tuple[str, Any], BoolArray] = {("stage", s): stage == s for s in range(log.num_stages)}
    parts |= {("dp_rank", d): dp_rank == d for d in range(log.num_dp)}
    parts |= {("optype", str(t)): optype == t for t in np.unique(optype)}

    def ideal_but(part: BoolArray) -> IntArray:
        chosen: IntArray = np.where(part, scenarios.actual, scenarios.ideal)
        return chosen

    def actual_but(part: BoolArray) -> IntArray:
        chosen: IntArray = np.where(part, scenarios.ideal, scenarios.actual)
        return chosen

    asked = [scenarios.actual, scenarios.ideal, *(ideal_but(part) for part in parts.values())]
    asked.append(actual_but(parts["stage", log.num_stages - 1]))
    times = scenarios.step_times_ps(asked)
    mean = times.mean(axis=1)
    simulated, ideal = mean[0], mean[1]
    blame = dict(zip(parts, (mean[2:-1] / ideal).tolist(), strict=True))
    by_worker = {
        number: min(blame["dp_rank", int(log.dp_of[i])], blame["stage", int(log.stage_of[i])])
        for i, number in enumerate(log.numbers)
    }
    count = -(-len(by_worker) * _WORST_PERCENT // 100)
    worst = sorted(by_worker, key=lambda number: (-by_worker[number], number))[:count]
    slow = np.isin(np.array(log.numbers)[ops.worker], worst)
    mended = scenarios.step_times_ps([actual_but(slow)]).mean()
    recorded = np.zeros(len(log.steps), dtype=np.int64)
    np.maximum.at(recorded, ops.step, log.end_ps)
    in_last = tuple(n for i, n in enumerate(log.numbers) if log.stage_of[i] == log.num_stages - 1)

    def of(kind: str) -> dict[Any, float]:
        found = {name: value for (what, name), value in blame.items() if what == kind}
        return dict(sorted(found.items(), key=lambda item: -item[1])) if kind == "optype" else found

    def fix(workers: tuple[int, ...], fixed_ps: float) -> Fix:
        cost = simulated - ideal
        return Fix(workers, s_from_ps(fixed_ps), (simulated - fixed_ps) / cost if cost else 0.0)

    return Stragglers(
        t_actual_s=s_from_ps(recorded.mean()),
        t_simulated_s=s_from_ps(simulated),
        t_ideal_s=s_from_ps(ideal),
        by_stage=of("stage"),
        by_dp_rank=of("dp_rank"),
        by_worker=by_worker,
        by_optype=of("optype"),
        last_stage=fix(in_last, mean[-1]),
        slowest_workers=fix(tuple(worst), mended),
        steps={
            number: {
                "t_actual_s": s_from_ps(int(recorded[k])),
                "t_simulated_s": s_from_ps(int(times[0, k])),
                "t_ideal_s": s_from_ps(int(times[1, k])),
            }
            for k, number in enumerate(log.steps)
        },
    )


def straggler_tables(found: Stragglers) -> RenderableType:
    """What stragglers cost, and whose they are."""
    summary = number_table("stragglers", ("recorded", "without unexplained delays", "ideal", "slowdown"))
    times = (found.t_actual_s, found.t_simulated_s, found.t_ideal_s)
    shown = [format_time(time * PS_PER_S) for time in times]
    summary.add_row("mean step", *shown, f"{found.slowdown:.4f}")
    blame = number_table("the ideal job with one part as it was", ("slowdown",))
    workers = sorted(found.by_worker.items(), key=lambda item: -item[1])
    rows = [
        *((f"stage {stage}", value) for stage, value in found.by_stage.items()),
        *((f"dp_rank {rank}", value) for rank, value in found.by_dp_rank.items()),
        *((f"worker of rank {rank}", value) for rank, value in workers[:_MOST_WORKERS]),
        *found.by_optype.items(),
    ]
    for name, value in rows:
        blame.add_row(name, f"{value:.4f}")
    return Group(
        summary,
        blame,
        _sentence("The last stage", found.last_stage),
        _sentence("The slowest workers", found.slowest_workers),
    )


def _sentence(who: str, fix: Fix) -> str:
    ranks = ", ".join(map(str, fix.workers[:_MOST_WORKERS]))
    more = f" and {len(fix.workers) - _MOST_WORKERS} more" if len(fix.workers) > _MOST_WORKERS else ""
    return (
        f"{who} (rank {ranks}{more}) made ideal, all others as they were: {1e3 * fix.t_fixed_s:.3f} ms,"
        f" {fix.explained:.1%} of what stragglers cost."
    )
