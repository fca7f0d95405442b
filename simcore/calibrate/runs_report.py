"""docs/validation.md."""

from __future__ import annotations

from simcore.calibrate.runs_score import Scored


def report(scored: Scored) -> str:
    """The page."""
    return f"{len(scored.scores)} rows\n"
