"""Arrows from sends to their recvs as trace events (JSON text)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np
import numpy.typing as npt

from simcore.records import dataclass
from simcore.report.event_text import Events, IntArray, integers, microseconds, numbered
from simcore.timeline.reader import RankRows

_NAMED = '"name":"send_recv","cat":"send_recv"'
_LEAVES, _ARRIVES = f'"ph":"s",{_NAMED}', f'"ph":"f","bp":"e",{_NAMED}'


@dataclass
class Arrows:
    """Ends of arrows: in a group, the n-th send from a to b meets the n-th recv of b from a."""

    _groups: dict[str, int] = field(default_factory=dict)
    _ends: list[IntArray] = field(default_factory=list)  # rows as named in events()

    def add(
        self, rows: RankRows, which: IntArray, pid: int, tid: IntArray, start_ns: IntArray, end_ns: IntArray
    ) -> None:
        """Note the ends in the rows ``which`` of a rank, in issue order; ``tid`` and times are of all rows.

        Arrows leave at the start of a send and arrive just before the end of its recv.
        """
        kind, kinds = rows.strings("kind")
        group, groups = rows.strings("group")
        numbers = np.array([self._groups.setdefault(name, len(self._groups)) for name in groups])
        leaves = kind[which] == kinds.index("send") if "send" in kinds else np.zeros(len(which), np.bool_)
        peer, mine = rows.ints("peer")[which], np.full(len(which), pid, dtype=np.int64)
        source, sink = np.where(leaves, mine, peer), np.where(leaves, peer, mine)
        time_ns = np.where(leaves, start_ns[which], np.maximum(end_ns[which] - 1, start_ns[which]))
        self._ends.append(np.stack([leaves, numbers[group[which]], source, sink, mine, tid[which], time_ns]))

    def events(self) -> Iterator[Events]:
        """Start and finish of every arrow that has both."""
        if not self._ends:
            return
        leaves, group, source, sink, pid, tid, time_ns = np.concatenate(self._ends, axis=1)
        way = group
        for column in (source, sink):
            number, first = numbered(column)
            way, _ = numbered(way * len(first) + number)
        nth = _occurrence(2 * way + leaves)
        meeting = way * (int(nth.max(initial=0)) + 1) + nth
        sends, recvs = np.flatnonzero(leaves), np.flatnonzero(leaves == 0)
        _, start, finish = np.intersect1d(
            meeting[sends], meeting[recvs], assume_unique=True, return_indices=True
        )
        ends = np.stack([sends[start], recvs[finish]], axis=1).ravel()
        lane, first = numbered(2 * tid[ends] + leaves[ends])  # no two processes have a tid in common
        heads = [
            f'{{{_LEAVES if leaves[end] else _ARRIVES},"pid":{pid[end]},"tid":{tid[end]}'
            for end in ends[first].tolist()
        ]
        number = np.repeat(np.arange(len(start)), 2)
        yield from Events.alike(
            heads, lane, ',"id":', integers(number), ',"ts":', microseconds(time_ns[ends]), "}"
        )


def _occurrence(keys: npt.NDArray[np.int64]) -> IntArray:
    """How many equal keys come before each."""
    order = np.argsort(keys, kind="stable")
    opens = np.append(True, keys[order][1:] != keys[order][:-1])[: len(keys)]
    begins = np.maximum.accumulate(np.where(opens, np.arange(len(keys)), 0))
    found = np.empty(len(keys), dtype=np.int64)
    found[order] = np.arange(len(keys)) - begins
    return found
