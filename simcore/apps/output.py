"""Tables on the terminal, wide enough."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from io import StringIO
from textwrap import fill
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment

from simcore.analysis import StepAnalysis
from simcore.outside import CONTROL, printable
from simcore.report import summary
from simcore.timeline import RunInfo

if TYPE_CHECKING:
    from simcore.engine import Answered


def summary_text(info: RunInfo, analysis: StepAnalysis, top: int = 8) -> str:
    """The summary tables, as wide as they are printed."""
    return _wide(summary(info, analysis, top=top))


def print_summary(tables: str, notes: Iterable[str]) -> None:
    """Print the summary's ``tables``, and ``notes``, whose words (paths) are never broken."""
    print(tables, end="")
    width = _Stdout().width
    for note in notes:
        print(printable(fill(note, width, break_long_words=False, break_on_hyphens=False)))


class _Stdout(Console):
    """Shows texts as they are: names of kernels are no markup, and what a terminal would obey is left out."""

    def __init__(self, width: int | None = None, file: StringIO | None = None) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, width=width, file=file)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments of ``renderable``, without control characters."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control is None and text != "\n" and not text.isprintable():
                segment = Segment(CONTROL.sub("", text), style)
            yield segment


class _Text(StringIO):
    """What will be printed, in the letters and colours that stdout takes; nothing is written to that yet."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return sys.stdout.encoding

    def isatty(self) -> bool:
        return sys.stdout.isatty()


def print_wide(content: RenderableType) -> None:
    """Print tables as wide as the terminal is, or as their numbers need: none is ever cut."""
    print(_wide(content), end="")


def _wide(content: RenderableType) -> str:
    console = _Stdout()
    needed = Measurement.get(console, console.options, content).minimum
    text = _Text()
    _Stdout(max(needed, console.width), text).print(content)
    return text.getvalue()


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
