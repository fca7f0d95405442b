"""Training steps, backwards and optimizer among NVTX ranges: nothing marks them but how they are called."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from workloads.imports.nsys_database import Database
from workloads.imports.phases import PhaseSpans

_RANGES = (59, 60, 70, 71)  # push/pop and start/end ranges, and theirs from text files, among event types
#: "ProfilerStep#7", "iteration 12", "train_step", "Batch: 3": one word for a step, a number or none.
_STEP = re.compile(
    r"^\W*(?:(?:profiler|train(?:ing)?|global|mini|macro)?[\s_-]*(?:step|iter(?:ation)?|batch))[\s#:=_\[(-]*(\d{1,15})?\W*$",
    re.IGNORECASE,
)
_PID = ~0xFFFFFF


@dataclass(frozen=True)
class NvtxStep:
    """A range that is a step of process ``process`` (its serialized id)."""

    process: int
    number: int
    start_ns: int
    end_ns: int


def nvtx_steps(database: Database, texts: dict[int, str]) -> list[NvtxStep]:
    """Steps of all processes, by process and start.

    Of several kinds of ranges that look like steps (steps and batches, say) the one that covers most time is
    taken.  Ranges without numbers are counted from 0.  Ranges with one number, as threads repeat them, are
    one: the longest.
    """
    kinds: dict[int, dict[str, list[tuple[int, int, int]]]] = defaultdict(lambda: defaultdict(list))
    for process, text, start, end in _ranges(database, texts):
        found = _STEP.match(text) if len(text) < 100 else None
        if found is None:
            continue
        base = text[: found.start(1)] if found.group(1) else text
        number = int(found.group(1)) if found.group(1) else -1
        kinds[process][base.strip().lower()].append((start, end, number))
    steps = []
    for process, by_name in kinds.items():
        ranges = max(by_name.values(), key=lambda r: sum(end - start for start, end, _ in r))
        longest: dict[int, tuple[int, int]] = {}
        for count, (start, end, number) in enumerate(sorted(ranges)):
            name = number if number >= 0 else count
            known = longest.get(name)
            if known is None or end - start > known[1] - known[0]:
                longest[name] = (start, end)
        mine = [NvtxStep(process, number, start, end) for number, (start, end) in longest.items()]
        steps += sorted(mine, key=lambda step: step.start_ns)
    return steps


def nvtx_phases(
    database: Database, texts: dict[int, str], after_ps: Callable[[int], int]
) -> dict[int, PhaseSpans]:
    """Backwards and optimizer steps by process; ``after_ps`` puts a time of the database after the origin."""
    found: dict[int, PhaseSpans] = defaultdict(PhaseSpans)
    for process, text, start, end in _ranges(database, texts):
        phase = found[process].phase(text)
        if phase:
            found[process].add(phase, after_ps(start), after_ps(end))
    return found


def _ranges(database: Database, texts: dict[int, str]) -> Iterator[tuple[int, str, int, int]]:
    """Process, text, start and end (ns) of every range."""
    columns = ("start", "end", "eventType", "text", "textId", "globalTid")
    for start, end, kind, text, text_id, thread in database.rows("NVTX_EVENTS", columns):
        if not (isinstance(start, int) and isinstance(end, int) and end > start):
            continue
        if kind is not None and kind not in _RANGES:
            continue
        if not isinstance(text, str):
            text = texts.get(text_id, "") if isinstance(text_id, int) else ""
        yield thread & _PID if isinstance(thread, int) else 0, text, start, end
