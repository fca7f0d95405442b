"""``validate.py --kernels`` and ``--traces``: errors of benchmark rows and of recorded kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from simcore.apps.fit import memory
from simcore.apps.measured.kernels import predict_rows, read_kernel_rows
from simcore.apps.measured.recorded_kernels import MATH, RecordedRow, memory_bound, read_recorded_rows
from simcore.apps.measured.tables import ErrorTable, error_table
from simcore.apps.validate.left_out import left_out_errors, left_out_lines
from simcore.errors import InputError

#: Bands of kernel time, microseconds: launch-bound, small, medium, large.
_BANDS_US = (10.0, 100.0, 1000.0, math.inf)


def _band(microseconds: float) -> str:
    """Name of the band of a kernel time."""
    upper = next(bound for bound in _BANDS_US if microseconds < bound)
    return f"< {upper:g} us" if upper < math.inf else f">= {_BANDS_US[-2]:g} us"


def kernel_errors(path: str) -> ErrorTable:
    """Errors of every kernel row that a formula covers, microseconds.  InputError for a bad file."""
    rows, skipped = read_kernel_rows(path)
    scored = []
    for row, predicted in zip(rows, predict_rows(rows), strict=True):
        measured = row.seconds * 1e6
        scored.append(
            {
                **row.columns,
                "id": row.line,
                "family": f"{row.family} {_band(measured)}",
                "measured": measured,
                "predicted": predicted * 1e6,
            }
        )
    return error_table(scored, skipped)


def left_out(path: str, in_sample: ErrorTable) -> tuple[dict[str, Any], list[str]]:
    """Errors of the rows of each GPU without its rows in the fit: for JSON, and as lines."""
    table = left_out_errors(read_kernel_rows(path)[0])
    own = {row["id"]: abs(row["error"]) for row in in_sample.rows}
    families = {
        name: {**summary, "in_fit": fmean(own[row["id"]] for row in table.rows if row["family"] == name)}
        for name, summary in table.families.items()
    }
    return {"families": families, "overall": table.overall}, left_out_lines(families)


def recorded_errors(paths: Sequence[str], *, leave_one_out: bool = False) -> ErrorTable:
    """Errors of the kernels recorded in traces, microseconds, by class, GPU and band.

    ``leave_one_out``: only memory-bound ones, each trace by a fit to the others.
    Errors: InputError as in reading traces.
    """
    rows = read_recorded_rows(paths)
    if leave_one_out:
        rows = memory_bound(rows)
        if len({row.trace for row in rows}) < 2:
            raise InputError("to leave a trace out takes two of them")
    predicted = memory.leave_one_trace_out(rows) if leave_one_out else memory.predict_rows(rows)
    return error_table(
        {
            "id": f"{row.trace} {row.kernel.name} {row.kernel.in_shapes}",
            "family": f"{_class(row)} {row.gpu} {_band(row.seconds * 1e6)}",
            "launches": row.count,
            "measured": row.seconds * 1e6,
            "predicted": seconds * 1e6,
        }
        for row, seconds in zip(rows, predicted, strict=True)
    )


def _class(row: RecordedRow) -> str:
    kernel = row.kernel
    if kernel.op_class in MATH:
        return f"{kernel.op_class} {'tf32' if row.tf32 else kernel.dtype}"
    return f"{kernel.op_class} strided" if kernel.strided else kernel.op_class
