"""How far the ranks of a trace are: bars on a terminal, lines where the output goes into a file or a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from workloads.tracing.drive.rounds import Progress

#: Between two lines, so that a log of half an hour stays readable; and while no rank is done.
_LINE_EVERY_S, _ALIVE_EVERY_S = 5.0, 30.0


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Ranks done, elapsed and remaining time of each phase, on stderr."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}
        before: dict[str, int] = {}

        def show(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase], before[phase] = bars.add_task(f"{phase} (ranks)", total=total), 0
            elif done == 0:  # another round of the same phase
                before[phase] = int(bars.tasks[tasks[phase]].completed)
            bars.update(tasks[phase], completed=before[phase] + done, total=before[phase] + total)

        yield show


class _Lines:
    """A line on stderr every few seconds with what was done and what is left at the pace so far."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._earlier: dict[str, int] = {}
        self._latest: dict[str, tuple[int, int]] = {}
        self._said = time.monotonic()

    def __call__(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        self._began.setdefault(phase, now)
        if done < self._latest.get(phase, (0, 0))[0]:  # another round of the same phase
            self._earlier[phase] = self._earlier.get(phase, 0) + self._latest[phase][1]
        changed, self._latest[phase] = self._latest.get(phase) != (done, total), (done, total)
        if now - self._said < (_LINE_EVERY_S if changed else _ALIVE_EVERY_S):
            return
        self._said = now
        done, total = (self._earlier.get(phase, 0) + number for number in (done, total))
        took = now - self._began[phase]
        left = f", about {took / done * (total - done):.0f} s left" if done else ""
        print(f"{phase}: {done} of {total} ranks, {took:.0f} s{left}", file=sys.stderr, flush=True)
