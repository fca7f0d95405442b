"""Interval sets against counting moments one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simcore.analysis import Intervals, break_down

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=15)


def covered(spans: list[tuple[int, int]]) -> set[int]:
    """Whole moments that the spans (start, length) cover."""
    return {moment for start, length in spans for moment in range(start, start + length)}


def union(spans: list[tuple[int, int]]) -> Intervals:
    start = np.array([start for start, _ in spans], dtype=np.int64)
    return Intervals.union(start, start + np.array([length for _, length in spans], dtype=np.int64))


@given(SPANS)
def test_union_covers_the_same_moments(spans: list[tuple[int, int]]) -> None:
    merged = union(spans)
    assert merged.total == len(covered(spans))
    assert (merged.start[1:] > merged.end[:-1]).all()
    assert (merged.end > merged.start).all()


@given(SPANS, SPANS)
def test_overlap_is_the_moments_of_both(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    both = len(covered(left) & covered(right))
    assert union(left).overlap(union(right)) == both
    assert union(right).overlap(union(left)) == both


@given(SPANS, SPANS)
def test_breakdown_adds_up_to_the_step(compute: list[tuple[int, int]], comm: list[tuple[int, int]]) -> None:
    parts = break_down(union(compute), union(comm), 60)
    busy, talking = covered(compute), covered(comm)
    assert parts.exposed_compute == len(busy - talking)
    assert parts.overlapped == len(busy & talking)
    assert parts.exposed_communication == len(talking - busy)
    assert parts.idle == 60 - len(busy | talking)


def test_touching_spans_merge() -> None:
    merged = union([(10, 5), (0, 10)])
    assert (merged.start.tolist(), merged.end.tolist()) == ([0], [15])
