"""Who wrote which bytes of a storage last."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class ByteWriters:
    """Last writer of every byte of a storage, as disjoint intervals in ascending order.

    Buckets of a gradient buffer share one storage: without intervals, reducing one bucket would seem
    to depend on accumulating into another.
    """

    __slots__ = ("_ends", "_starts", "_writers")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._writers: list[int] = []

    def overlapping(self, low: int, high: int) -> list[int]:
        """Writers of any byte in ``[low, high)``, in byte order."""
        first, last = bisect_right(self._ends, low), bisect_left(self._starts, high)
        return self._writers[first:last]

    def write(self, low: int, high: int, writer: int) -> None:
        """``writer`` becomes the last writer of ``[low, high)``."""
        first, last = bisect_right(self._ends, low), bisect_left(self._starts, high)
        starts, ends, writers = [low], [high], [writer]
        if first < last:
            if self._starts[first] < low:
                starts.insert(0, self._starts[first])
                ends.insert(0, low)
                writers.insert(0, self._writers[first])
            if self._ends[last - 1] > high:
                starts.append(high)
                ends.append(self._ends[last - 1])
                writers.append(self._writers[last - 1])
        self._starts[first:last] = starts
        self._ends[first:last] = ends
        self._writers[first:last] = writers
