"""Training steps, backwards and optimizer among NVTX ranges: nothing marks them but how they are called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from workloads.imports.nsys_database import Database
from workloads.imports.phases import PhaseSpans
from workloads.imports.recording import Step
from workloads.imports.step_marks import StepRanges

_RANGES = (59, 60, 70, 71)  # push/pop and start/end ranges, and theirs from text files, among event types
_PID = ~0xFFFFFF


def nvtx_steps(
    database: Database, texts: dict[int, str], after_ps: Callable[[int], int], *, by_process: bool
) -> dict[int, tuple[Step, ...]]:
    """Steps by process (its serialized id), or all under 0; ``after_ps`` as :func:`nvtx_phases` takes it.

    Which ranges are steps: :class:`StepRanges`.
    """
    found: dict[int, StepRanges] = defaultdict(StepRanges)
    for process, text, start, end in _ranges(database, texts):
        found[process if by_process else 0].add(text, after_ps(start), after_ps(end))
    return {process: tuple(ranges.steps()[0]) for process, ranges in found.items()}


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
