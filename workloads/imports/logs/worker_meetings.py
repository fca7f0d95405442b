"""Meetings of workers that a log does not show: gaps that end on all of them when the last has come.

A log names the ops that its profiler knows; a reduction of the loss among replicas or a barrier of a pipeline
are not among them.  Who waits there for a straggler has a gap before its next op, and a replay that keeps it
keeps the straggler's cost where the straggler is gone.  So a gap is taken for waiting where the same op of a
whole group begins, step after step, on none before the last was ready for it, and on the first right then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from simcore.graph import OpKind, ProcessGroup
from workloads.imports.logs.worker_log import WorkerLog
from workloads.imports.timed_ops import RecordedCall, TimedOp, gaps_before

_SHORTEST_PS = 50_000_000_000  # shorter gaps change no answer, and clocks of workers differ
_UNEXPLAINED = 0.2  # of steps and of what is waited for, at most; the rest is the meeting's own time, or work
_PREFIX = "not logged: "

_Place = tuple[int, int]  # worker, position among its ops
_Key = tuple[str, int]  # op's name, how many of it the worker had before in the step


def with_meetings(log: WorkerLog, ranks: list[list[TimedOp]]) -> tuple[list[list[TimedOp]], int]:
    """The workers' ops with a barrier before each gap that is a wait for others, and how many there are."""
    ready = [
        [op.start_ps - gap for op, gap in zip(ops, gaps_before(ops).tolist(), strict=True)] for ops in ranks
    ]
    steps = [_by_step(ops) for ops in ranks]
    found: dict[_Place, list[tuple[str, int]]] = defaultdict(list)
    count = 0
    for group in meeting_groups(log):
        for members in group.explicit or ():
            for meetings in _of_group(members, steps).values():
                known = [meeting for meeting in meetings if _valid(meeting, ranks, ready)]
                waited = sum(_ends(m, ranks) - min(ready[w][at] for w, at in m) for m in known)
                left = sum(_ends(m, ranks) - max(ready[w][at] for w, at in m) for m in known)
                mostly = len(known) >= (1 - _UNEXPLAINED) * len(meetings)
                if not mostly or waited < _SHORTEST_PS * len(known) or left > _UNEXPLAINED * waited:
                    continue
                for meeting in known:
                    together = max(ready[worker][at] for worker, at in meeting)
                    count += 1
                    for worker, at in meeting:
                        found[worker, at].append((group.name, together))
                        ready[worker][at] = together
    return [_with_barriers(ops, worker, found) for worker, ops in enumerate(ranks)], count


def meeting_groups(log: WorkerLog) -> list[ProcessGroup]:
    """Groups that may meet unlogged: the replicas of a stage, then the stages of a replica, then all."""
    by_stage: dict[int, list[int]] = defaultdict(list)
    by_replica: dict[int, list[int]] = defaultdict(list)
    for worker, (dp, stage) in enumerate(zip(log.dp_of.tolist(), log.stage_of.tolist(), strict=True)):
        by_stage[stage].append(worker)
        by_replica[dp].append(worker)
    families = {"replicas": by_stage, "stages": by_replica, "all": {0: list(range(len(log.numbers)))}}
    return [
        ProcessGroup(
            _PREFIX + name, ((len(next(iter(sets.values()))), 1),), explicit=tuple(map(tuple, sets.values()))
        )
        for name, sets in families.items()
        if len(next(iter(sets.values()))) > 1
    ]


def _by_step(ops: Sequence[TimedOp]) -> dict[int, dict[_Key, int]]:
    """By step: positions of ops of the main stream, by name and number."""
    found: dict[int, dict[_Key, int]] = defaultdict(dict)
    seen: dict[tuple[int, str], int] = defaultdict(int)
    for at, op in enumerate(ops):
        if op.recorded and op.stream == "main":
            found[op.step][op.name, seen[op.step, op.name]] = at
            seen[op.step, op.name] += 1
    return found


def _of_group(
    members: Sequence[int], steps: list[dict[int, dict[_Key, int]]]
) -> dict[_Key, list[list[_Place]]]:
    """The op that all members have, step by step, by its name and number."""
    found: dict[_Key, list[list[_Place]]] = defaultdict(list)
    for step, own in steps[members[0]].items():
        for key in own:
            places = [(worker, steps[worker].get(step, {}).get(key, -1)) for worker in members]
            if all(at >= 0 for _, at in places):
                found[key].append(places)
    return found


def _ends(meeting: list[_Place], ranks: list[list[TimedOp]]) -> int:
    """When the first of a meeting goes on."""
    return min(ranks[worker][at].start_ps for worker, at in meeting)


def _valid(meeting: list[_Place], ranks: list[list[TimedOp]], ready: list[list[int]]) -> bool:
    """Whether nobody goes on before all are ready."""
    return max(ready[worker][at] for worker, at in meeting) <= _ends(meeting, ranks)


def _with_barriers(
    ops: list[TimedOp], worker: int, found: dict[_Place, list[tuple[str, int]]]
) -> list[TimedOp]:
    """``ops`` with a barrier before those that are ``found``, which takes over what the op waits for."""
    made: list[TimedOp] = []
    place: list[int] = []

    def barriers(at: int, op: TimedOp) -> Iterator[TimedOp]:
        for group, together in found.get((worker, at), ()):
            yield TimedOp(
                "wait for others that the log does not show", op.stream, together, together, op.step,
                waits=[place[source] for source in op.waits],
                call=RecordedCall(group, 0, OpKind.COLLECTIVE, "barrier"), recorded=False, gap_ps=0,
            )  # fmt: skip

    for at, op in enumerate(ops):
        made += barriers(at, op)
        place.append(len(made))
        made.append(replace(op, waits=[place[source] for source in op.waits]))
    return made
