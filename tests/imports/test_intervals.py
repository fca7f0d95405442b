"""Moments among nested intervals."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workloads.imports.recording.intervals import covered, innermost, merged

INTERVALS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 2)), max_size=12)


def by_definition(time, thread, intervals):
    """Of what began on the thread up to a moment: the last that ends after it and after what began since."""
    stack = []
    for number in sorted(range(len(intervals)), key=lambda i: (intervals[i][0], -intervals[i][1])):
        start, _, of_thread = intervals[number]
        if of_thread != thread or start > time:
            continue
        while stack and intervals[stack[-1]][1] <= start:
            stack.pop()
        stack.append(number)
    while stack and intervals[stack[-1]][1] <= time:
        stack.pop()
    return stack[-1] if stack else -1


@settings(max_examples=150, deadline=None)
@given(INTERVALS)
@example([(0, 10, 0), (0, 10, 0), (2, 2, 0), (2, 5, 0), (5, 9, 0)])  # nested, twins, and one without length
@example([(0, 10, 0), (5, 15, 0), (11, 12, 0)])  # one ends in another
def test_the_innermost_of_nested_intervals(drawn):
    intervals = [(min(a, b), max(a, b), thread) for a, b, thread in drawn]
    asked = [(time, thread) for thread in range(3) for time in range(-1, 23)]
    times, threads = (np.array(column, dtype=np.int64) for column in zip(*asked, strict=True))
    start, end, of_thread = (
        np.array([interval[k] for interval in intervals], dtype=np.int64) for k in range(3)
    )
    found = innermost(times, threads, start, end, of_thread).tolist()
    expected = [by_definition(*moment, intervals) for moment in asked]
    assert found == expected


@settings(max_examples=100, deadline=None)
@given(INTERVALS, st.lists(st.integers(0, 45), min_size=1))
def test_time_that_lies_in_any_interval(intervals, times):
    inside = np.zeros(45, dtype=np.int64)
    for start, length, _ in intervals:
        inside[start : start + length] = 1
    start, end = np.array([(at, at + length) for at, length, _ in intervals], dtype=np.int64).reshape(-1, 2).T
    apart = merged(start, end)
    assert (apart[1] - apart[0]).sum() == inside.sum()
    assert (apart[0][1:] > apart[1][:-1]).all()
    assert covered(np.array(times), *apart).tolist() == [inside[:time].sum() for time in times]
