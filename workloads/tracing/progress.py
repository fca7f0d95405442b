"""What a command shows while ranks are traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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

from simcore.errors import InputError
from workloads.tracing.pool import Progress


def check_target(out: Path) -> None:
    """Before minutes of tracing: will there be a place to write to?  InputError when not."""
    if out.exists() and not (out.is_dir() and ((out / "graph.json").is_file() or not any(out.iterdir()))):
        raise InputError(f"{out}: exists and is not a graph folder; it is left alone")


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Bars with elapsed and remaining time, one per phase, on stderr."""
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
