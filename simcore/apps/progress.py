"""What a run is doing now, on stderr."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress

_WORTH_A_LINE_S = 2.0


#: A command as hints name it, with what stands in front of it.
_COMMAND: Final = re.compile(
    r"(?:python )?(?:scripts/)?\b(run_sim|plan|sweep|report|compare|replay|diagnose|export_chakra|validate"
    r"|calibrate|bench|profile_gpu|trace_workload)\.py\b"
)


def as_started(text: str) -> str:
    """``text`` with commands as the user has them: scripts of a checkout, or those of ``simcore``."""
    started = sys.argv[0]
    if started.endswith(".py") and not started.endswith("__main__.py"):
        return text
    name = "python -m simcore" if started.endswith(".py") else "simcore"
    text = text.replace("python -m simcore ", f"{name} ")
    return _COMMAND.sub(lambda found: f"{name} {found[1].replace('_', '-')}", text)


def say(text: str) -> None:
    """A line on stderr, at once."""
    print(as_started(text), file=sys.stderr, flush=True)


class StageTimer:
    """Times the stages of a run and shows the one that runs: a bar on a terminal, else a line at its end.

    ``seconds`` is the wall time by stage so far.  ``shown``: a worker's stages are not, its parent tells.
    """

    def __init__(self, *, shown: bool = True) -> None:
        self.seconds: dict[str, float] = {}
        self._shown = shown

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[float], None]]:
        """Time the block; it may report the share that is done, 0 to 1."""
        began = time.perf_counter()
        try:
            if self._shown and sys.stderr.isatty():
                with _bar() as bar:
                    task = bar.add_task(name, total=None)
                    yield lambda done: bar.update(task, completed=done, total=1.0)
            else:
                yield lambda done: None  # noqa: ARG005
        finally:
            took = time.perf_counter() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + took
            if self._shown and took > _WORTH_A_LINE_S:
                say(f"{name}: {took:.1f} s")


class Countdown:
    """One line on stderr, rewritten, with the time left."""

    def __init__(self, what: str) -> None:
        self._what, self._began, self._shown = what, time.monotonic(), 0.0

    def __call__(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` are through."""
        now = time.monotonic()
        if now - self._shown < 1 and done < total:
            return
        self._shown = now
        left = (now - self._began) / done * (total - done)
        end = "\n" if done == total else ""
        print(f"\r{self._what}: {done}/{total}, {left:.0f} s left ", end=end, file=sys.stderr, flush=True)


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
