"""Run folders: the timeline of a simulated step as Parquet, and what was assumed to get it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simcore.timeline.info import RunInfo
from simcore.timeline.reader import Timeline

if TYPE_CHECKING:
    from simcore.timeline.writer import RunFacts, write_run, write_tables

__all__ = ["RunFacts", "RunInfo", "Timeline", "write_run", "write_tables"]


def __getattr__(name: str) -> Any:
    """Import the writer only when it is used: it needs the engine's types, reading a run does not."""
    if name in ("RunFacts", "write_run", "write_tables"):
        from simcore.timeline import writer

        return getattr(writer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
