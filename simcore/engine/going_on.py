"""How a rank goes on otherwise in the middle of its tape.

Note [Going on]
    A rank may be told in the middle of its tape that it goes on otherwise (:func:`follow`): by another
    tape that is the same up to where it is.  What streams and the host wait for behind that is forgotten,
    and looked up anew.  Launches: the host never waits for its own, so that when what it waits for was
    over does not depend on what it launches, and when it launches follows from both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcore.engine.rank import UNSET

if TYPE_CHECKING:
    from simcore.engine.rank import Rank
    from simcore.engine.tape import Tape


def may_follow(rank: Rank, tape: Tape, alike: Sequence[int]) -> bool:
    """Whether the rank is where it would be if it had played ``tape`` so far, which is the same in the
    first items of each stream, ``alike`` of them.
    """
    if any(done > items for done, items in zip(rank.done, alike, strict=True)):
        return False
    begun = _begun_alike(rank, tape)
    if begun < len(tape.segments) and _is_awaited(rank, tape, begun):
        return False  # nobody noted since when
    for stream, items in enumerate(tape.streams):
        here = rank.done[stream]
        if here < alike[stream] or here == rank.stops[stream] < len(rank.tape.streams[stream]):
            continue  # it is not there yet, or asks
        if _can_begin(rank, rank.tape, stream, len(rank.host_base)):
            return False
        if here < len(items) and (
            here == len(rank.tape.streams[stream]) or _can_begin(rank, tape, stream, begun)
        ):
            return False
    return True


def follow(rank: Rank, tape: Tape, alike: Sequence[int]) -> None:
    """Go on as ``tape`` does."""
    begun = _begun_alike(rank, tape)
    was_over = len(rank.host_base) == len(rank.tape.segments)
    rank.tape = tape
    for columns, items in zip(rank.records, tape.streams, strict=True):
        for column in columns:
            column.extend(UNSET * (len(items) - len(column)))
            del column[len(items) :]
    rank.stops = [len(items) for items in tape.streams]
    awaited = rank.awaited[:begun]
    rank.host_base.clear()
    rank.awaited.clear()
    for time_ps in awaited:
        base_ps = max(rank.host_free_ps(), time_ps)
        rank.awaited.append(time_ps)
        rank.host_base.append(base_ps)
    if was_over and begun < len(tape.segments):
        rank._clock.start(rank._host())
    behind = [key for key in rank._waiters if key[1] >= alike[key[0]]]
    woken = [rank._waiters.pop(key) for key in behind]
    woken += rank._host_waiters.values()
    rank._host_waiters.clear()
    for waiters in woken:
        for wake in waiters:
            wake(None)


def _begun_alike(rank: Rank, tape: Tape) -> int:
    """How many segments that the host has begun wait for the same in ``tape``."""
    pairs = zip(rank.tape.segments[: len(rank.host_base)], tape.segments, strict=False)
    alike = [one.waits == other.waits for one, other in pairs]
    return alike.index(False) if False in alike else len(alike)


def _is_awaited(rank: Rank, tape: Tape, segment: int) -> bool:
    return all(rank.done[stream] > item for stream, item in tape.segments[segment].waits)


def _can_begin(rank: Rank, tape: Tape, stream: int, begun: int) -> bool:
    """Whether the next item of a stream has been launched and waits for nothing else."""
    items, here = tape.streams[stream], rank.done[stream]
    if here == len(items):
        return False
    segment, _, waits, *_ = items[here]
    return segment < begun and all(rank.done[other] > item for other, item in waits)
