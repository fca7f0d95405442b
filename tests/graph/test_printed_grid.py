"""What ``--show-schedule`` prints, read back: every action once, and nothing before what it waits for."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from simcore.graph.schedules import bubble_fraction, grid
from simcore.graph.schedules.actions import virtual_stage
from workloads.parallel import ParallelSpec
from workloads.parallel.generate import schedule_of

#: Schedule, chunks of a stage, and its bubble over the work where forward, I and W take one unit each.
SCHEDULES = [
    ("gpipe", 1, lambda p, m: Fraction(p - 1, m)),
    ("1f1b", 1, lambda p, m: Fraction(p - 1, m)),
    ("interleaved", 2, lambda p, m: Fraction(p - 1, 2 * m)),
    ("interleaved", 4, lambda p, m: Fraction(p - 1, 4 * m)),
    ("zero_bubble", 1, lambda p, m: Fraction(p - 1, 3 * m)),
    ("zero_bubble", 2, None),
    ("zb_v", 2, None),
    ("dualpipe_v", 2, None),
]


def _columns(line: str) -> list[str]:
    return line.split("  ", 1)[1].split()


def _read(text: str) -> dict[tuple[int, str], tuple[int, int]]:
    """(stage, action) -> first column and the one behind its last."""
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for stage, line in enumerate(text.splitlines()):
        action, cells = "", _columns(line)
        for column, cell in enumerate(cells):
            if set(cell) == {"-"}:
                found[stage, action] = (found[stage, action][0], column + 1)
            elif cell != ".":
                action = cell
                assert (stage, action) not in found, "an action is printed twice"
                found[stage, action] = (column, column + 1)
    return found


@pytest.mark.parametrize(("name", "chunks", "formula"), SCHEDULES)
@pytest.mark.parametrize(("stages", "count"), [(2, 4), (4, 8), (4, 12)])
def test_a_printed_grid_can_run(name, chunks, formula, stages, count):
    spec = ParallelSpec(pp=stages, schedule=name, virtual_stages=chunks)
    schedule, placement = schedule_of(spec, count)
    printed = _read(grid(schedule, placement))
    last = stages * chunks - 1
    where = {virtual_stage(s, c, stages, placement): (s, c) for s in range(stages) for c in range(chunks)}

    def times(kind: str, microbatch: int, place: int) -> tuple[int, int]:
        stage, chunk = where[place]
        return printed[stage, f"{kind}{microbatch}" + (f".{chunk}" if chunk else "")]

    def back(microbatch: int, place: int) -> tuple[int, int]:
        stage, chunk = where[place]
        whole = f"B{microbatch}" + (f".{chunk}" if chunk else "")
        return printed.get((stage, whole)) or times("I", microbatch, place)

    actions = sum(len(one) for one in schedule)
    assert len(printed) == actions
    for microbatch in range(count):
        for place in range(last + 1):
            forward = times("F", microbatch, place)
            backward = back(microbatch, place)
            assert forward[1] <= backward[0]
            if place:
                assert times("F", microbatch, place - 1)[1] <= forward[0]
                assert backward[1] <= back(microbatch, place - 1)[0]
            stage, chunk = where[place]
            weights = printed.get((stage, f"W{microbatch}" + (f".{chunk}" if chunk else "")))
            assert weights is None or backward[1] <= weights[0]
    # Each stage works 3 units a microbatch and chunk; the longest line is the step.
    length = max(end for _, end in printed.values())
    bubble = Fraction(length, 3 * count * chunks) - 1
    assert bubble_fraction(schedule, placement) == pytest.approx(float(bubble))
    if formula is not None:
        assert bubble == formula(stages, count)
    plain = Fraction(stages - 1, count)
    assert bubble <= plain and re.match(r"stage 0  F0", grid(schedule, placement))
