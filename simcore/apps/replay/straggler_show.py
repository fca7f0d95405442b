"""The straggler study as tables for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from simcore.apps.replay.stragglers import Fix, Stragglers

_MOST_WORKERS = 8  # those who cost most; a job may have thousands


def straggler_tables(found: Stragglers) -> RenderableType:
    """What stragglers cost, and whose they are."""
    summary = Table(title="stragglers: mean step, ms")
    for column in ("recorded", "without unexplained delays", "ideal", "slowdown"):
        summary.add_column(column, justify="right")
    times = (found.t_actual_s, found.t_simulated_s, found.t_ideal_s)
    summary.add_row(*(f"{1e3 * time:.3f}" for time in times), f"{found.slowdown:.4f}")
    blame = Table(title="the ideal job with one part as it was")
    for column in ("part", "slowdown"):
        blame.add_column(column, justify="left" if column == "part" else "right")
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
