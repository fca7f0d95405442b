"""The folder that ``scripts/profile_gpu.py`` writes, read and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simcore.cost.table import LEAST_S, MOST_S, MeasuredTable
from simcore.errors import InputError
from simcore.outside import csv_rows, json_document, quoted, read_text
from simcore.records import dataclass

_MOST = 1e30  # flops of a kernel, and everything else
_MOST_BLOCKS = 1 << 31
_MOST_SMS = 10_000


@dataclass(frozen=True)
class ProfiledKernel:
    """A kernel alone: its class and type in the cost model's words, seconds, flops, bytes (0: not told)."""

    op_class: str
    dtype: str
    seconds: float
    flops: int
    num_bytes: int

    @property
    def flops_per_s(self) -> float:
        """Achieved rate."""
        return self.flops / self.seconds

    @property
    def bytes_per_s(self) -> float:
        """Achieved traffic."""
        return self.num_bytes / self.seconds


@dataclass(frozen=True)
class OverlapRow:
    """A kernel beside a copy kernel of ``copy_blocks`` thread blocks that reads ``copy_bytes_per_s``."""

    op: str
    op_class: str
    shapes: str
    copy_blocks: int
    alone_s: float
    beside_s: float
    copy_bytes_per_s: float

    @property
    def slowdown(self) -> float:
        """Time beside the copy over time alone."""
        return self.beside_s / self.alone_s


@dataclass(frozen=True)
class MeasuredGpu:
    """A measured GPU.  ``launch`` is in us (``queue_length`` a count); ``measured`` the day, as written."""

    gpu: str
    num_sms: int
    measured: str
    facts: Mapping[str, Any]
    kernels: tuple[ProfiledKernel, ...]
    overlaps: tuple[OverlapRow, ...]
    launch: Mapping[str, float]


def read_measured(folder: Path) -> MeasuredGpu:
    """Read a folder of measurements.

    Errors: InputError with file, line and column for what is missing or no positive number; also for a
    kernel table that the cost model would not read (unit, dtype, shapes).
    """
    facts = _object(folder / "device.json")
    for key in ("gpu", "num_sms"):
        if key not in facts:
            raise InputError(f"device.json: missing {key!r}")
    if type(facts["num_sms"]) is not int or not 1 <= facts["num_sms"] <= _MOST_SMS:
        raise InputError(
            f"device.json: num_sms is {quoted(str(facts['num_sms']))}, no number up to {_MOST_SMS:,}"
        )
    MeasuredTable.load(folder / "kernels.csv")
    kernels = [
        ProfiledKernel(
            row["op_class"], row["dtype"], _seconds(row, "time_us", where),
            int(_number(row, "flops", where, zero=True)), int(_number(row, "bytes", where, zero=True)),
        )
        for where, row in _rows(folder / "kernels.csv", ("op_class", "dtype", "time_us", "flops", "bytes"))
    ]  # fmt: skip
    overlaps = []
    if (folder / "overlap.csv").exists():
        columns = (
            "op",
            "op_class",
            "in_shapes",
            "bytes",
            "copy_blocks",
            "alone_us",
            "beside_us",
            "copy_bytes_per_s",
        )
        for where, row in _rows(folder / "overlap.csv", columns):
            overlaps.append(
                OverlapRow(
                    row["op"], row["op_class"], row["in_shapes"] or f"{row['bytes']} bytes",
                    _blocks(row, where), _seconds(row, "alone_us", where), _seconds(row, "beside_us", where),
                    _number(row, "copy_bytes_per_s", where, zero=True),
                )
            )  # fmt: skip
    launch = _object(folder / "launch.json") if (folder / "launch.json").exists() else {}
    for key, value in launch.items():
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not math.isfinite(value)
            or value < 0
        ):
            raise InputError(f"launch.json: {key} is {value!r}, no time in us")
    return MeasuredGpu(
        str(facts["gpu"]), facts["num_sms"], str(facts.get("measured", "")), facts, tuple(kernels),
        tuple(overlaps), launch,
    )  # fmt: skip


def _object(path: Path) -> dict[str, Any]:
    found = json_document(read_text(path, "measurements"), str(path))
    if not isinstance(found, dict):
        raise InputError(f"{path.name}: must be an object")
    return found


def _rows(path: Path, columns: tuple[str, ...]) -> list[tuple[str, dict[str, str]]]:
    """Each row with its place, which an error names."""
    return [(f"{path}: line {line:,}", row) for line, row in csv_rows(path, "measurements", columns)]


def _number(row: Mapping[str, str], column: str, where: str, *, zero: bool = False) -> float:
    try:
        value = float(row[column])
    except ValueError:
        raise InputError(f"{where}: {column} is {quoted(row[column])}, no number") from None
    if not 0 <= value < _MOST or (value == 0 and not zero):
        raise InputError(f"{where}: {column} is {quoted(row[column])}, which must be positive")
    return value


def _seconds(row: Mapping[str, str], column: str, where: str) -> float:
    """From microseconds."""
    seconds = _number(row, column, where) * 1e-6
    if not LEAST_S <= seconds <= MOST_S:
        raise InputError(f"{where}: {column} is {quoted(row[column])}: not {LEAST_S:g} to {MOST_S:g} s")
    return seconds


def _blocks(row: Mapping[str, str], where: str) -> int:
    number = _number(row, "copy_blocks", where)
    if not (1 <= number <= _MOST_BLOCKS and number.is_integer()):
        raise InputError(f"{where}: copy_blocks is {quoted(row['copy_blocks'])}, no number of thread blocks")
    return int(number)
