"""When each op of a recorded graph ends, for many sets of durations at once: longest paths instead of events.

A graph whose ops last what they are told, whatever runs beside them, needs no engine: an op starts with the
last end of what it waits for, those who meet go on from the last arrival.  The engine's replay of the same
graph gives the same times (a test).  Launch calls and the launch queue are not looked at.
"""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np

from simcore.errors import GraphError
from simcore.graph import Graph, OpKind
from simcore.graph.kinds import COMMUNICATION
from simcore.graph.ops import IntArray


class LongestPaths:
    """A recorded graph whose programs play one template of their own each, as imports do.

    Errors: GraphError when the members of a call are not all there.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._before, self._after = _order(graph)
        self._meetings, self._meeting_of = _meetings(graph)

    def end_times(self, durations_ps: IntArray) -> IntArray:
        """Ends in ps, of shape ``(scenarios, op rows)`` like ``durations_ps``.

        A communication op's duration counts from the last arrival of those it meets.
        Errors: GraphError when ops wait for each other in a circle.
        """
        scenarios, size = durations_ps.shape
        missing = [len(rows) for rows in self._meetings]
        open_before = [len(rows) for rows in self._before]
        durations = np.ascontiguousarray(durations_ps.T)
        ends = np.zeros((size, scenarios), dtype=np.int64)
        ready = deque(row for row in range(size) if not open_before[row])
        done = 0
        while ready:
            row = ready.popleft()
            arrival = ends[row]  # until it ends, when it could start
            for source in self._before[row]:
                np.maximum(arrival, ends[source], out=arrival)
            number = self._meeting_of[row]
            finished = [row]
            if number >= 0:
                missing[number] -= 1
                if missing[number]:
                    continue
                finished = self._meetings[number]
                ends[finished] = np.max(ends[finished], axis=0) + durations[finished]
            else:
                arrival += durations[row]
            done += len(finished)
            for source in finished:
                for target in self._after[source]:
                    open_before[target] -= 1
                    if not open_before[target]:
                        ready.append(target)
        if done < size:
            row = next(
                row
                for row in range(size)
                if open_before[row] or (self._meeting_of[row] >= 0 and missing[self._meeting_of[row]])
            )
            name = self._graph.ops.name[row]
            raise GraphError(f"op {name!r} (row {row}) can never run: its sources never end")
        return np.ascontiguousarray(ends.T)


def _order(graph: Graph) -> tuple[list[list[int]], list[list[int]]]:
    """By row: what it waits for, and what waits for it (streams and waits)."""
    before: list[list[int]] = [[] for _ in range(len(graph.ops))]
    streams = graph.ops.stream.codes
    for template in range(graph.num_templates):
        last: dict[int, int] = {}
        for row in graph.template_rows(template):
            stream = int(streams[row])
            if stream in last:
                before[row].append(last[stream])
            last[stream] = row
    for target, source in zip(graph.edges.dst.tolist(), graph.edges.src.tolist(), strict=True):
        before[target].append(source)
    after: list[list[int]] = [[] for _ in before]
    for row, sources in enumerate(before):
        for source in sources:
            after[source].append(row)
    return before, after


def _meetings(graph: Graph) -> tuple[list[list[int]], list[int]]:
    """Rows that meet, and by row the number of its meeting (-1: none).

    The n-th call of a group's member meets the n-th of the others, the n-th send of a pair its n-th receive.
    """
    meeting_of = [-1] * len(graph.ops)
    calls: dict[tuple[object, ...], int] = defaultdict(int)
    meetings: dict[tuple[object, ...], list[int]] = {}
    for program in graph.programs:
        (rank,) = program.rank_list()
        for row in graph.template_rows(int(program.template[0])):
            kind = OpKind(int(graph.ops.kind[row]))
            if kind not in COMMUNICATION:
                continue
            group = graph.groups[graph.ops.group[row]]
            members = group.ranks_of(rank)
            if kind is OpKind.COLLECTIVE:
                place: tuple[object, ...] = (group.name, members)
            else:
                peer = members[(group.index_of(rank) + int(graph.ops.peer_delta[row])) % len(members)]
                place = (group.name, *((rank, peer) if kind is OpKind.SEND else (peer, rank)))
            key = (*place, calls[rank, kind, place])
            calls[rank, kind, place] += 1
            meetings.setdefault(key, []).append(row)
    found = list(meetings.values())
    for number, rows in enumerate(found):
        for row in rows:
            meeting_of[row] = number
    for rows in found:
        name = graph.ops.group[rows[0]]
        size = graph.groups[name].size if graph.ops.kind[rows[0]] == OpKind.COLLECTIVE else 2
        if len(rows) != size:
            op = graph.ops.name[rows[0]]
            raise GraphError(f"op {op!r} of group {name!r}: {len(rows)} of {size} ranks meet")
    return found, meeting_of
