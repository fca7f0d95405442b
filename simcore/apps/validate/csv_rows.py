"""Measurement files: a CSV read row by row, what cannot be used set aside with its line and reason."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from simcore.errors import InputError

Row = TypeVar("Row")


def read_rows(
    path: Path | str, what: str, needed: Sequence[str], parse: Callable[[int, dict[str, str]], Row]
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Rows that ``parse(line, columns)`` accepts, and the others as ``{id, reason}``; lines count from 2.

    ``what`` names the measurements in messages.  Errors: InputError for a missing file or ``needed`` column.
    """
    where = Path(path)
    if not where.is_file():
        raise InputError(f"no {what} measurements {str(where)!r}")
    rows: list[Row] = []
    skipped: list[dict[str, Any]] = []
    with where.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        missing = [name for name in needed if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{where.name}: missing column(s) {', '.join(missing)}")
        for line, columns in enumerate(reader, start=2):
            try:
                rows.append(parse(line, columns))
            except InputError as error:
                skipped.append({"id": line, "reason": str(error)})
    return rows, skipped
