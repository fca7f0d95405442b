"""Repeated groups in a sequence of kernels: layers, and microbatches, of a recording that names neither.

A transformer runs the same kernels layer after layer, and the same layers microbatch after microbatch.  A run
is a stretch in which a group of kernels follows itself; runs of one level do not overlap, and a level lies
inside the one above: its groups are shorter than half of that.
"""

from __future__ import annotations

import heapq
from collections import Counter

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray
from simcore.records import dataclass

_SHORTEST = 3  # kernels of a group
_LONGEST = 4096
#: A level covers so much of the sequence's time, or it is none.
WHOLE = 0.5


@dataclass(frozen=True)
class RepeatedGroups:
    """``count`` groups of ``period`` kernels from position ``start`` on."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        """The position behind its last whole group."""
        return self.start + self.period * self.count


@dataclass(frozen=True)
class Level:
    """Runs of a level; ``count`` is how many groups most of its time is in, ``share`` that time's of all."""

    runs: tuple[RepeatedGroups, ...]
    count: int
    share: float


def levels(codes: IntArray, time_ps: IntArray) -> list[Level]:
    """Levels of repetition in a sequence of kernels (``codes`` name them), the outermost first."""
    found: list[Level] = []
    longest = min(_LONGEST, len(codes) // 2)
    total = max(1, int(time_ps.sum()))
    until = np.concatenate([[0], np.cumsum(time_ps)])
    while longest >= _SHORTEST:
        runs = _runs(codes, longest)
        if not runs:
            break
        weight: Counter[int] = Counter()
        periods: Counter[int] = Counter()
        for run in runs:
            weight[run.count] += int(until[run.stop] - until[run.start])
            periods[run.period] += int(until[run.stop] - until[run.start])
        if weight.total() < WHOLE * total:
            break
        count, covered = max(weight.items(), key=lambda item: (item[1], item[0]))
        found.append(Level(tuple(runs), count, covered / total))
        longest = max(periods, key=lambda period: periods[period]) // 2
    return found


def _runs(codes: IntArray, longest: int) -> list[RepeatedGroups]:
    """Disjoint runs of groups of at most ``longest`` kernels, the longest runs first taken."""
    candidates: list[tuple[int, int, int]] = []
    for period in range(_SHORTEST, longest + 1):
        same = np.zeros(len(codes) - period + 2, dtype=np.int8)
        same[1:-1] = codes[period:] == codes[:-period]
        change = np.diff(same)
        begins, ends = np.flatnonzero(change == 1), np.flatnonzero(change == -1)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            if end - begin >= period:
                candidates.append((-(end - begin + period), period, begin))
    heapq.heapify(candidates)
    taken = np.zeros(len(codes), dtype=np.bool_)
    runs = []
    while candidates:
        minus_length, period, begin = heapq.heappop(candidates)
        begin, length = _free(taken, begin, -minus_length)
        if length < -minus_length:  # cut by a longer run: later, as what is left of it
            if length >= 2 * period:
                heapq.heappush(candidates, (-length, period, begin))
            continue
        run = RepeatedGroups(begin, period, length // period)
        taken[begin : run.stop] = True
        runs.append(run)
    return sorted(runs, key=lambda run: run.start)


def _free(taken: npt.NDArray[np.bool_], begin: int, length: int) -> tuple[int, int]:
    """The longest free stretch of one: its begin and length."""
    inside = taken[begin : begin + length]
    if not inside.any():
        return begin, length
    edges = np.flatnonzero(np.diff(np.concatenate([[1], inside.astype(np.int8), [1]])))
    starts, stops = edges[::2], edges[1::2]
    if not len(starts):
        return begin, 0
    best = int(np.argmax(stops - starts))
    return begin + int(starts[best]), int(stops[best] - starts[best])
