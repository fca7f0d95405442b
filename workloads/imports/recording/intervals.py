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


def merged(start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Begins and ends of the time that lies in any interval: ascending and apart from each other."""
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    opens = np.concatenate([np.ones(min(1, len(start)), dtype=np.bool_), start[1:] > reach[:-1]])
    return start[opens], reach[np.append(opens[1:], True)[: len(reach)]]


def covered(times: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """How much time before each moment lies in intervals that are :func:`merged`."""
    begun = np.searchsorted(start, times, side="right")
    whole = np.concatenate([[0], np.cumsum(end - start)])[begun]
    beyond = np.maximum(0, np.concatenate([[0], end])[begun] - times)  # the last one may not have ended
    found: IntArray = whole - np.where(begun > 0, beyond, 0)
    return found


def innermost(
    times: IntArray, thread: IntArray, start: IntArray, end: IntArray, of_thread: IntArray
) -> IntArray:
    """The innermost of nested intervals around each moment of a thread; -1: none.

    ``start``, ``end`` and ``of_thread`` have one entry per interval.
    """
    found = np.full(len(times), -1, dtype=np.int64)
    for number in np.unique(of_thread).tolist():
        asked = np.flatnonzero(thread == number)
        mine = np.flatnonzero((of_thread == number) & (end > start))  # others are around no moment
        if not len(asked) or not len(mine):
            continue
        mine = mine[np.lexsort((-end[mine], start[mine]))]
        nested = _Nested(start[mine], end[mine])
        place = (
            nested.around(times[asked]) if nested.is_proper else _around(times[asked], start[mine], end[mine])
        )
        found[asked] = np.where(place >= 0, mine[place], -1)
    return found


class _Nested:
    """Intervals by start, the longer first; ``is_proper``: none ends in another that began before it."""

    def __init__(self, start: IntArray, end: IntArray) -> None:
        count = len(start)
        self._start, self._ends = start, np.sort(end)
        self._depth = np.arange(count) - np.searchsorted(self._ends, start, side="right")  # others around it
        order = np.lexsort((np.arange(count), self._depth))
        self._order, self._keys = order, self._depth[order] * count + order
        parent = self._last(self._depth - 1, np.arange(count) - 1)
        inner = np.flatnonzero(self._depth > 0)
        self.is_proper = bool((end[parent[inner]] >= end[inner]).all() and (self._depth >= 0).all())

    def around(self, times: IntArray) -> IntArray:
        """The innermost around each moment; -1: none."""
        begun = np.searchsorted(self._start, times, side="right")
        depth = begun - np.searchsorted(self._ends, times, side="right") - 1
        return np.where(depth >= 0, self._last(depth, begun - 1), -1)

    def _last(self, depth: IntArray, until: IntArray) -> IntArray:
        """The last interval of a depth up to place ``until``, where there is one."""
        place = np.searchsorted(self._keys, depth * len(self._start) + until, side="right") - 1
        found: IntArray = self._order[place]
        return found


def _around(times: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """The interval that began last of those around each moment that did not end in another; -1: none."""
    found = np.full(len(times), -1, dtype=np.int64)
    starts, ends = start.tolist(), end.tolist()
    order = np.argsort(times, kind="stable")
    stack: list[int] = []
    place = 0
    for row, time in zip(order.tolist(), times[order].tolist(), strict=True):
        while place < len(starts) and starts[place] <= time:
            while stack and ends[stack[-1]] <= starts[place]:
                stack.pop()
            stack.append(place)
            place += 1
        while stack and ends[stack[-1]] <= time:
            stack.pop()
        if stack:
            found[row] = stack[-1]
    return found
