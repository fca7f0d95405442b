"""Training steps told by evidence: ranges that programs name after a step, or the optimizer's own."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from simcore.graph.ops import IntArray
from workloads.imports.recorded import Step

#: "ProfilerStep#7", "iteration 12", "## train_step ##", "Batch: 3", "[pl][profile]run_training_batch": one
#: word for a step, a number or none.
_STEP = re.compile(
    r"^(?:\[[^\]]*\])*\W*(?:\w+\.)?(?:run[\s_-])?(?:(?:profiler|train(?:ing)?|global|mini|macro)?[\s_-]*"
    r"(?:step|iter(?:ation)?|batch))[\s#:=_\[(-]*(\d{1,15})?\W*$",
    re.IGNORECASE,
)
_MAX_NAME = 100
_MOST = 0.5  # of a recording's launches are in steps, or the ranges are something else


@lru_cache(maxsize=1 << 16)
def _named(text: str) -> tuple[str, int] | None:
    """What a range is called without its number, and the number or -1; None for anything but a step."""
    found = _STEP.match(text) if len(text) < _MAX_NAME else None
    if found is None:
        return None
    number = found.group(1)
    return (text[: found.start(1)] if number else text).strip().lower(), int(number or -1)


def is_step_range(text: str) -> bool:
    """Whether a range is called like a step."""
    return _named(text) is not None


class StepRanges:
    """Ranges of the host that are called like a step, by what they are called."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[tuple[int, int, int]]] = defaultdict(list)

    def add(self, text: str, start: int, end: int) -> None:
        """Note a range, if it is called like a step."""
        named = _named(text)
        if named is not None and end > start:
            self._by_name[named[0]].append((start, end, named[1]))

    def append(self, other: StepRanges) -> None:
        """Note what ``other`` has."""
        for name, ranges in other._by_name.items():
            self._by_name[name].extend(ranges)

    def steps(self) -> tuple[list[Step], str]:
        """The steps in order, and what they are called.

        Of several kinds of ranges (steps and batches, say) the one that covers most time is taken.  Ranges
        without numbers are counted from 0.  Ranges with one number, as threads repeat them, are one: the
        longest.
        """
        if not self._by_name:
            return [], ""
        name, ranges = max(
            self._by_name.items(), key=lambda item: sum(end - start for start, end, _ in item[1])
        )
        return longest_steps(
            [
                Step(number if number >= 0 else count, start, end)
                for count, (start, end, number) in enumerate(sorted(ranges))
            ]
        ), name


def longest_steps(found: Sequence[Step]) -> list[Step]:
    """Steps in order; of several with one number (threads repeat them) the longest."""
    longest: dict[int, Step] = {}
    for step in found:
        known = longest.get(step.number)
        if known is None or step.end_ps - step.start_ps > known.end_ps - known.start_ps:
            longest[step.number] = step
    return sorted(longest.values(), key=lambda step: step.start_ps)


def steps_by_evidence(
    ranges: StepRanges, optimizer: IntArray, backward: IntArray, launched_ps: IntArray
) -> tuple[list[Step], str]:
    """Steps of a recording whose profiler marked none, and by what they are told; none where nothing tells.

    ``launched_ps`` is when its GPU ops were launched; ``optimizer`` and ``backward`` are starts and ends
    (columns) of optimizer steps and backwards on the host.  Ranges called like a step are believed if most
    ops were launched in them.  Else a step ends with its optimizer: several in a row, without a backward
    between, are one.
    """
    steps, name = ranges.steps()
    inside = np.zeros(len(launched_ps), dtype=np.bool_)
    for step in steps:
        inside |= (launched_ps >= step.start_ps) & (launched_ps < step.end_ps)
    if len(steps) > 1 and inside.mean() >= _MOST:
        return steps, f"ranges called {name!r}, in which {inside.mean():.0%} of the ops were launched"
    ends = _ends(optimizer, backward)
    if len(ends) < 2:
        return [], ""
    begin, last = int(launched_ps.min()), int(launched_ps.max()) + 1
    if not (backward[:, 0] >= ends[-1]).any():
        ends[-1] = max(ends[-1], last)  # what follows belongs to no other step
    borders = [min(begin, ends[0] - 1), *ends]
    return [
        Step(number, start, end) for number, (start, end) in enumerate(pairwise(borders))
    ], "ends of Optimizer.step; the first step may have begun before the recording"


def _ends(optimizer: IntArray, backward: IntArray) -> list[int]:
    """When each step's last optimizer ended."""
    ends: list[int] = []
    begins = np.sort(backward[:, 0])
    for start, end in optimizer[np.argsort(optimizer[:, 0], kind="stable")].tolist():
        if ends and not np.searchsorted(begins, start) > np.searchsorted(begins, ends[-1]):
            ends[-1] = max(ends[-1], end)
        else:
            ends.append(end)
    return ends
