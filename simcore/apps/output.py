"""Tables on the terminal: wide enough, and honest about readers that left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType

from simcore.analysis import StepAnalysis
from simcore.report import summary
from simcore.timeline import RunInfo

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
