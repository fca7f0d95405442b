"""One row of a table of published runs."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from simcore.errors import InputError
from simcore.outside import csv_rows, quoted
from simcore.records import dataclass
from workloads.jobs.published.columns import as_run, counts_samples, needed_columns
from workloads.parallel.axis import AXES, further_axes

_UNSTATED: Final = re.compile(
    r"^[\s?-]*$|not stated|unknown|^n/?a[nt]?$|^(auto|custom|layout)$", re.IGNORECASE
)

#: No number of a published run is larger: tokens of the longest training are 1e14.  Nor is one less, but 0.
_MOST: Final = 1e16
_LEAST: Final = 1e-9

#: What stands in a column of numbers that has none.
_NOTHING: Final = (
    "", "-", "none", "nan", "n/a", "not stated", "unknown", "auto", "custom", "layout",
)  # fmt: skip


@dataclass(frozen=True)
class RunRow:
    """Columns as text; a column that is missing or empty is ""."""

    line: int
    columns: Mapping[str, str]

    @property
    def id(self) -> str:
        """The row's name; its line where the table gives none."""
        return self.text("id") or f"line {self.line}"

    @property
    def family(self) -> str:
        """The group that errors are summarised by."""
        return self.text("family") or self.text("source_repo_or_paper") or "unnamed"

    @property
    def counts_samples(self) -> bool:
        """Whether its table counts images or users."""
        return counts_samples(self.columns)

    def text(self, column: str) -> str:
        """A column's text."""
        return (self.columns.get(column) or "").strip()

    def says(self, column: str) -> bool:
        """Whether the column states something."""
        return not _UNSTATED.search(self.text(column))

    def number(self, column: str, default: float | None = None) -> float:
        """A column's number; ``default`` where it is empty.

        Errors: InputError for an empty column without default, or text that is no positive number.
        """
        text = self.text(column).replace(",", "")
        if text.lower() in _NOTHING:
            if default is None:
                raise InputError(f"{self.id}: column {column!r} is empty")
            return default
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"{self.id}: column {column!r} is no number: {quoted(text)}") from None
        if value != 0 and not _LEAST <= value <= _MOST:
            allowed = f"not 0 or a number >= {_LEAST:g} and <= {_MOST:g}"
            raise InputError(f"{self.id}: column {column!r} is {quoted(text)}, {allowed}")
        return value

    def count(self, column: str, default: int | None = None) -> int:
        """A column's whole number >= 1.  Errors: InputError."""
        value = self.number(column, default)
        if value != int(value) or value < 1:
            raise InputError(f"{self.id}: column {column!r} is {value:g}, not a whole number >= 1")
        return int(value)

    def degrees_within(self) -> dict[str, int]:
        """Degrees of the axes whose product, times dp, is the number of GPUs.  Errors: InputError."""
        further = [axis.name for axis in further_axes() if axis.is_dense and self.says(axis.name)]
        return {name: self.count(name, 1) for name in ("tp", "pp", "cp", *further)}


def read_run_rows(path: str) -> list[RunRow]:
    """Rows of a CSV file.  Errors: InputError as :func:`simcore.outside.csv_rows`."""
    rows = csv_rows(Path(path), "published runs", needed_columns)
    return [RunRow(line, _completed(as_run(columns))) for line, columns in rows]


def _completed(columns: dict[str, str]) -> dict[str, str]:
    """``columns`` with what others say: GPUs as the product of the degrees, "8k" tokens as 8192, "1M" too."""
    found = dict(columns)
    short = re.fullmatch(r"\s*(\d{1,9})\s*([km])\s*", columns.get("seq", ""), re.IGNORECASE)
    if short:
        found["seq"] = str(int(short[1]) * (1 << (10 if short[2] in "kK" else 20)))
    dense = [axis.name for axis in AXES.values() if axis.is_dense]
    degrees = [columns.get(name, "").strip() or "1" for name in dense]
    if not columns.get("gpus", "").strip() and columns.get("dp", "").strip():
        with contextlib.suppress(ValueError):
            found["gpus"] = f"{math.prod(float(degree) for degree in degrees):g}"
    return found
