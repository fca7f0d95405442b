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

    def add(self, rows: RankRows, mask: npt.NDArray[np.bool_]) -> None:
        """Count the rows in ``mask``, once for every rank that they stand for."""
        if not mask.any():
            return
        keys, inverse = told_apart(rows, self.columns, mask)
        at = np.flatnonzero(mask)

        def summed(column: npt.NDArray[np.int64]) -> list[float]:
            sums: list[float] = np.bincount(inverse, weights=column.take(at)).tolist()
            return sums

        times = summed(rows.ints("end_ps") - rows.ints("start_ps"))
        alone = summed(rows.ints("alone_ps"))
        num_bytes, flops = summed(rows.ints("bytes")), summed(rows.ints("flops"))
        counts = np.bincount(inverse).tolist()
        for index, key in enumerate(keys):
            total = self.by_key[key]
            total.count += counts[index] * rows.num_ranks
            total.time_ps += times[index] * rows.num_ranks
            total.alone_ps += alone[index] * rows.num_ranks
            total.num_bytes += num_bytes[index] * rows.num_ranks
            total.flops += flops[index] * rows.num_ranks

    def ranked(self) -> list[tuple[Key, Total]]:
        """Keys with their totals, the longest time first."""
        return sorted(self.by_key.items(), key=lambda item: (-item[1].time_ps, item[0]))


def told_apart(
    rows: RankRows, columns: Sequence[str], mask: npt.NDArray[np.bool_]
) -> tuple[list[Key], npt.NDArray[np.int64]]:
    """Different values of some text columns among the rows in ``mask``, and which one each row has."""
    at = np.flatnonzero(mask)
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
