"""Moments in time among the intervals of a recording: which lie inside any, and in which of nested ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray


def inside(times: IntArray, start: IntArray, end: IntArray) -> npt.NDArray[np.bool_]:
    """Which moments lie in an interval, the end not included."""
    if not len(start):
        return np.zeros(len(times), dtype=np.bool_)
    order = np.argsort(start, kind="stable")
    until = np.maximum.accumulate(end[order])  # nested intervals end with the outermost
    at = np.searchsorted(start[order], times, side="right") - 1
    return (at >= 0) & (times < until[at])


def innermost(
    times: IntArray, thread: IntArray, start: IntArray, end: IntArray, of_thread: IntArray
) -> IntArray:
    """The innermost of nested intervals around each moment of a thread; -1: none.

    ``start``, ``end`` and ``of_thread`` have one entry per interval.
    """
    found = np.full(len(times), -1, dtype=np.int64)
    for number in np.unique(of_thread).tolist():
        asked = np.flatnonzero(thread == number)
        if not len(asked):
            continue
        asked = asked[np.argsort(times[asked], kind="stable")]
        mine = np.flatnonzero(of_thread == number)
        mine = mine[np.lexsort((-end[mine], start[mine]))]
        starts, ends, spans = start[mine].tolist(), end[mine].tolist(), mine.tolist()
        stack: list[int] = []
        place = 0
        for row, time in zip(asked.tolist(), times[asked].tolist(), strict=True):
            while place < len(starts) and starts[place] <= time:
                while stack and ends[stack[-1]] <= starts[place]:
                    stack.pop()
                stack.append(place)
                place += 1
            while stack and ends[stack[-1]] <= time:
                stack.pop()
            if stack:
                found[row] = spans[stack[-1]]
    return found
