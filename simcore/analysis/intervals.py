"""Sets of time as sorted, disjoint half-open intervals: unions and overlaps without a loop."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcore.records import dataclass

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Intervals:
    """Disjoint intervals ``[start[i], end[i])``, ascending, none empty and none touching the next."""

    start: IntArray
    end: IntArray

    @classmethod
    def union(cls, start: IntArray, end: IntArray) -> Intervals:
        """The time covered by any of the given intervals; empty ones vanish, touching ones merge."""
        real = end > start
        if not real.all():
            start, end = start[real], end[real]
        if len(start) == 0:
            return cls(start, end)
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start, end = start[order], end[order]
        reach = end if (start[1:] >= end[:-1]).all() else np.maximum.accumulate(end)
        opens = np.flatnonzero(start[1:] > reach[:-1])
        return cls(start[np.append(0, opens + 1)], reach[np.append(opens, len(reach) - 1)])

    @classmethod
    def none(cls) -> Intervals:
        """No time at all."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    def joined(self, other: Intervals) -> Intervals:
        """Time covered by either."""
        return Intervals.union(
            np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end])
        )

    def rest_of(self, until: int) -> Intervals:
        """Time in ``[0, until)`` that is not covered."""
        start, end = np.concatenate([[0], self.end]), np.concatenate([self.start, [until]])
        return Intervals.union(start.astype(np.int64), np.minimum(end, until).astype(np.int64))

    @property
    def total(self) -> int:
        """Time covered."""
        return int((self.end - self.start).sum())

    def covered_until(self, time: IntArray) -> IntArray:
        """Covered time in ``(-inf, t)`` for each ``t``."""
        if len(self.start) == 0:
            return np.zeros_like(time)
        length = self.end - self.start
        before = np.concatenate([[0], np.cumsum(length)])
        count = np.searchsorted(self.start, time, side="right")
        # The last interval that began may not have ended yet.
        beyond = np.where(count > 0, np.maximum(self.end[count - 1] - time, 0), 0)
        return before[count] - beyond

    def overlap(self, other: Intervals) -> int:
        """Time covered by both."""
        return int((other.covered_until(self.end) - other.covered_until(self.start)).sum())
