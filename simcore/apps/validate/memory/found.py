"""Rows of measured memory beside predictions, and what is said of them all together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from simcore.memory import MemoryVerdict
from simcore.records import dataclass


@dataclass(frozen=True)
class MemoryRow:
    """One row: ``what`` was measured is "allocated", "reserved" or of the "whole GPU"; 0 bytes: nothing was.

    ``low``, ``high``: of the predictions where inputs are unpublished.  ``verdict``: what a user is told of
    the job on its GPU, None where nobody asked; of a band the one that leaves most room.
    """

    id: str
    family: str
    quality: str
    what: str = "allocated"
    predicted_bytes: int | None = None
    measured_bytes: int | None = None
    low_bytes: int | None = None
    high_bytes: int | None = None
    predicted_reserved_bytes: int | None = None
    measured_reserved_bytes: int | None = None
    verdict: MemoryVerdict | None = None
    skipped_reason: str = ""
    parts_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def error(self) -> float | None:
        """Of the prediction, relative; 0 inside a band of predictions."""
        return _error(self.predicted_bytes, self.measured_bytes)

    @property
    def reserved_error(self) -> float | None:
        """Of reserved bytes, relative."""
        return _error(self.predicted_reserved_bytes, self.measured_reserved_bytes)

    @property
    def fits(self) -> bool | None:
        """False where a user is refused the job, None where nobody asked."""
        return None if self.verdict is None else self.verdict.word != "does not fit"

    @property
    def is_near(self) -> bool:
        """Whether a user is told that it may not fit."""
        return self.verdict is not None and self.verdict.word == "may not fit"

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        derived = {"error": self.error, "reserved_error": self.reserved_error, "fits": self.fits}
        said = self.verdict.as_object() if self.verdict is not None else None
        return {**vars(self), "parts_bytes": dict(self.parts_bytes), "verdict": said, **derived}


@dataclass(frozen=True)
class MemoryTable:
    """All rows of a file, those that were skipped among them."""

    rows: Sequence[MemoryRow]

    @property
    def compared(self) -> list[MemoryRow]:
        """Rows with a prediction and a measurement."""
        return [row for row in self.rows if row.error is not None]

    @property
    def skipped(self) -> list[MemoryRow]:
        """Rows that cannot be said."""
        return [row for row in self.rows if row.skipped_reason]

    @property
    def false_alarms(self) -> list[MemoryRow]:
        """Rows that ran and are said not to fit."""
        return [row for row in self.rows if row.fits is False]

    @property
    def near_misses(self) -> list[MemoryRow]:
        """Rows that ran and may not fit, by what is said of them."""
        return [row for row in self.rows if row.is_near]

    def families(self) -> dict[str, dict[str, float]]:
        """Errors by family; the letter is the quality of the rows."""
        names = sorted({(row.family, row.quality) for row in self.compared})
        return {
            f"{family} {quality}".strip(): summary(
                row.error for row in self.compared if (row.family, row.quality) == (family, quality)
            )
            for family, quality in names
        }

    def overall(self) -> dict[str, dict[str, float]]:
        """Errors of all rows, of those of quality A, and of what was reserved."""
        return {
            "all rows": summary(row.error for row in self.compared),
            "quality A": summary(row.error for row in self.compared if row.quality == "A"),
            "reserved": summary(row.reserved_error for row in self.rows),
        }

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        asked = [row for row in self.rows if row.fits is not None]
        return {
            "rows": [row.record() for row in self.rows],
            "families": self.families(),
            "overall": self.overall(),
            "fits": {
                "asked": len(asked),
                "false_alarms": [row.id for row in self.false_alarms],
                "false_alarms_quality_a": [row.id for row in self.false_alarms if row.quality == "A"],
                "near_misses": [row.id for row in self.near_misses],
            },
        }


def summary(errors: Iterable[float | None]) -> dict[str, float]:
    """Number, mean, signed mean, 90th percentile and maximum of relative errors; None has none."""
    values = np.array([error for error in errors if error is not None], dtype=float)
    if not len(values):
        return {"n": 0}
    sizes = np.abs(values)
    return {
        "n": len(values), "mape": float(sizes.mean()), "bias": float(values.mean()),
        "p90": float(np.quantile(sizes, 0.9)), "max": float(sizes.max()),
    }  # fmt: skip


def _error(predicted: int | None, measured: int | None) -> float | None:
    return None if predicted is None or not measured else predicted / measured - 1
