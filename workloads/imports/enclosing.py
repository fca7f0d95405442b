"""Calls of the framework that issue communication: what encloses a wait tells on which side of it it stands.

A wait inside such a call makes the communication stream wait for what the call reads; a wait outside
(``Work.wait``, ``wait_tensor``, a wait between streams of FSDP) makes a stream wait for what was issued
before.
"""

from __future__ import annotations

import re
from array import array

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray

#: PyTorch's calls: "c10d::allreduce_", "nccl:_all_gather_base", "record_param_comms",
#: "_c10d_functional::all_gather_into_tensor".
_ISSUES = re.compile(r"c10d::|nccl:|rccl:|record_param_comms|_c10d_functional::(?!wait)")


class CommunicationCalls:
    """Intervals of such calls by host thread, ps after the recording's origin."""

    def __init__(self) -> None:
        self._found: array[int] = array("q")
        self._known: dict[str, bool] = {}

    def is_one(self, name: str) -> bool:
        """Whether a host event of this name issues communication."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _ISSUES.match(name) is not None
        return known

    def add(self, start_ps: int, end_ps: int, thread: int) -> None:
        """Note a call."""
        self._found.extend((start_ps, end_ps, thread))

    def __len__(self) -> int:
        return len(self._found) // 3

    def enclose(self, time_ps: IntArray, thread: IntArray) -> npt.NDArray[np.bool_]:
        """Which of these moments of these threads lie in a call."""
        inside = np.zeros(len(time_ps), dtype=np.bool_)
        spans = np.frombuffer(self._found, dtype=np.int64).reshape(-1, 3)
        for number in np.unique(spans[:, 2]).tolist():
            mine = spans[spans[:, 2] == number]
            mine = mine[np.argsort(mine[:, 0], kind="stable")]
            until = np.maximum.accumulate(mine[:, 1])
            asked = np.flatnonzero(thread == number)
            at = np.searchsorted(mine[:, 0], time_ps[asked], side="right") - 1
            inside[asked] = (at >= 0) & (time_ps[asked] < until[at])
        return inside
