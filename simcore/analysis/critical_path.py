"""The chain of work that the step time consists of, walked back from the last op to the beginning.

Read off the times alone: an op starts when the last thing that it waited for ends.  On its own GPU that is
the kernel that ended latest before the op was ready; a communication starts when the last rank arrives, so
the path goes on at that rank.  Every picosecond of the step is in exactly one part of the path.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from simcore.analysis.totals import Key, Total
from simcore.graph.groups import ProcessGroup
from simcore.graph.kinds import COMMUNICATION_KINDS, COMPUTE_KINDS, P2P_KINDS
from simcore.timeline.reader import RankRows, Timeline

_COLUMNS = (
    "op_id",
    "stage",
    "stream",
    "name",
    "kind",
    "phase",
    "group",
    "peer",
    "ready_ps",
    "start_ps",
    "end_ps",
    "alone_ps",
)

#: Time on the path in which no kernel works: SMs or copy engines are taken; the host has not launched yet.
QUEUED, LAUNCH = "queued on the GPU", "launch and host"

#: What the path waits for after its last op.
END = "end of the step"


@dataclass(frozen=True)
class CriticalPath:
    """Time on the critical path.  ``parts`` by (name, phase), longest first, add up to ``step_ps``.

    ``by_stage`` is time by stage; ``ops`` are the (rank, op_id) on the path, first to last.  ``by_op`` is
    [work, wait before it] by (name, stream) of the ops, which adds up to ``step_ps`` too.
    """

    step_ps: int
    parts: list[tuple[Key, Total]]
    by_stage: dict[int, int]
    ops: tuple[tuple[int, int], ...]
    by_op: dict[tuple[str, str], list[int]]


def critical_path(timeline: Timeline) -> CriticalPath:
    """Critical path of a run.  Keeps the times of the ranks that it visits: some 40 bytes per row."""
    return _Walk(timeline).run()


class _Rank:
    """Rows of one rank that take time on the GPU, sorted by end."""

    def __init__(self, rows: RankRows) -> None:
        kind, kinds = rows.strings("kind")
        start, end = rows.ints("start_ps"), rows.ints("end_ps")
        wanted = [code for code, name in enumerate(kinds) if name in COMPUTE_KINDS + COMMUNICATION_KINDS]
        real = np.flatnonzero(np.isin(kind, wanted) & (end > start))
        real = real[np.argsort(end[real], kind="stable")]
        self.stage = int(rows.ints("stage")[0])
        self.start, self.end, self.ready = start[real], end[real], rows.ints("ready_ps")[real]
        self.alone = rows.ints("alone_ps")[real]
        self.op_id = rows.ints("op_id")[real].astype(np.int32)
        self.peer = rows.ints("peer")[real].astype(np.int32)
        self._texts = {
            column: (codes[real], names)
            for column in ("name", "stream", "kind", "phase", "group")
            for codes, names in (rows.strings(column),)
        }

    def text(self, column: str, row: int) -> str:
        """A text column's value."""
        codes, names = self._texts[column]
        return str(names[codes[row]])

    def last_before(self, time: int) -> int:
        """The row that ends latest, not after ``time``; -1 if none."""
        return int(np.searchsorted(self.end, time, side="right")) - 1

    def same_communication(self, group: str, start: int, end: int) -> int:
        """The row of a communication with these times in ``group``; -1 if none."""
        first, last = (
            np.searchsorted(self.end, end, side="left"),
            np.searchsorted(self.end, end, side="right"),
        )
        for row in range(int(first), int(last)):
            if self.start[row] == start and self.text("group", row) == group:
                return row
        return -1


class _Walk:
    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._ranks: dict[int, _Rank] = {}
        self._groups: dict[str, ProcessGroup] = {}
        self._parts: dict[Key, Total] = defaultdict(Total)
        self._stages: dict[int, int] = defaultdict(int)
        self._ops: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])

    def run(self) -> CriticalPath:
        """Walk back from the op that ends the step."""
        step_ps = self._timeline.info.step_ps
        rank = self._last_rank()
        time = step_ps
        ops = []
        later = END, ""
        while time > 0:
            rows = self._rank(rank)
            row = rows.last_before(time)
            if row < 0:
                self._add((LAUNCH, ""), rows.stage, time)
                self._ops[later][1] += time
                break
            start, end = int(rows.start[row]), int(rows.end[row])
            self._add((LAUNCH, ""), rows.stage, time - end)
            self._ops[later][1] += time - end
            later = rows.text("name", row), rows.text("stream", row)
            self._ops[later][0] += end - start
            self._add(
                (rows.text("name", row), rows.text("phase", row)),
                rows.stage,
                end - start,
                int(rows.alone[row]),
            )
            rank, row = self._last_to_arrive(rank, row)
            ops.append((rank, int(self._rank(rank).op_id[row])))
            time = int(self._rank(rank).ready[row])
            self._add((QUEUED, ""), self._rank(rank).stage, start - time)
            self._ops[later][1] += start - time
        parts = sorted(self._parts.items(), key=lambda item: (-item[1].time_ps, item[0]))
        return CriticalPath(
            step_ps, parts, dict(sorted(self._stages.items())), tuple(reversed(ops)), dict(self._ops)
        )

    def _rank(self, rank: int) -> _Rank:
        if rank not in self._ranks:
            self._ranks[rank] = _Rank(self._timeline.rank_rows(rank, _COLUMNS))
        return self._ranks[rank]

    def _last_rank(self) -> int:
        """The lowest rank on which the step ends."""
        ends = [
            (-int(rows.ints("end_ps").max()), rows.rank)
            for rows in self._timeline.representatives(("end_ps",))
            if rows.table.num_rows
        ]
        return min(ends)[1]

    def _last_to_arrive(self, rank: int, row: int) -> tuple[int, int]:
        """Where the path goes on: the member of a communication that was ready last, itself if it was."""
        rows = self._rank(rank)
        kind, group = rows.text("kind", row), rows.text("group", row)
        if kind not in COMMUNICATION_KINDS:
            return rank, row
        if kind not in P2P_KINDS and group not in self._groups:
            self._groups[group] = self._timeline.info.group(group)
        members = (int(rows.peer[row]),) if kind in P2P_KINDS else self._groups[group].ranks_of(rank)
        found = rank, row
        for member in members:
            other = self._timeline.representative(member)
            at = self._rank(other).same_communication(group, int(rows.start[row]), int(rows.end[row]))
            if at >= 0 and self._rank(other).ready[at] > self._rank(found[0]).ready[found[1]]:
                found = other, at
        return found

    def _add(self, key: Key, stage: int, time: int, alone: int = 0) -> None:
        if time > 0:
            total = self._parts[key]
            total.count += 1
            total.time_ps += time
            total.alone_ps += alone
            self._stages[stage] += time
