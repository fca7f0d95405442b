"""Measurement files read row by row, and the errors of predictions of them by family."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final, TypeVar

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
#: Columns of a terminal that the name of a family may fill: the figures beside it end within 80.
_NAME: Final = 42


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


def summary_head(title: str, width: int = _NAME, count: int = 6) -> str:
    """The head over :func:`summary_line`; a name is ``width`` wide, a number of rows ``count``."""
    return f"{title:{width}}{'n':>{count}}{'mean %':>8}{'median':>8}{'p90':>8}{'max':>8}"


def summary_line(name: str, summary: Mapping[str, float], width: int = _NAME, count: int = 6) -> str:
    """One line of an error table, percent; figures of a name longer than ``width`` stand below it."""
    cells = "".join(f"{100 * summary[key]:8.1f}" for key in _FIGURES)
    over = f"{name}\n" if len(name) >= width else ""
    return f"{over}{'' if over else name:{width}}{summary['n']:>{count}}{cells}"


def summary_lines(table: ErrorTable) -> list[str]:
    """Head, families and all rows together; nothing for families without rows."""
    every = [*table.families.items(), ("overall", table.overall)]
    return [summary_head("family"), *(summary_line(name, found) for name, found in every if found["n"])]


def worst_lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows of an :class:`ErrorTable` of microseconds, one by one, with their line in the file."""
    return [
        f"{'line':>6} {'family':45}{'measured us':>11}{'predicted':>11}{'error':>6}",
        *(
            f"{row['id']!s:>6.60} {row['family']:45}{row['measured']:11.2f}{row['predicted']:11.2f}"
            f"{100 * row['error']:+5.0f}%"
            for row in rows
        ),
    ]
