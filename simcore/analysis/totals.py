"""Time by kernel, by collective and by phase, summed over all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt

from simcore.graph import ops
from simcore.records import dataclass
from simcore.timeline.reader import RankRows

Key = tuple[str, ...]


@dataclass
class Total:
    """Count, time, time alone (ps), bytes and flops of a set of rows, over all ranks."""

    count: int = 0
    time_ps: float = 0.0
    alone_ps: float = 0.0
    num_bytes: float = 0.0
    flops: float = 0.0


@dataclass
class Totals:
    """Accumulates :class:`Total` by the distinct values of some text columns."""

    columns: Sequence[str]
    by_key: dict[Key, Total] = field(default_factory=lambda: defaultdict(Total))

    def add(self, rows: RankRows, at: npt.NDArray[np.intp]) -> None:
        """Count the rows ``at`` these places, once for every rank that they stand for."""
        # Keeps the places, which have to live as long as their number stands for them.
        of = rows.found((*self.columns, id(at)), lambda: _Counted.of(rows, self.columns, at))
        times = of.summed(rows.ints("end_ps") - rows.ints("start_ps"))
        for index, key in enumerate(of.keys):
            total = self.by_key[key]
            total.count += of.counts[index] * rows.num_ranks
            total.time_ps += times[index] * rows.num_ranks
            total.alone_ps += of.alone_ps[index] * rows.num_ranks
            total.num_bytes += of.num_bytes[index] * rows.num_ranks
            total.flops += of.flops[index] * rows.num_ranks

    def ranked(self) -> list[tuple[Key, Total]]:
        """Keys with their totals, the longest time first."""
        return sorted(self.by_key.items(), key=lambda item: (-item[1].time_ps, item[0]))


@dataclass(frozen=True, eq=False)
class _Counted:
    """Of the rows ``at``, the keys that they have, which one each has, and sums by key."""

    at: npt.NDArray[np.intp]
    keys: list[Key]
    inverse: npt.NDArray[np.int64]
    counts: list[int]
    alone_ps: list[float]
    num_bytes: list[float]
    flops: list[float]

    @classmethod
    def of(cls, rows: RankRows, columns: Sequence[str], at: npt.NDArray[np.intp]) -> _Counted:
        """Of the rows ``at`` these places."""
        keys, inverse = told_apart(rows, columns, at)
        found = cls(at, keys, inverse, np.bincount(inverse).tolist(), [], [], [])
        sums = ((found.alone_ps, "alone_ps"), (found.num_bytes, "bytes"), (found.flops, "flops"))
        for sum_of, column in sums:
            sum_of += found.summed(rows.ints(column))
        return found

    def summed(self, column: npt.NDArray[np.int64]) -> list[float]:
        """Sums of a column by key."""
        sums: list[float] = np.bincount(self.inverse, weights=column.take(self.at)).tolist()
        return sums


def told_apart(
    rows: RankRows, columns: Sequence[str], at: npt.NDArray[np.intp]
) -> tuple[list[Key], npt.NDArray[np.int64]]:
    """Different values of some text columns among the rows ``at``, and which one each of these has."""
    key = np.zeros(len(at), dtype=np.int64)
    values: list[list[str]] = []
    for column in columns:
        codes, names = rows.strings(column)
        key = key * len(names) + codes.take(at)
        values.append(names)
    distinct, number = ops.told_apart(key)
    return [_decode(code, values) for code in distinct.tolist()], number


def _decode(code: int, values: list[list[str]]) -> Key:
    """Mixed-radix ``code`` back to one string per column."""
    picked: list[str] = []
    for names in reversed(values):
        code, digit = divmod(code, len(names))
        picked.append(names[digit])
    return tuple(reversed(picked))
