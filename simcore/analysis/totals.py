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


@dataclass(frozen=True, eq=False)
class ToldApart:
    """Rows ``at`` some places, told apart by the text ``columns``: keys, and which one each row has."""

    columns: Sequence[str]
    at: npt.NDArray[np.intp]
    keys: list[Key]
    number: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: RankRows, columns: Sequence[str], at: npt.NDArray[np.intp]) -> ToldApart:
        """Of the rows ``at`` these places."""
        number = np.zeros(len(at), dtype=np.int64)
        keys: list[Key] = [()]
        for column in columns:
            codes, names = rows.strings(column)
            different, number = ops.told_apart(number * len(names) + codes.take(at))
            pairs = [divmod(code, len(names)) for code in different.tolist()]
            keys = [(*keys[before], names[code]) for before, code in pairs]
        return cls(columns, at, keys, number)

    def summed(self, values: npt.NDArray[np.int64]) -> list[float]:
        """Sums of a value of each row by key."""
        return _summed(self.number, values, len(self.keys))


@dataclass
class Totals:
    """Accumulates :class:`Total` by the distinct values of some text columns."""

    columns: Sequence[str]
    by_key: dict[Key, Total] = field(default_factory=lambda: defaultdict(Total))

    def add(self, rows: RankRows, apart: ToldApart, times_ps: Sequence[float]) -> None:
        """Count rows told apart by these columns and perhaps more, which take ``times_ps`` by key, once for
        every rank that they stand for.
        """
        # Keeps the rows told apart, which have to live as long as their number stands for them.
        of = rows.found((*self.columns, id(apart)), lambda: _Counted.of(rows, self.columns, apart))
        times = _summed(of.which, times_ps, len(of.keys))
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
    """Of rows told apart, the keys that they have by fewer columns, ``which`` one each key is, and sums.

    Sums of times are exact, in whichever order: whole picoseconds of less than an hour.
    """

    apart: ToldApart
    keys: list[Key]
    which: npt.NDArray[np.int64]
    counts: list[int]
    alone_ps: list[float]
    num_bytes: list[float]
    flops: list[float]

    @classmethod
    def of(cls, rows: RankRows, columns: Sequence[str], apart: ToldApart) -> _Counted:
        """By these columns."""
        places = [apart.columns.index(column) for column in columns]
        of_keys = [tuple([key[place] for place in places]) for key in apart.keys]
        number = {key: index for index, key in enumerate(dict.fromkeys(of_keys))}
        which = np.array([number[key] for key in of_keys], dtype=np.int64)
        one = ToldApart(columns, apart.at, list(number), which[apart.number])
        columns_of = (rows.ints(name).take(apart.at) for name in ("alone_ps", "bytes", "flops"))
        sums = (one.summed(column) for column in columns_of)
        return cls(apart, one.keys, which, np.bincount(one.number).tolist(), *sums)


def _summed(number: npt.NDArray[np.int64], values: npt.ArrayLike, count: int) -> list[float]:
    """Sums of values by number, of which there are so many."""
    sums: list[float] = np.bincount(number, values, count).tolist()
    return sums
