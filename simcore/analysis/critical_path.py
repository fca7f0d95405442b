"""The chain of work that the step time consists of, walked back from the last op to the beginning.

Read off the times alone: an op starts when the last thing that it waited for ends.  On its own GPU that is
the kernel that ended latest before the op was ready; a communication starts when the last rank arrives, so
the path goes on at that rank.  Every picosecond of the step is in exactly one part of the path.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from simcore.analysis.intervals import IntArray
from simcore.analysis.totals import Key, Total
from simcore.distinct import distinct
from simcore.graph.kinds import COMMUNICATION_KINDS, COMPUTE_KINDS, P2P_KINDS
from simcore.records import dataclass
from simcore.timeline.reader import RankRows, Timeline
from simcore.units import format_time

#: What the path is found by, and what is asked of the ops on it.
_COLUMNS = ("stage", "kind", "group", "peer", "ready_ps", "start_ps", "end_ps")
_OF_PATH = ("op_id", "name", "stream", "phase", "ready_ps", "start_ps", "end_ps", "alone_ps")

#: Texts as codes, and what they stand for.
_Texts = tuple[npt.NDArray[np.signedinteger], list[str]]
#: Texts that 16 bits can tell apart.
_FEW = 1 << 15

#: Time on the path in which no kernel works: SMs or copy engines are taken; the host has not launched yet.
QUEUED, LAUNCH = "queued on the GPU", "launch and host"

#: Parts that it shows of itself.
_SHOWN = 12
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

    def __repr__(self) -> str:
        shown = [
            f"  {format_time(total.time_ps):>9}  {total.time_ps / max(1, self.step_ps):6.1%}  {' '.join(key)}"
            for key, total in self.parts[:_SHOWN]
        ]
        more = [f"  and {len(self.parts) - _SHOWN} more (parts)"] if len(self.parts) > _SHOWN else []
        head = f"critical path of {format_time(self.step_ps)}: {len(self.ops):,} ops"
        return "\n".join([head, *shown, *more])


def critical_path(timeline: Timeline) -> CriticalPath:
    """Critical path of a run.  Keeps of the ranks that it visits 8 bytes a row, and 36 of those that
    communicate.
    """
    return _Walk(timeline).run()


def _texts(rows: RankRows, column: str, at: npt.NDArray[np.signedinteger]) -> _Texts:
    codes, names = rows.strings(column)
    return codes[at].astype(np.int16 if len(names) < _FEW else np.int32), names


class _Rank:
    """Rows of one rank that take time on the GPU, sorted by end, and more of those that communicate.

    Kept for every rank that the path visits: columns are few, and as narrow as they may be.  What is asked
    for one by one is asked of views, which give Python's numbers in half of the time.
    """

    def __init__(self, rows: RankRows) -> None:
        start, end, ready = (rows.ints(column) for column in ("start_ps", "end_ps", "ready_ps"))
        real = np.flatnonzero(rows.are("kind", COMPUTE_KINDS + COMMUNICATION_KINDS) & (end > start))
        real = real[np.argsort(end[real], kind="stable")]
        self.stage = int(rows.ints("stage")[0])
        self.real = real.astype(np.int32)
        before = (np.searchsorted(end[real], ready[real], side="right") - 1).astype(np.int32)
        before[ready[real] <= 0] = -1
        #: The row that ends latest, not after one is ready; -1 if none, or if that is the step's begin.
        self.before = before.data
        communicates = np.flatnonzero(rows.are("kind", COMMUNICATION_KINDS)[real])
        at = real[communicates]
        #: Of each communication its row, when it starts, ends and is ready, and with whom it is, if with one.
        self.row, self.peer = communicates.astype(np.int32).data, rows.ints("peer")[at].astype(np.int32).data
        self.start, self.end, self.ready = start[at].data, end[at].data, ready[at].data
        self._texts = {
            name: (codes.data, names)
            for name, (codes, names) in ((name, _texts(rows, name, at)) for name in ("kind", "group"))
        }

    def communication(self, row: int) -> int:
        """The how-manieth communication a row is; -1 if none."""
        number = bisect_left(self.row, row)
        return number if number < len(self.row) and self.row[number] == row else -1

    def text(self, column: str, number: int) -> str:
        """A text column's value for a communication."""
        codes, names = self._texts[column]
        return names[codes[number]]

    def same_communication(self, group: str, start: int, end: int) -> int:
        """The first communication with these times in ``group``; -1 if none."""
        ends = self.end
        for number in range(bisect_left(ends, end), len(ends)):
            if ends[number] != end:
                break
            if self.start[number] == start and self.text("group", number) == group:
                return number
        return -1


