"""What is played is let go of without a look for garbage, which is off meanwhile."""

from __future__ import annotations

import gc

import pytest

from simcore.clock import uncollected
from simcore.engine.shortcuts.cell_times import CellBook, Course
from tests.engine.twelve_jobs import TWELVE


def test_courses_are_no_circles_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each knows the one before it and those after it: whoever forgets them has to part them."""
    made: list[int] = []
    after = CellBook.after

    def counted(*args: object) -> Course:
        course = after(*args)  # type: ignore[arg-type]
        made.append(len(course.changes))
        return course

    monkeypatch.setattr(CellBook, "after", counted)
    gc.collect()
    with uncollected():
        TWELVE["interleaved"]().play()
        left = sum(isinstance(one, Course) for one in gc.get_objects())
    assert max(made, default=0) > 1
    assert left == 0
