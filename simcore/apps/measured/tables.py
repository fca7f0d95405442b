"""Measurement files read row by row, and the errors of predictions of them by family."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from simcore.errors import InputError
from simcore.outside import csv_rows, quoted
from simcore.records import dataclass

Row = TypeVar("Row")
#: Names of columns, or what gives them by those of a table.
Needed = Collection[str] | Callable[[Collection[str]], Collection[str]]

#: What one kernel or collective takes: between a hundredth of a launch and a quarter of an hour.
LEAST_US, MOST_US = 0.01, 1e9

_FIGURES = ("mape", "median", "p90", "max")


def read_rows(
    path: Path | str, what: str, needed: Needed, parse: Callable[[int, dict[str, str]], Row]
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Rows that ``parse(line, columns)`` accepts, and the others as ``{id, reason}``, the id being the line.

    ``what`` names the measurements in messages.  Errors: InputError for a missing file or ``needed`` column,
    and for what is no table (see :func:`simcore.outside.csv_rows`).
    """
    rows: list[Row] = []
    skipped: list[dict[str, Any]] = []
    for line, columns in csv_rows(Path(path), f"{what} measurements", needed):
        try:
            rows.append(parse(line, columns))
        except InputError as error:
            skipped.append({"id": line, "reason": str(error)})
    return rows, skipped


def number(columns: Mapping[str, str], name: str) -> float:
    """The cell as a finite number.  InputError for another text."""
    try:
        value = float(columns[name])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{name} = {quoted(columns[name])} is not a number")
    return value


def within(name: str, value: float, least: float, most: float, unit: str) -> float:
    """``value``, if something can measure it.  InputError that names the range for another."""
    if not least <= value <= most:
        raise InputError(
            f"{name} = {value:g} is not from {least:g} to {most:g} {unit}, as all that is measured"
        )
    return value


@dataclass(frozen=True)
class ErrorTable:
    """Predictions beside measurements.

    ``rows`` hold id, family, measured, predicted, error (relative, signed) and the row's own columns;
    ``skipped`` holds id and reason of every row refused.
    """

    rows: list[dict[str, Any]]
    families: dict[str, dict[str, float]]
    overall: dict[str, float]
    skipped: list[dict[str, Any]] = field(default_factory=list)


def error_table(rows: Iterable[Mapping[str, Any]], skipped: Iterable[Mapping[str, Any]] = ()) -> ErrorTable:
    """Errors of ``rows`` (each with id, family, measured, predicted), by family and overall."""
    scored: list[dict[str, Any]] = []
    refused = [dict(row) for row in skipped]
    by_family: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        measured, predicted = row["measured"], row["predicted"]
        error = predicted / measured - 1 if measured else math.inf
        if not math.isfinite(error):
            refused.append({"id": row["id"], "reason": f"{predicted:g} predicted for {measured:g} measured"})
            continue
        scored.append({**row, "error": error})
        by_family[row["family"]].append(abs(error))
    families = {name: _summary(errors) for name, errors in sorted(by_family.items())}
    overall = _summary([error for errors in by_family.values() for error in errors])
    return ErrorTable(scored, families, overall, refused)


def _summary(errors: list[float]) -> dict[str, float]:
    """Number, mean, median, 90th percentile and maximum of absolute relative errors."""
    if not errors:
        return {"n": 0}
    values = np.array(errors)
    return {
        "n": len(errors),
        "mape": float(values.mean()),
        "median": float(np.median(values)),
        "p90": float(np.quantile(values, 0.9)),
        "max": float(values.max()),
    }


def summary_head(title: str, width: int = 58, count: int = 7) -> str:
    """The head over :func:`summary_line`; a name is ``width`` wide, a number of rows ``count``."""
    return f"{title:{width}}{'n':>{count}}{'mean %':>9}{'median':>9}{'p90':>9}{'max':>9}"


def summary_line(name: str, summary: Mapping[str, float], width: int = 58, count: int = 7) -> str:
    """One line of an error table, percent."""
    cells = "".join(f"{100 * summary[key]:9.1f}" for key in _FIGURES)
    return f"{name:{width}}{summary['n']:>{count}}{cells}"


def summary_lines(table: ErrorTable, width: int = 58, count: int = 7) -> list[str]:
    """Head, families and all rows together; nothing for families without rows."""
    every = [*table.families.items(), ("overall", table.overall)]
    head = summary_head("family", width, count)
    return [head, *(summary_line(name, found, width, count) for name, found in every if found["n"])]
