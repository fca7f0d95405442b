"""Sends and receives as the host issued them, whatever kernel carried them out."""

from __future__ import annotations

from array import array
from collections import defaultdict

import numpy as np


class P2pCalls:
    """Sends and receives that the host issued, in the order of the file; times in ps after the origin."""

    def __init__(self) -> None:
        self._times: array[int] = array("q")  # start, thread, peer, whether it is sent, number of the group
        self._groups: dict[str, int] = {}

    def add(self, start_ps: int, thread: int, group: str, peer: int, *, sends: bool) -> None:
        """Note a call."""
        number = self._groups.setdefault(group, len(self._groups))
        self._times.extend((start_ps, thread, peer, int(sends), number))

    def by_thread(self) -> dict[int, list[tuple[int, str, int, bool]]]:
        """Start, group, peer, and whether it is sent, of each thread's calls by start."""
        groups = list(self._groups)
        found: dict[int, list[tuple[int, str, int, bool]]] = defaultdict(list)
        rows = np.frombuffer(self._times, dtype=np.int64).reshape(-1, 5)
        for start, thread, peer, sends, group in rows[np.argsort(rows[:, 0], kind="stable")].tolist():
            found[thread].append((start, groups[group], peer, bool(sends)))
        return found
