"""Schedules as data: who sends which bytes to whom in which step, and the patterns that collectives share.

A schedule is a stream of :class:`Transfer` values.  Nothing here knows hardware; tests play schedules to
prove that every rank ends with the right data, and the volumes that plans are built from follow by summing.
Ranks are indices within the group; ``order`` places them on a ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from simcore.records import dataclass


@dataclass(frozen=True)
class Transfer:
    """One message: ``num_bytes`` at ``offset`` of the collective's buffer, from ``src`` to ``dst``.

    ``step`` orders messages within a channel: one of step ``s`` may need what arrived before ``s``.
    ``reduce`` says that the receiver adds the bytes to its own instead of storing them.
    """

    step: int
    channel: int
    src: int
    dst: int
    chunk: int
    offset: int
    num_bytes: int
    reduce: bool


Schedule = Iterator[Transfer]
#: (num_ranks, num_bytes, channels, chunks per channel) -> schedule
Generator = Callable[[int, int, int, int], Schedule]


def split(num_bytes: int, parts: int) -> list[tuple[int, int]]:
    """(offset, size) of ``parts`` contiguous pieces of ``num_bytes``; sizes differ by at most one byte."""
    bounds = [num_bytes * k // parts for k in range(parts + 1)]
    return [(low, high - low) for low, high in pairwise(bounds)]


def channel_chunks(num_bytes: int, channels: int, chunks: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Each channel with the (offset, size) of its chunks."""
    for channel, (offset, size) in enumerate(split(num_bytes, channels)):
        yield channel, [(offset + low, length) for low, length in split(size, chunks)]


def ring(
    num_ranks: int, num_bytes: int, channels: int, num_steps: int, reduce_steps: int, shift: int
) -> Schedule:
    """Rank r sends chunk (r - shift - step) to rank r + 1 in every step; early steps reduce."""
    for channel, chunks in channel_chunks(num_bytes, channels, num_ranks):
        for step in range(num_steps):
            for rank in range(num_ranks):
                chunk = (rank - shift - step) % num_ranks
                offset, size = chunks[chunk]
                yield Transfer(
                    step, channel, rank, (rank + 1) % num_ranks, chunk, offset, size, step < reduce_steps
                )


def chain(num_ranks: int, num_bytes: int, channels: int, chunks: int, to_root: bool) -> Schedule:
    """Chunks follow each other down a chain that starts (broadcast) or ends (reduce) at rank 0."""
    for channel, pieces in channel_chunks(num_bytes, channels, chunks):
        for step in range(num_ranks - 1 + chunks - 1):
            for hop in range(max(0, step - chunks + 1), min(step, num_ranks - 2) + 1):
                chunk = step - hop
                offset, size = pieces[chunk]
                src = (hop + 1) % num_ranks if to_root else hop
                yield Transfer(step, channel, src, (src + 1) % num_ranks, chunk, offset, size, to_root)


def owners_and_peers(slices: list[tuple[int, int]]) -> Iterator[tuple[int, int, int, int]]:
    """(owner, other rank, offset, size): every slice of a buffer with every rank that does not own it."""
    for owner, (offset, size) in enumerate(slices):
        for peer in range(len(slices)):
            if peer != owner:
                yield owner, peer, offset, size


def aggregated_hops(num_ranks: int) -> list[tuple[int, tuple[int, ...]]]:
    """PAT: (distance, how far a chunk has come) of every hop, farthest first.

    The chunk of rank c travels a binomial tree: whoever is ``o`` ranks after c received it over the lowest
    set bit of ``o``.  Trees of all ranks run at once, and what goes the same way is one message (Jeaugey,
    "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", 2025).
    """
    hops = []
    for level in reversed(range((num_ranks - 1).bit_length())):
        distance = 1 << level
        hops.append((distance, tuple(range(0, num_ranks - distance, 2 * distance))))
    return hops
