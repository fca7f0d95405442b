"""``replay``: recorded profiler traces played back by the engine, step by step beside the recording."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcore.cli.errors import reported_errors

if TYPE_CHECKING:
    import numpy as np
    from rich.console import RenderableType

    from simcore.engine import SimulationResult
    from simcore.graph.ops import IntArray
    from workloads.imports import ImportedJob, ImportedRank


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
        return {
            "exposed_compute": self.exposed_compute,
            "overlapped": self.overlapped,
            "exposed_communication": self.exposed_communication,
            "other": self.other,
        }


@dataclass(frozen=True)
class ReplayedStep:
    """One step of one rank: recorded and replayed.  ``step`` -1: the trace has no steps."""

    rank: int
    step: int
    recorded: Split
    replayed: Split

    @property
    def error(self) -> float:
        """Relative error of the replayed span."""
        return self.replayed.span / self.recorded.span - 1.0 if self.recorded.span else 0.0


def replay_job(job: ImportedJob, step: int | None = None) -> list[ReplayedStep]:
    """Replay with recorded durations; all steps, or the one numbered ``step``.

    Errors: InputError for a step that no trace has, DeadlockError when the imported graph hangs.
    """
    from simcore.errors import InputError

    known = sorted({found.number for rank in job.ranks for found in rank.steps})
    if step is not None and step not in known:
        numbers = ", ".join(map(str, known[:12])) if known != [-1] else "none (no ProfilerStep annotations)"
        raise InputError(f"no step {step} in the traces; steps: {numbers}")
    result = simulate_job(job)
    rows = []
    for index, rank in enumerate(job.ranks):
        times = result.times_of(index)
        # A communication kernel starts when it is placed, long before its last peer comes.
        start, end = times.ready_ps[rank.flat], times.end_ps[rank.flat]
        computes = ~rank.recorded.is_comm
        start[computes] = times.start_ps[rank.flat][computes]
        for found, members in zip(rank.steps, rank.step_ops, strict=True):
            if step is None or found.number == step:
                recorded = _split(rank, members, rank.recorded.start_ps, rank.recorded.end_ps)
                rows.append(
                    ReplayedStep(rank.number, found.number, recorded, _split(rank, members, start, end))
                )
    return rows


def simulate_job(job: ImportedJob) -> SimulationResult:
    """Play the graph of an import: every op as long as recorded, every wait resolved by the engine."""
    from dataclasses import replace

    from simcore.collectives.recorded import RecordedPlanner
    from simcore.cost.recorded import RecordedCost
    from simcore.engine import simulate
    from simcore.hardware import Topology, load_cluster

    cluster = load_cluster("h800-96", {})
    # Launches and copies cost what was recorded: the host's times are ops of the graph.
    gpu = replace(
        cluster.gpu, launch_overhead_s=0.0, launch_latency_s=0.0, copy_engines=len(job.ranks[0].recorded)
    )
    nodes = -(-len(job.ranks) // cluster.gpus_per_node)
    topology = Topology(replace(cluster, gpu=gpu, num_nodes=nodes))
    return simulate(job.graph, topology, RecordedCost(), RecordedPlanner(), network="alphabeta", fold=False)


def _split(rank: ImportedRank, members: IntArray, start: IntArray, end: IntArray) -> Split:
    from simcore.analysis.breakdown import break_down
    from simcore.analysis.intervals import Intervals
    from simcore.units import s_from_ps

    start, end = start[members], end[members]
    is_comm = rank.recorded.is_comm[members]
    is_kernel = rank.recorded.is_kernel[members]

    def covered(mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Intervals:
        return Intervals.union(start[mask], end[mask])

    span = int(end.max() - start.min())
    parts = break_down(covered(is_kernel & ~is_comm), covered(is_comm), span)
    return Split(
        s_from_ps(span), s_from_ps(parts.exposed_compute), s_from_ps(parts.overlapped),
        s_from_ps(parts.exposed_communication), s_from_ps(parts.idle),
    )  # fmt: skip


def replay(
    traces: Annotated[list[Path], typer.Argument(help="Trace files (.json, .json.gz, .tar.gz) or folders.")],
    step: Annotated[int | None, typer.Option(help="Only this step (its ProfilerStep number).")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Go on without files that are bad.")] = False,
    gaps: Annotated[
        str, typer.Option(help="Launch latencies and gaps between kernels: 'recorded', or 'typical' for all.")
    ] = "recorded",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Replay recorded PyTorch profiler traces and compare with the recording."""
    with reported_errors():
        import json

        from simcore.cli.output import print_wide
        from workloads.imports import import_traces

        job = import_traces(traces, skip_bad=skip_bad, gaps=gaps)
        steps = replay_job(job, step)
        if as_json:
            print(json.dumps(replay_object(job, steps)))
        else:
            print_wide(_table(job, steps))


def replay_object(job: ImportedJob, steps: list[ReplayedStep]) -> dict[str, Any]:
    """The JSON object of a replay."""
    return {
        "steps": [
            {
                "rank": row.rank,
                "step": row.step,
                "recorded_s": row.recorded.span,
                "predicted_s": row.replayed.span,
                "error": row.error,
                "breakdown_s": row.replayed.parts(),
                "recorded_breakdown_s": row.recorded.parts(),
            }
            for row in steps
        ],
        "import_report": job.report.as_object(),
    }


def _table(job: ImportedJob, steps: list[ReplayedStep]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    table = Table(title="replayed (recorded), ms")
    for column in ("rank", "step", "span", "error", *steps[0].recorded.parts()):
        table.add_column(column.replace("_", " "), justify="right")
    for row in steps:
        spans = [(row.replayed.span, row.recorded.span)]
        parts = zip(row.replayed.parts().values(), row.recorded.parts().values(), strict=True)
        cells = [f"{1e3 * ours:.3f} ({1e3 * theirs:.3f})" for ours, theirs in (*spans, *parts)]
        name = str(row.step) if row.step >= 0 else "all"
        table.add_row(str(row.rank), name, cells[0], f"{row.error:+.2%}", *cells[1:])
    notes = [f"- {doubt}" for doubt in job.report.doubts()]
    return Group(table, *(["What the traces do not show:", *notes] if notes else []))


def main() -> None:
    """Run the command alone (``scripts/replay.py``)."""
    typer.run(replay)