class _Walk:
    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._ranks: dict[int, _Rank] = {}
        self._members: dict[tuple[int, str], tuple[int, ...]] = {}

    def run(self) -> CriticalPath:
        """Walk back from the op that ends the step."""
        step_ps = self._timeline.info.step_ps
        rank = self._last_rank()
        rows = self._rank(rank)
        ends = self._timeline.rank_rows(rank, ("end_ps",)).ints("end_ps")[rows.real]
        row = int(np.searchsorted(ends, step_ps, side="right")) - 1
        # Of each op on the path its rank and row, and those of the member with which the path goes on.
        path: list[tuple[int, int, int, int]] = []
        while row >= 0:
            at, waited = rank, row
            number = rows.communication(row)
            if number >= 0:
                rank, row = self._last_to_arrive(rank, row, number)
                rows = self._rank(rank)
            path.append((at, waited, rank, row))
            row = rows.before[row]
        return self._summed(step_ps, path, rank)

    def _summed(self, step_ps: int, path: list[tuple[int, int, int, int]], last: int) -> CriticalPath:
        """What ops on the path add up to: work, and what they waited, ready and before they were."""
        count = len(path)
        ranks, row, arrived, its_row = (
            (np.array(column, dtype=np.int64) for column in zip(*path, strict=True))
            if path
            else [np.zeros(0, dtype=np.int64)] * 4
        )
        start, end, alone, ready, op_id = (np.zeros(count, dtype=np.int64) for _ in range(5))
        texts: dict[int, dict[str, _Texts]] = {}
        for rank in distinct(np.concatenate([ranks, arrived])).tolist():
            here, there, rows = ranks == rank, arrived == rank, self._rank(rank)
            table = self._timeline.rank_rows(rank, _OF_PATH)
            at = rows.real[row[here]]
            start[here], end[here] = table.ints("start_ps")[at], table.ints("end_ps")[at]
            alone[here] = table.ints("alone_ps")[at]
            texts[rank] = {column: _texts(table, column, at) for column in ("name", "stream", "phase")}
            at = rows.real[its_row[there]]
            ready[there], op_id[there] = table.ints("ready_ps")[at], table.ints("op_id")[at]
        # Behind each op, on the rank that the path comes from: nothing was ready.
        later = np.concatenate([[step_ps], ready[:-1]]) if count else np.zeros(0, dtype=np.int64)
        launch, queued = later - end, start - ready
        first = int(ready[-1]) if count else step_ps
        parts: dict[Key, Total] = defaultdict(Total)
        stages: dict[int, int] = defaultdict(int)
        by_op: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])

        def add(key: Key, stage: int, times: IntArray, alone_ps: int = 0) -> None:
            some = times[times > 0]
            if len(some):
                parts[key].count += len(some)
                parts[key].time_ps += int(some.sum())
                parts[key].alone_ps += alone_ps
                stages[stage] += int(some.sum())

        for rank, of_rank in texts.items():
            here, stage = np.flatnonzero(ranks == rank), self._rank(rank).stage
            add((QUEUED, ""), stage, queued[arrived == rank])
            add((LAUNCH, ""), stage, launch[here])
            for (name, phase), chosen in _alike(of_rank, ("name", "phase")):
                of = here[chosen]
                add((name, phase), stage, end[of] - start[of], int(alone[of].sum()))
            # Before an op: what it waited, ready and before; the first waits for the host.
            wait = queued[here] + np.append(launch[1:], first)[here]
            for (name, stream), chosen in _alike(of_rank, ("name", "stream")):
                by_op[name, stream][0] += int((end[here] - start[here])[chosen].sum())
                by_op[name, stream][1] += int(wait[chosen].sum())
        add((LAUNCH, ""), self._rank(last).stage, np.array([first], dtype=np.int64))
        by_op[END, ""][1] += int(launch[0]) if count else step_ps
        if by_op[END, ""] == [0, 0]:
            del by_op[END, ""]
        ordered = sorted(parts.items(), key=lambda item: (-item[1].time_ps, item[0]))
        ops = tuple(zip(arrived[::-1].tolist(), op_id[::-1].tolist(), strict=True))
        return CriticalPath(step_ps, ordered, dict(sorted(stages.items())), ops, dict(by_op))

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

    def _last_to_arrive(self, rank: int, row: int, number: int) -> tuple[int, int]:
        """Where the path goes on: the member of a communication that was ready last, itself if it was."""
        rows = self._rank(rank)
        group = rows.text("group", number)
        if rows.text("kind", number) in P2P_KINDS:
            members: tuple[int, ...] = (self._timeline.representative(rows.peer[number]),)
        else:
            members = self._others(rank, group)
        start, end = rows.start[number], rows.end[number]
        found, latest = (rank, row), rows.ready[number]
        for other in members:
            of = self._rank(other)
            at = of.same_communication(group, start, end)
            if at >= 0 and of.ready[at] > latest:
                found, latest = (other, of.row[at]), of.ready[at]
        return found

    def _others(self, rank: int, group: str) -> tuple[int, ...]:
        """Those who stand for the members of a rank's group."""
        if (rank, group) not in self._members:
            members = self._timeline.info.group(group).ranks_of(rank)
            stand = (self._timeline.representative(member) for member in members)
            self._members[rank, group] = tuple(dict.fromkeys(stand))
        return self._members[rank, group]


def _alike(
    texts: dict[str, _Texts], columns: tuple[str, str]
) -> Iterator[tuple[tuple[str, str], npt.NDArray[np.bool_]]]:
    """Values of two text columns with the places that have them."""
    (one, names), (other, values) = (texts[column] for column in columns)
    key = one.astype(np.int64) * len(values) + other
    for code in distinct(key).tolist():
        yield (str(names[code // len(values)]), str(values[code % len(values)])), key == code
