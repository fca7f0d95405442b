"""What NCCL's own NVTX ranges say of communication kernels: communicator, size, number of ranks.

NCCL annotates its API calls (``ncclAllReduce`` in domain "NCCL") with a payload; Nsight Systems exports it
as JSON text of the range.  The size is that of one message: what a rank puts into an all_gather, what it gets
from a reduce_scatter.  Source: NCCL, src/collectives.cc and src/include/nvtx_payload_schemas.h.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray
from workloads.imports.innermost import innermost
from workloads.imports.nsys_database import Database
from workloads.imports.recording import CollectiveMeta

_CALL = re.compile(r"(?:nccl)?(All\w+|Reduce\w*|Broadcast|Gather|Scatter|Send|Recv|Group\w+)$")
_GROUP_END, _GROUP_START = "GroupEnd", "GroupStart"
_INIT = re.compile(r"CommInit|CommSplit")
_MAX_BYTES = 1 << 50


@dataclass(frozen=True)
class _Range:
    """A call of NCCL's API on a thread."""

    start_ns: int
    end_ns: int
    name: str
    communicator: str
    num_bytes: int


class NcclRanges:
    """NCCL's ranges of a database, by thread."""

    def __init__(self, database: Database, texts: dict[int, str]) -> None:
        self._by_thread: dict[int, list[_Range]] = defaultdict(list)
        self._num_ranks: dict[str, int] = {}
        columns = ("start", "end", "text", "textId", "globalTid", "jsonText", "jsonTextId")
        for start, end, text, text_id, thread, told, told_id in database.rows("NVTX_EVENTS", columns):
            name = text if isinstance(text, str) else texts.get(text_id, "") if type(text_id) is int else ""
            if type(start) is not int or type(end) is not int or type(thread) is not int:
                continue
            payload = (
                told if isinstance(told, str) else texts.get(told_id, "") if type(told_id) is int else ""
            )
            communicator, num_bytes, num_ranks = _payload(payload) if payload else ("", 0, 0)
            found = _CALL.match(name)
            if found is not None:
                thread_ranges = self._by_thread[thread]
                thread_ranges.append(_Range(start, end, found.group(1), communicator, num_bytes))
            elif num_ranks > 0 and _INIT.search(name):
                self._num_ranks[communicator] = num_ranks
        for ranges in self._by_thread.values():
            ranges.sort(key=lambda r: (r.start_ns, -r.end_ns))

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
        number[rows], meta = self._of_launches(calls[0][launch], calls[2][launch])
        return number, meta

    def _of_launches(self, launched_ns: IntArray, thread: IntArray) -> tuple[IntArray, list[CollectiveMeta]]:
        number = np.full(len(launched_ns), -1, dtype=np.int64)
        known: dict[CollectiveMeta, int] = {}
        for name in np.unique(thread).tolist():
            ranges = self._by_thread.get(name, [])
            mine = np.flatnonzero(thread == name)
            mine = mine[np.argsort(launched_ns[mine], kind="stable")]
            around = np.full(len(launched_ns), -1, dtype=np.int64)
            innermost(
                launched_ns[mine].tolist(), mine.tolist(), [r.start_ns for r in ranges],
                [r.end_ns for r in ranges], list(range(len(ranges))), around,
            )  # fmt: skip
            for kernel in mine[around[mine] >= 0].tolist():
                meta = self._told(ranges, int(around[kernel]))
                if meta is not None:
                    number[kernel] = known.setdefault(meta, len(known))
        return number, list(known)

    def _told(self, ranges: list[_Range], at: int) -> CollectiveMeta | None:
        """What the call at place ``at`` says; the end of a group launches all of the group's."""
        calls = [ranges[at]]
        if ranges[at].name == _GROUP_END:
            calls = []
            for before in reversed(ranges[:at]):
                if before.name in (_GROUP_START, _GROUP_END):
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
    except ValueError:
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
