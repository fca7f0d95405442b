"""Predicted rows as plain values, for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simcore.apps.validate.runs.score import RowScore, Scored
from workloads.jobs.published import RunRow, notes_of


def row_objects(rows: Sequence[RunRow], scored: Scored) -> list[dict[str, Any]]:
    """One object for each of ``rows``, in their order; times are seconds per step, errors relative.

    ``predicted_step_s`` is the value of ``low_step_s``..``high_step_s`` nearest to what was measured, and
    ``middle_step_s`` the middle of that band, whatever was measured.  A row that cannot be predicted has no
    times, one without a measurement no error; ``skipped_reason`` says why.
    """
    scores = {id(score.described.row): score for score in (*scored.scores, *scored.unscored)}
    reasons = {entry["id"]: entry["reason"] for entry in scored.skipped}
    return [_object(row, scores.get(id(row)), reasons.get(row.id, "")) for row in rows]


def _object(row: RunRow, score: RowScore | None, reason: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": row.id, "family": row.family, "quality": row.text("quality").upper() or "A",
        "gpu_type": row.text("gpu_type"), "gpus": row.text("gpus"),
        "measured_step_s": None, "predicted_step_s": None, "error": None,
        "low_step_s": None, "middle_step_s": None, "high_step_s": None,
        "preset": "", "unpublished": [], "assumed": [], "odd_reason": "",
        "skipped_reason": reason if score is None or score.described.unscored else "",
    }  # fmt: skip
    if score is None:
        return found
    described = score.described
    found |= {
        "gpus": row.count("gpus"), "predicted_step_s": score.predicted_s, "low_step_s": score.low_s,
        "middle_step_s": (score.low_s + score.high_s) / 2, "high_step_s": score.high_s,
        "preset": described.band.preset, "unpublished": list(described.band.unpublished),
        "assumed": [*notes_of(row), *described.band.cases[0].warnings],
        "odd_reason": described.odd,
    }  # fmt: skip
    if not described.unscored:
        found |= {"measured_step_s": score.measured_s, "error": score.error}
    return found
