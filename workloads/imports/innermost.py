"""The innermost of nested intervals around moments in time."""

from __future__ import annotations

from simcore.graph.ops import IntArray


def innermost(
    times: list[int],
    calls: list[int],
    starts: list[int],
    ends: list[int],
    around: list[int],
    result: IntArray,
) -> None:
    """Write into ``result[call]`` the innermost of nested intervals at each time; all sorted."""
    stack: list[int] = []
    place = 0
    for time, call in zip(times, calls, strict=True):
        while place < len(starts) and starts[place] <= time:
            while stack and ends[stack[-1]] <= starts[place]:
                stack.pop()
            stack.append(place)
            place += 1
        while stack and ends[stack[-1]] <= time:
            stack.pop()
        if stack:
            result[call] = around[stack[-1]]
