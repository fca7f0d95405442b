"""Which forward or backward of a worker a logged send or receive belongs to."""

from __future__ import annotations

import numpy as np

from workloads.imports.straggler_trace import BACKWARD, FORWARD, P2P_TYPES, WorkerLog

_TOLERANCE_PS = 500_000_000  # clocks and rounding; a microbatch lasts many times as long


def matched_computes(log: WorkerLog, rows: list[int]) -> dict[int, int]:
    """By row of a send or receive that moves data: the row of the compute before or after it.

    ``rows`` are one worker's of one step, by start.  The first chunk of the model receives nothing and the
    last sends nothing forward; backward the other way round.  Profilers log such calls all the same, and
    calls before the first compute could send or after the last could receive: these move nothing.
    """
    found: dict[int, int] = {}
    last_chunk = int(log.model_chunk.max())
    for optype, (sends, hop) in P2P_TYPES.items():
        calls = [row for row in rows if log.optype[row] == optype]
        wanted = FORWARD if optype.startswith("forward") else BACKWARD
        computes = [row for row in rows if log.optype[row] == wanted]
        if not calls or not computes:
            continue
        end_of_model = last_chunk if sends == (hop > 0) else 0
        moving = [row for row in computes if int(log.model_chunk[row]) != end_of_model]
        if len(calls) not in (len(moving), len(computes)):
            calls = _in_time(log, calls, computes, sends)
            calls = calls[-len(computes) :] if sends else calls[: len(computes)]
        if len(calls) == len(moving):
            found.update(zip(calls, moving, strict=True))
        else:
            # Every compute has a call, but for the first where it had nothing to receive.
            first = len(computes) - len(calls) if not sends else 0
            pairs = zip(calls, computes[first:], strict=False)
            found.update({call: compute for call, compute in pairs if compute in set(moving)})
    return found


def _in_time(log: WorkerLog, calls: list[int], computes: list[int], sends: bool) -> list[int]:
    """Calls that can have moved something: receives before the last compute, sends after the first."""
    if sends:
        first_end = min(int(log.end_ps[row]) for row in computes)
        return [row for row in calls if int(log.end_ps[row]) >= first_end - _TOLERANCE_PS]
    last_start = max(int(log.start_ps[row]) for row in computes)
    return [row for row in calls if int(log.start_ps[row]) <= last_start + _TOLERANCE_PS]


def all_matched(log: WorkerLog) -> dict[int, int]:
    """:func:`matched_computes` of all workers and steps."""
    matched: dict[int, int] = {}
    key = np.searchsorted(log.steps, log.step) * len(log.numbers) + log.worker
    begins = np.flatnonzero(np.diff(key, prepend=-1)).tolist()
    for begin, stop in zip(begins, [*begins[1:], len(key)], strict=True):
        matched |= matched_computes(log, list(range(begin, stop)))
    return matched
