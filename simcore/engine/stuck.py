"""A hang is an error that names who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcore.errors import DeadlockError
from simcore.graph import Graph

if TYPE_CHECKING:
    from simcore.engine.rank import Rank
    from simcore.engine.tape import Call, Completion
_SHOWN = 6  # ranks spelled out in the message


def deadlock(graph: Graph, ranks: list[Rank]) -> DeadlockError:
    """The error for a simulation that ended before its ranks did."""
    stuck = [rank for rank in ranks if rank.is_stuck]
    lines = [f"deadlock: {len(stuck)} of {len(ranks)} ranks cannot go on"]
    for rank in stuck[:_SHOWN]:
        lines += [f"  rank {rank.number}: {line}" for line in _positions(graph, rank)]
    if len(stuck) > _SHOWN:
        lines.append(f"  ... and {len(stuck) - _SHOWN} more ranks")
    return DeadlockError("\n".join(lines))


def _positions(graph: Graph, rank: Rank) -> list[str]:
    tape = rank.tape
    if len(rank.host_base) < len(tape.segments):
        sync = tape.segments[len(rank.host_base)].sync
        what = (
            f"host op {graph.ops.name[int(tape.flat.row[sync])]!r} (op {sync})"
            if sync >= 0
            else "a full launch queue"
        )
        yield_host = [f"the host waits in {what}"]
    else:
        yield_host = []
    lines = []
    for stream, items in enumerate(tape.streams):
        number = rank.done[stream]
        if number == len(items):
            continue
        item = items[number]
        flat = int(tape.order[item.first])
        where = (
            f"stream {tape.stream_names[stream]!r} at op {flat} {graph.ops.name[int(tape.flat.row[flat])]!r}"
        )
        lines.append(f"{where} {_reason(rank, item.calls, item.waits, item.segment)}")
    return yield_host + lines


def _reason(rank: Rank, calls: tuple[Call, ...], waits: tuple[Completion, ...], segment: int) -> str:
    for stream, number in waits:
        if rank.done[stream] <= number:
            return f"waits for stream {rank.tape.stream_names[stream]!r}"
    if segment >= len(rank.host_base):
        return "has not been launched"
    for call in calls:
        communicator = rank.communicators[call.group]
        meeting = communicator.open.get(communicator.meeting_key(call, rank.number))
        if meeting is not None and rank.number in meeting.arrived:
            missing = [r for r in meeting.plan.ranks if r not in meeting.arrived]
            shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            return f"waits in group {call.group!r} (call {call.sequence}) for rank(s) {shown}"
    return "waits for SMs" if calls else "cannot progress"
