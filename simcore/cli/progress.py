"""What a run is doing now, on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

_WORTH_A_LINE_S = 2.0

Update = Callable[[float], None]


class Stages:
    """Times the stages of a run and shows the one that runs: a bar on a terminal, else a line at its end.

    ``seconds`` is the wall time by stage so far.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._console = Console(stderr=True)

    @contextmanager
    def stage(self, name: str) -> Iterator[Update]:
        """Time the block; it may report the share that is done, 0 to 1."""
        began = time.perf_counter()
        try:
            if self._console.is_terminal:
                with self._bar() as bar:
                    task = bar.add_task(name, total=None)
                    yield lambda done: bar.update(task, completed=done, total=1.0)
            else:
                yield lambda done: None  # noqa: ARG005
        finally:
            took = time.perf_counter() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + took
            if took > _WORTH_A_LINE_S:
                self._console.print(f"{name}: {took:.1f} s", highlight=False)

    def _bar(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        return Progress(*columns, console=self._console, transient=True, refresh_per_second=4)
