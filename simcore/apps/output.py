"""Tables on the terminal: wide enough, and honest about readers that left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from simcore.analysis import StepAnalysis
from simcore.outside import CONTROL
from simcore.report import summary
from simcore.timeline import RunInfo

if TYPE_CHECKING:
    from simcore.engine import Answered

_MIN_WIDTH = 100


def print_summary(info: RunInfo, analysis: StepAnalysis, top: int, notes: Iterable[str]) -> None:
    """Print the summary tables."""
    print_wide(summary(info, analysis, top=top, notes=notes))


class _Stdout(Console):
    """Shows texts as they are: names of kernels are no markup, and what a terminal would obey is left out.

    A reader that left is left to the command: it decides how to end.
    """

    def __init__(self, width: int | None = None) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, width=width)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments of ``renderable``, without control characters."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control is None and text != "\n" and not text.isprintable():
                segment = Segment(CONTROL.sub("", text), style)
            yield segment

    def on_broken_pipe(self) -> None:
        """Pass the error on, instead of ending the process."""
        raise BrokenPipeError


def print_wide(content: RenderableType) -> None:
    """Print tables, never narrower than their columns need when not on a terminal."""
    console = _Stdout()
    if not console.is_terminal:
        console = _Stdout(max(console.width, _MIN_WIDTH))
    console.print(content)


def left_out_notes(left_out: Sequence[str]) -> tuple[str, ...]:
    """What a Perfetto file lacks, and where it is; nothing when it is complete."""
    if not left_out:
        return ()
    return (f"too much for Perfetto, see counters.parquet: {'; '.join(left_out)}",)


def answered_line(answered: Answered, events: int) -> str:
    """Who answered for which share of a step's op executions, and what happened for the rest."""
    shares = [
        (answered.folded, "folded"), (answered.steady, "steady state"), (answered.cells, "cells"),
        (answered.runs, "runs"), (answered.played, "one by one"),
    ]  # fmt: skip
    said = ", ".join(f"{_percent(number / answered.num_ops)} {name}" for number, name in shares if number > 0)
    return f"{_short(answered.num_ops)} op executions ({said}), {events:,} events"


def _short(number: int) -> str:
    for scale, name in ((1e9, " G"), (1e6, " M")):
        if number >= scale:
            return f"{number / scale:.3g}{name}"
    return f"{number:,}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"
