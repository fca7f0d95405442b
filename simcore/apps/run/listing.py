"""Runs that are kept: which folders hold one, what was asked, what came out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from simcore.errors import InputError
from simcore.records import dataclass
from simcore.timeline import RunInfo
from simcore.timeline.schema import RUN_FILE
from simcore.units import format_time, s_from_ps

_INDENT: Final = " " * 29


@dataclass(frozen=True)
class KeptRun:
    """A run folder: when it was ``written`` (UTC), the question, its step in ps."""

    folder: Path
    written: datetime
    asked: str
    step_ps: int

    def as_object(self) -> dict[str, Any]:
        """As ``--json`` shows it."""
        return {
            "folder": str(self.folder), "asked": self.asked, "step_time_s": s_from_ps(self.step_ps),
            "written": self.written.isoformat(timespec="seconds"),
        }  # fmt: skip


def kept_runs(folder: Path) -> list[KeptRun]:
    """Runs in ``folder``, or the one that it is, the latest first.

    Folders that hold none, or one of another version, are passed over.  InputError where ``folder`` is none.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; runs are in the folder in which they were asked for")
    found = []
    for path in [folder, *sorted(folder.iterdir())]:
        if path.is_symlink() or not (path / RUN_FILE).is_file():
            continue
        try:
            info = RunInfo.read(path)
        except InputError:
            continue
        when = datetime.fromtimestamp((path / RUN_FILE).stat().st_mtime, tz=UTC)
        found.append(KeptRun(path, when, info.asked or info.workload.name, info.step_ps))
    return sorted(found, key=lambda run: (run.written, run.folder), reverse=True)


def run_lines(runs: Sequence[KeptRun]) -> str:
    """The runs for a terminal: when (UTC), step and folder, below it the question."""
    lines: list[str] = []
    for run in runs:
        lines.append(f"{run.written:%Y-%m-%d %H:%M}  {format_time(run.step_ps):>9}  {run.folder}")
        lines += wrap(run.asked, 80, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return "\n".join(lines)
