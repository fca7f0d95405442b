"""What a finished run prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType

from simcore.analysis import StepAnalysis
from simcore.report import summary
from simcore.timeline import RunInfo

if TYPE_CHECKING:
    from simcore.apps.run.simulation import FinishedRun

_MIN_WIDTH = 100


def print_summary(info: RunInfo, analysis: StepAnalysis, top: int, notes: Iterable[str]) -> None:
    """Print the summary tables."""
    print_wide(summary(info, analysis, top=top, notes=notes))


class _Stdout(Console):
    """Leaves a reader that left to the command: it decides how to end."""

    def on_broken_pipe(self) -> None:
        """Pass the error on, instead of ending the process."""
        raise BrokenPipeError


def print_wide(content: RenderableType) -> None:
    """Print tables, never narrower than their columns need when not on a terminal."""
    console = _Stdout(highlight=False)
    if not console.is_terminal:
        console = _Stdout(highlight=False, width=max(console.width, _MIN_WIDTH))
    console.print(content)


def left_out_notes(left_out: Sequence[str]) -> tuple[str, ...]:
    """What a Perfetto file lacks, and where it is; nothing when it is complete."""
    if not left_out:
        return ()
    return (f"too much for Perfetto, see counters.parquet: {'; '.join(left_out)}",)


def print_outcome(outcome: FinishedRun, wall_s: float) -> None:
    """Print a run's summary, and where its files are."""
    from simcore.apps.run.simulation import PERFETTO_FILE

    run_dir = outcome.run_dir
    ranks = outcome.perfetto_ranks
    shown = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
    notes = (
        outcome.info.assumptions[0],
        f"simulated in {wall_s:.1f} s, {outcome.info.engine_events:,} events",
        f"run folder: {run_dir} (timeline.parquet, counters.parquet, rank_classes.parquet, run.json)",
        f"Perfetto (ui.perfetto.dev): {run_dir / PERFETTO_FILE}, rank{'s' if len(ranks) > 1 else ''} {shown}",
        *left_out_notes(outcome.perfetto_left_out),
        f"other ranks: python scripts/report.py {run_dir} --perfetto FILE --ranks 0,1,2 (--host: host lanes)",
    )
    print_summary(outcome.info, outcome.analysis, 8, notes)
