"""A hang is an error that names who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcore.engine.sequence import KernelSequence
from simcore.errors import DeadlockError, InputError
from simcore.graph import Graph

if TYPE_CHECKING:
    from simcore.engine.items import Item
    from simcore.engine.rank import Rank
    from simcore.graph.ops import IntArray

_SHOWN = 6  # ranks spelled out in the message


def deadlock(graph: Graph, ranks: list[Rank], class_of: IntArray) -> DeadlockError:
    """The error for a simulation that ended early.  ``class_of``: index into ``ranks`` by rank.

    InputError where communication holds all SMs of a GPU while others wait for some: the hardware is too
    small, the program is right.
    """
    stuck = [rank for rank in range(len(class_of)) if ranks[class_of[rank]].is_stuck]
    short = max((ranks[class_of[rank]] for rank in stuck), key=lambda rank: rank.gpu.sms.waiting)
    if sms := short.gpu.sms.waiting:
        pool = short.gpu.sms
        raise InputError(
            f"gpu.num_sms={pool.num_sms} is too few: communication kernels of rank {short.number} that wait"
            f" for other ranks hold {pool.held}, those that must run meanwhile need {sms} more; at least"
            f" {pool.held + sms} are needed"
        )
    lines = [f"deadlock: {len(stuck)} of {len(class_of)} ranks cannot go on"]
    for number in stuck[:_SHOWN]:
        rank = ranks[class_of[number]]
        alike = f" (as rank {rank.number})" if rank.number != number else ""
        lines += [f"  rank {number}{alike}: {line}" for line in _positions(graph, rank, class_of)]
    if len(stuck) > _SHOWN:
        lines.append(f"  ... and {len(stuck) - _SHOWN} more ranks")
    return DeadlockError("\n".join(lines))


def _positions(graph: Graph, rank: Rank, class_of: IntArray) -> list[str]:
    tape = rank.tape
    lines = []
    if len(rank.host_base) < len(tape.segments):
        sync = tape.segments[len(rank.host_base)].sync
        name = graph.ops.name[int(tape.flat.row[sync])] if sync >= 0 else ""
        lines.append(
            f"the host waits in host op {name!r} (op {sync})" if name else "the launch queue is full"
        )
    for stream, items in enumerate(tape.streams):
        number = rank.done[stream]
        if number == len(items):
            continue
        flat = int(tape.order[tape.first_op[tape.first_item[stream] + number]])
        where = (
            f"stream {tape.stream_names[stream]!r} at op {flat} {graph.ops.name[int(tape.flat.row[flat])]!r}"
        )
        lines.append(f"{where} {_reason(rank, items[number], class_of)}")
    return lines


def _reason(rank: Rank, item: Item, class_of: IntArray) -> str:
    for stream, number in item.waits:
        if rank.done[stream] <= number:
            return f"waits for stream {rank.tape.stream_names[stream]!r}"
    if item.segment >= len(rank.host_base):
        return "has not been launched"
    if isinstance(item.work, KernelSequence):
        return "cannot progress"
    for call, sequence in zip(*item.work, strict=True):
        meeting = rank.bound(call)[0].open.get(sequence)
        if meeting is not None and rank.number in meeting.arrived:
            there = {int(class_of[r]) for r in meeting.arrived}
            group = rank.communicators.place(rank.number, call).ranks
            missing = [r for r in group if r != rank.number and int(class_of[r]) not in there]
            if not missing:  # the other end of a pair, of the same class
                missing = [r for r in group if r != rank.number]
            shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            return f"waits in group {call.group!r} (call {sequence}) for rank(s) {shown}"
    return "waits for SMs"
