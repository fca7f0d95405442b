"""What nothing beats in everything: non-dominated points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from simcore.planning.search import Trial

Point = TypeVar("Point")


def non_dominated(points: Sequence[Point], costs: Callable[[Point], tuple[float, ...]]) -> list[Point]:
    """``points`` that no other is as good as in all ``costs`` and better in one; of equals the first."""
    asked = [costs(point) for point in points]

    def beaten(own: int) -> bool:
        return any(
            all(theirs <= ours for theirs, ours in zip(other, asked[own], strict=True))
            and (other != asked[own] or place < own)
            for place, other in enumerate(asked)
            if place != own
        )

    return [point for number, point in enumerate(points) if not beaten(number)]


def less_memory(ranked: Sequence[Trial]) -> list[Trial]:
    """Of candidates that were simulated those that nothing beats in time and memory, the fastest first."""
    fastest_first = sorted(ranked, key=lambda one: one.step_s or 0.0)
    return non_dominated(fastest_first, lambda one: (one.step_s or 0.0, float(one.appraised.peak_bytes)))
