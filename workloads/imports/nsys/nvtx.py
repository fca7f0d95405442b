"""What NVTX ranges say: NCCL's own of communication kernels, and a program's of steps and phases.

NCCL annotates its API calls (``ncclAllReduce`` in domain "NCCL") with a payload; Nsight Systems exports it
as JSON text of the range.  The size is that of one message: what a rank puts into an all_gather, what it gets
from a reduce_scatter.  Source: NCCL, src/collectives.cc and src/include/nvtx_payload_schemas.h.

Nothing marks steps, backwards and optimizer but how ranges are called.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray
from workloads.imports.nsys.database import PROCESS, NsysDatabase
from workloads.imports.recorded import Step
from workloads.imports.recording.columns import CollectiveMeta
from workloads.imports.recording.host_notes import PhaseSpans
from workloads.imports.recording.intervals import innermost
from workloads.imports.recording.steps import StepRanges

_RANGES = (59, 60, 70, 71)  # push/pop and start/end ranges, and theirs from text files, among event types
_CALL = re.compile(r"(?:nccl)?(All\w+|Reduce\w*|Broadcast|Gather|Scatter|Send|Recv|Group\w+)$")
_GROUP_END, _GROUP_START = "GroupEnd", "GroupStart"
_INIT = re.compile(r"CommInit|CommSplit")
_MAX_BYTES = 1 << 50


class _NcclRange(NamedTuple):
    """A call of NCCL's API."""

    thread: int
    start_ns: int
    end_ns: int
    name: str
    communicator: str
    num_bytes: int


class NcclRanges:
    """NCCL's ranges of a database."""

    def __init__(self, database: NsysDatabase, texts: dict[int, str]) -> None:
        self._ranges: list[_NcclRange] = []
        self._num_ranks: dict[str, int] = {}
        columns = ("start", "end", "text", "textId", "globalTid", "jsonText", "jsonTextId")
        for start, end, text, text_id, thread, told, told_id in database.rows("NVTX_EVENTS", columns):
            if type(start) is not int or type(end) is not int or type(thread) is not int:
                continue
            name, payload = _text(texts, text, text_id), _text(texts, told, told_id)
            communicator, num_bytes, num_ranks = _payload(payload) if payload else ("", 0, 0)
            found = _CALL.match(name)
            if found is not None:
                self._ranges.append(_NcclRange(thread, start, end, found.group(1), communicator, num_bytes))
            elif num_ranks > 0 and _INIT.search(name):
                self._num_ranks[communicator] = num_ranks
        self._ranges.sort(key=lambda r: (r.thread, r.start_ns, -r.end_ns))

    def of_activities(
        self, correlation: IntArray, communicates: npt.NDArray[np.bool_], calls: IntArray
    ) -> tuple[IntArray, list[CollectiveMeta]]:
        """By activity its number in the list, -1 where no range around its launch tells.

        ``calls`` has rows start (ns), end, thread, name and correlation; columns sorted by start.
        """
        number = np.full(len(correlation), -1, dtype=np.int64)
        known, first = np.unique(calls[4], return_index=True)
        rows = np.flatnonzero(communicates & np.isin(correlation, known))
        launch = first[np.searchsorted(known, correlation[rows])]
        thread, start, end = np.array([r[:3] for r in self._ranges], dtype=np.int64).reshape(-1, 3).T
        around = innermost(calls[0][launch], calls[2][launch], start, end, thread)
        meta: dict[CollectiveMeta, int] = {}
        for row, at in zip(rows.tolist(), around.tolist(), strict=True):
            told = self._told(at) if at >= 0 else None
            if told is not None:
                number[row] = meta.setdefault(told, len(meta))
        return number, list(meta)

    def _told(self, at: int) -> CollectiveMeta | None:
        """What the call at place ``at`` says; the end of a group launches all of the group's."""
        own = self._ranges[at]
        calls = [own]
        if own.name == _GROUP_END:
            calls = []
            for place in range(at - 1, -1, -1):
                before = self._ranges[place]
                if before.name in (_GROUP_START, _GROUP_END) or before.thread != own.thread:
                    break
                calls.append(before)
        names = {call.name for call in calls}
        communicators = {call.communicator for call in calls}
        if not names or names & {_GROUP_START, _GROUP_END} or communicators == {""} or len(communicators) > 1:
            return None
        (communicator,) = communicators
        exchange = names <= {"Send", "Recv"}
        if len(names) > 1 and not exchange:
            return None
        # Sends and receives of a group are one exchange; what a rank puts in is its size.
        size = sum(call.num_bytes for call in calls if not exchange or len(names) == 1 or call.name == "Send")
        name = "SendRecv" if exchange else next(iter(names))
        num_ranks = self._num_ranks.get(communicator, -1)
        whole = size * num_ranks if num_ranks > 0 else -1
        read = whole if name == "ReduceScatter" else size
        written = whole if name == "AllGather" else size
        return CollectiveMeta(name, f"communicator {communicator}", "", "byte", read, written, num_ranks)


def _payload(text: str) -> tuple[str, int, int]:
    """Communicator, bytes and number of ranks that a payload names; "", 0 and 0 where it does not."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "", 0, 0
    communicator, num_bytes, num_ranks = "", 0, 0
    for key, value in found.items() if isinstance(found, dict) else ():
        word = key.lower()
        if "communicator" in word:
            communicator = str(value)
        elif "size" in word and type(value) is int and 0 <= value < _MAX_BYTES:
            num_bytes = value
        elif word.startswith(("no. of ranks", "number of ranks")) and type(value) is int:
            num_ranks = value
    return communicator, num_bytes, num_ranks


def nvtx_steps(
    database: NsysDatabase, texts: dict[int, str], after_ps: Callable[[int], int], *, by_process: bool
) -> dict[int, tuple[Step, ...]]:
    """Steps by process (its serialized id), or all under 0; ``after_ps`` as :func:`nvtx_phases` takes it.

    Which ranges are steps: :class:`StepRanges`.
    """
    found: dict[int, StepRanges] = defaultdict(StepRanges)
    for process, text, start, end in _ranges(database, texts):
        found[process if by_process else 0].add(text, after_ps(start), after_ps(end))
    return {process: tuple(ranges.steps()[0]) for process, ranges in found.items()}


def nvtx_phases(
    database: NsysDatabase, texts: dict[int, str], after_ps: Callable[[int], int]
) -> dict[int, PhaseSpans]:
    """Backwards and optimizer steps by process; ``after_ps`` puts a time of the database after the origin."""
    found: dict[int, PhaseSpans] = defaultdict(PhaseSpans)
    for process, text, start, end in _ranges(database, texts):
        phase = found[process].phase(text)
        if phase:
            found[process].add(phase, after_ps(start), after_ps(end))
    return found


def _ranges(database: NsysDatabase, texts: dict[int, str]) -> Iterator[tuple[int, str, int, int]]:
    """Process, text, start and end (ns) of every range."""
    columns = ("start", "end", "eventType", "text", "textId", "globalTid")
    for start, end, kind, text, text_id, thread in database.rows("NVTX_EVENTS", columns):
        if not (isinstance(start, int) and isinstance(end, int) and end > start):
            continue
        if kind is not None and kind not in _RANGES:
            continue
        yield thread & PROCESS if isinstance(thread, int) else 0, _text(texts, text, text_id), start, end


def _text(texts: dict[int, str], text: object, number: object) -> str:
    """A text that stands in its row, or among the strings of the database."""
    if isinstance(text, str):
        return text
    return texts.get(number, "") if isinstance(number, int) else ""
