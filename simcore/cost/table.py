"""Measured kernel times: exact shapes override a formula, byte curves interpolate between measurements."""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

from simcore.cost.attention import attention_shape
from simcore.cost.classify import OP_CLASSES
from simcore.cost.gemm import gemm_dims
from simcore.cost.kernel import KernelShape, numel, parse_dtype, parse_shapes
from simcore.elementary import exp, log
from simcore.errors import InputError, nearest

#: Time columns by name, with their unit in seconds: a table without a unit is refused.
TIME_COLUMNS = {"time_s": 1.0, "time_ms": 1e-3, "time_us": 1e-6, "time_ns": 1e-9}

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
        if not (math.isfinite(seconds) and seconds > 0):
            raise InputError(f"time {seconds} of {kernel.name!r} must be a positive number")
        shapes = (*kernel.in_shapes, *kernel.out_shapes)
        if any(numel(shape) == 0 for shape in shapes):
            raise InputError(f"{kernel.name!r} has a dimension of 0 in {shapes}")
        if not shapes and kernel.bytes_read + kernel.bytes_written <= 0:
            raise InputError(f"{kernel.name!r} has neither shapes nor bytes, a positive number")
        if shapes:
            self.exact[_key(kernel)] = seconds
        else:
            curve = self.curves.setdefault((kernel.op_class, kernel.dtype), [])
            curve.append((kernel.bytes_read + kernel.bytes_written, seconds))
            curve.sort()

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
        if not where.is_file():
            raise InputError(f"no measured table {str(where)!r}")
        with where.open(newline="", encoding="utf-8") as stream:
            rows = csv.DictReader(stream)
            columns = rows.fieldnames or []
            units = [name for name in TIME_COLUMNS if name in columns]
            if len(units) != 1:
                known = ", ".join(TIME_COLUMNS)
                raise InputError(f"{where.name}: needs one time column with its unit: {known}")
            for name in ("op_class", "dtype"):
                if name not in columns:
                    raise InputError(f"{where.name}: missing column {name!r}")
            table = cls(source=where.name)
            for line, row in enumerate(rows, start=2):
                try:
                    seconds = float(row[units[0]]) * TIME_COLUMNS[units[0]]
                    moved = int(row.get("bytes") or 0)
                    if row["op_class"] not in OP_CLASSES:
                        hint = nearest(row["op_class"], OP_CLASSES)
                        raise InputError(f"unknown op_class {row['op_class']!r}{hint}")
                    kernel = KernelShape(
                        name=row.get("op") or row["op_class"],
                        op_class=row["op_class"],
                        dtype=parse_dtype(row["dtype"]),
                        in_shapes=parse_shapes(row.get("in_shapes") or ""),
                        out_shapes=parse_shapes(row.get("out_shapes") or ""),
                        bytes_read=moved,
                    )
                    table.add(kernel, seconds)
                except (ValueError, InputError) as error:
                    raise InputError(f"{where.name} line {line}: {error}") from None
        return table


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
