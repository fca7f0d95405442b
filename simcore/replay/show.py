"""What a replay shows: the JSON object and the tables."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from simcore.replay.split import ReplayedStep
from workloads.imports import ImportedJob


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


def replay_tables(job: ImportedJob, steps: list[ReplayedStep]) -> RenderableType:
    """Tables of a replay for a terminal."""
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
