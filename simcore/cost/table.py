"""Measured kernel times: exact shapes override a formula, byte curves interpolate between measurements."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from simcore.cost.attention import attention_shape
from simcore.cost.classify import OP_CLASSES
from simcore.cost.gemm import gemm_dims
from simcore.cost.kernel import KernelShape, numel, parse_dtype, parse_shapes
from simcore.elementary import exp, log
from simcore.errors import InputError, nearest
from simcore.outside import csv_rows, quoted
from simcore.records import dataclass

#: Time columns by name, with their unit in seconds: a table without a unit is refused.
TIME_COLUMNS = {"time_s": 1.0, "time_ms": 1e-3, "time_us": 1e-6, "time_ns": 1e-9}

LEAST_S, MOST_S = 1e-9, 1e4  # no kernel is shorter or longer
_MOST_NUMBER = 1e18

Key = tuple[object, ...]

#: Classes whose time depends on the main input as rows of a width, whatever weights and statistics go along.
_BY_ROWS = ("norm_fwd", "softmax_fwd", "softmax_bwd")


@dataclass
class MeasuredTable:
    """Times of kernels as measured, seconds, each with the place it comes from.

    ``exact`` is keyed by what a shape means to the kernel: m, n, k and batch of a product, heads, lengths and
    head dim of an attention, rows and width of a norm; all shapes for other classes.  ``curves`` holds, by
    (op class, dtype), points (bytes moved, seconds) sorted by bytes; between two points the time is
    interpolated on logarithmic axes, outside them the table says nothing.
    """

    source: str
    exact: dict[Key, float] = field(default_factory=dict)
    curves: dict[tuple[str, str], list[tuple[int, float]]] = field(default_factory=dict)

    def add(self, kernel: KernelShape, seconds: float) -> None:
        """Store a measurement.

        Errors: InputError unless ``seconds`` is positive and shapes without a zero, or bytes, are given.
        """
        if not LEAST_S <= seconds <= MOST_S:
            allowed = f"must be a positive number, from {LEAST_S:g} to {MOST_S:g}"
            raise InputError(f"time {seconds:g} s of {kernel.name!r} {allowed}")
        shapes = (*kernel.in_shapes, *kernel.out_shapes)
        if any(numel(shape) == 0 for shape in shapes):
            raise InputError(f"{kernel.name!r} has a dimension of 0 in {shapes}")
        if not shapes and kernel.bytes_read + kernel.bytes_written <= 0:
            raise InputError(f"{kernel.name!r} has neither shapes nor bytes, a positive number")
        if shapes:
            self.exact[_key(kernel)] = seconds
        else:
            curve = self.curves.setdefault((kernel.op_class, kernel.dtype), [])
            insort(curve, (kernel.bytes_read + kernel.bytes_written, seconds))

    def lookup(self, kernel: KernelShape) -> float | None:
        """Seconds of ``kernel`` with everything included, or None when the table does not cover it."""
        found = self.exact.get(_key(kernel))
        if found is not None:
            return found
        curve = self.curves.get((kernel.op_class, kernel.dtype))
        if not curve:
            return None
        moved = kernel.bytes_read + kernel.bytes_written
        if not curve[0][0] <= moved <= curve[-1][0]:
            return None
        right = bisect_left(curve, (moved, 0.0))
        if curve[right][0] == moved:
            return curve[right][1]
        (x0, y0), (x1, y1) = curve[right - 1], curve[right]
        if x0 == 0:
            return y0 + (y1 - y0) * moved / x1
        share = log(moved / x0) / log(x1 / x0)
        return y0 * exp(share * log(y1 / y0))

    @classmethod
    def load(cls, path: Path | str) -> MeasuredTable:
        """Read a CSV with columns op_class, dtype, a time column with unit (``time_us``), and in_shapes and
        out_shapes (JSON; an exact row) or bytes (a curve's point).

        ``op``, where there, is the op's name: "full" in it is attention that is not causal.
        Errors: InputError for a missing file, column or unit, an unknown class or type, a bad number or
        shape.
        """
        where = Path(path)
        table = cls(source=where.name)
        rows = csv_rows(where, "measured kernel times", ("op_class", "dtype"), one_of=tuple(TIME_COLUMNS))
        for line, row in rows:
            units = [name for name in TIME_COLUMNS if name in row]
            if len(units) > 1:
                raise InputError(f"{where}: {' and '.join(units)}: needs one time column with its unit")
            try:
                kernel = KernelShape(
                    name=row.get("op") or row["op_class"],
                    op_class=row["op_class"],
                    dtype=parse_dtype(row["dtype"]),
                    in_shapes=parse_shapes(row.get("in_shapes", "")),
                    out_shapes=parse_shapes(row.get("out_shapes", "")),
                    bytes_read=int(_number(row, "bytes", 0)),
                )
                if kernel.op_class not in OP_CLASSES:
                    hint = nearest(kernel.op_class, OP_CLASSES)
                    raise InputError(f"unknown op_class {kernel.op_class!r}{hint}")
                table.add(kernel, _number(row, units[0]) * TIME_COLUMNS[units[0]])
            except InputError as error:
                raise InputError(f"{where}: line {line:,}: {error}") from None
        return table


def _number(row: Mapping[str, str], column: str, default: float = math.nan) -> float:
    try:
        value = float(row.get(column) or default)
    except ValueError:
        value = math.nan
    if not abs(value) < _MOST_NUMBER:
        raise InputError(f"{column} is {quoted(row.get(column))}, no number")
    return value


def _key(kernel: KernelShape) -> Key:
    kind = (kernel.op_class, kernel.dtype)
    if kernel.op_class in ("gemm", "bgemm") and kernel.in_shapes and "accum" not in kernel.name:
        # Kernels that scale by blocks or take experts of uneven size are others than a plain product.
        special = [word for word in ("blockwise", "grouped") if word in kernel.name]
        return (*kind, *special, gemm_dims(kernel))
    if kernel.op_class in ("attention_fwd", "attention_bwd"):
        return (*kind, attention_shape(kernel))
    if kernel.op_class in _BY_ROWS and kernel.in_shapes and kernel.in_shapes[0]:
        width = kernel.in_shapes[0][-1]
        return (*kind, numel(kernel.in_shapes[0]) // max(1, width), width)
    return (*kind, kernel.in_shapes, kernel.out_shapes)
