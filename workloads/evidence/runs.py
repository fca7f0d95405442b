"""Measured runs and what predictions of them missed by: the lines of ``residuals.csv``, and of
``residuals_lists.csv`` of models that are lists of blocks.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from importlib import resources
from typing import Any, Final

from simcore.elementary import log
from simcore.errors import InputError
from simcore.records import dataclass
from workloads.evidence.features import NAMES, NUMBERS, JobFeatures


@dataclass(frozen=True)
class MeasuredRun:
    """One published run that was predicted; times in seconds per step.

    ``predicted_s``: by the numbers in use; ``left_out_s``: by numbers fitted without the run's family.  Where
    inputs are unpublished (quality B) they are the values of a band nearest to what was measured, and
    ``low_s``, ``high_s`` its ends by the numbers in use.  ``odd``: why the run contradicts its neighbours.
    ``reach``: its miss over the half-width (of that side) of the band that all other families alone would
    have given; None where that was not computed.  See ``docs/bands.md``.
    """

    id: str
    family: str
    quality: str
    features: JobFeatures
    measured_s: float
    predicted_s: float
    left_out_s: float
    low_s: float
    high_s: float
    odd: str = ""
    reach: float | None = None

    @property
    def miss(self) -> float:
        """Logarithm of measured over predicted without its family; positive where it ran slower."""
        return log(self.measured_s / self.left_out_s)

    @property
    def open_inputs(self) -> float:
        """Logarithm of the width that unpublished inputs leave; 0 where all are published."""
        return log(self.high_s / self.low_s)


_TIMES: Final = ("measured_s", "predicted_s", "left_out_s", "low_s", "high_s")
COLUMNS: Final = ("id", "family", "quality", *NAMES, *_TIMES, "reach", "odd")


def read_runs(text: str, where: str = "residuals.csv") -> tuple[MeasuredRun, ...]:
    """Runs of a CSV text with :data:`COLUMNS`.  Errors: InputError for a missing column or a bad number."""
    reader = csv.reader(io.StringIO(text))
    names = tuple(next(reader, ()))
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise InputError(f"{where}: no column {missing[0]!r}")
    return tuple(
        _run(dict(zip(names, line, strict=True)), f"{where}, line {number}")
        for number, line in enumerate(reader, 2)
    )


def _run(line: dict[str, str], where: str) -> MeasuredRun:
    try:
        times = {name: float(line[name]) for name in _TIMES}
        of_job: dict[str, Any] = {
            name: float(line[name] or 0) if name in NUMBERS else line[name] for name in NAMES
        }
        reach = float(line["reach"]) if line["reach"] else None
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    if not all(0 < value < math.inf for value in times.values()):
        raise InputError(f"{where}: a time is not a positive number")
    return MeasuredRun(
        line["id"], line["family"], line["quality"], JobFeatures(**of_job), **times,
        odd=line["odd"], reach=reach,
    )  # fmt: skip


def write_runs(runs: Iterable[MeasuredRun]) -> str:
    """The CSV text of ``runs``; numbers with 6 digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        values = {**asdict(run), **asdict(run.features)}
        writer.writerow(_text(values[name]) for name in COLUMNS)
    return out.getvalue()


def _text(value: object) -> str:
    if isinstance(value, float | int):
        return f"{value:.6g}"
    return "" if value is None else str(value)


@cache
def measured_runs(*, lists: bool = False) -> tuple[MeasuredRun, ...]:
    """The runs that come with the project: of transformers, or of lists of blocks."""
    name = "residuals_lists.csv" if lists else "residuals.csv"
    found = resources.files("workloads.evidence") / name
    return read_runs(found.read_text(encoding="utf-8"), name)
