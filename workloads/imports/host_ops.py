"""All calls of the framework in a Kineto trace, shapes or not: what an execution trace is joined with."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from simcore.graph.ops import IntArray
from workloads.imports.recording import Names

#: Arguments of a Kineto event that may number the calls as an execution trace does (``rf_id``), newest first.
FUNCTION_IDS = ("Record function id", "External id", "Ev Idx")


class HostOps:
    """Collects CPU ops and annotations: start, end, thread, name, and the number under each id (0: none)."""

    def __init__(self) -> None:
        self.names = Names()
        self._found: array[int] = array("q")

    def take(self, event: dict[str, Any], start_ps: int, end_ps: int, thread: int) -> None:
        """Note an event with its times, ps after the trace's origin."""
        args = event.get("args")
        ids = [args.get(key) if isinstance(args, dict) else None for key in FUNCTION_IDS]
        numbers = [value if type(value) is int and 0 <= value < 1 << 62 else 0 for value in ids]
        self._found.extend((start_ps, end_ps, thread, self.names.code(str(event.get("name", ""))), *numbers))

    def columns(self) -> IntArray:
        """Rows start, end, thread, name and the ids; columns sorted by start, outer calls first."""
        table = np.frombuffer(self._found, dtype=np.int64).reshape(-1, 4 + len(FUNCTION_IDS))
        order = np.lexsort((np.arange(len(table)), -table[:, 1], table[:, 0]))
        return np.ascontiguousarray(table[order].T)
