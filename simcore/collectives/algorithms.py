"""Collective algorithms as data: who sends which bytes to whom in which step.

A schedule is a stream of :class:`Transfer` values.  Nothing here knows hardware; tests play schedules to
prove that every rank ends with the right data, and the volumes that plans are built from follow by summing.
Ranks are indices within the group; ``order`` places them on a ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from simcore.collectives.tree import Tree, double_binary_tree
from simcore.errors import InputError, nearest


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


def _channel_chunks(
    num_bytes: int, channels: int, chunks: int
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    for channel, (offset, size) in enumerate(split(num_bytes, channels)):
        yield channel, [(offset + low, length) for low, length in split(size, chunks)]


def _ring(
    num_ranks: int, num_bytes: int, channels: int, num_steps: int, reduce_steps: int, shift: int
) -> Schedule:
    """Rank r sends chunk (r - shift - step) to rank r + 1 in every step; early steps reduce."""
    for channel, chunks in _channel_chunks(num_bytes, channels, num_ranks):
        for step in range(num_steps):
            for rank in range(num_ranks):
                chunk = (rank - shift - step) % num_ranks
                offset, size = chunks[chunk]
                yield Transfer(
                    step, channel, rank, (rank + 1) % num_ranks, chunk, offset, size, step < reduce_steps
                )


def ring_all_reduce(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """Reduces for n - 1 steps, gathers for n - 1; each rank sends 2 (n - 1) / n of the bytes."""
    del chunks  # one per rank
    return _ring(num_ranks, num_bytes, channels, 2 * (num_ranks - 1), num_ranks - 1, 0)


def ring_reduce_scatter(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """Takes n - 1 steps; rank r ends with chunk r reduced.  ``num_bytes`` is the whole input."""
    del chunks
    return _ring(num_ranks, num_bytes, channels, num_ranks - 1, num_ranks - 1, 1)


def ring_all_gather(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """Takes n - 1 steps; rank r starts with chunk r.  ``num_bytes`` is the whole output."""
    del chunks
    return _ring(num_ranks, num_bytes, channels, num_ranks - 1, 0, 0)


def _chain(num_ranks: int, num_bytes: int, channels: int, chunks: int, to_root: bool) -> Schedule:
    """Chunks follow each other down a chain that starts (broadcast) or ends (reduce) at rank 0."""
    for channel, pieces in _channel_chunks(num_bytes, channels, chunks):
        for step in range(num_ranks - 1 + chunks - 1):
            for hop in range(max(0, step - chunks + 1), min(step, num_ranks - 2) + 1):
                chunk = step - hop
                offset, size = pieces[chunk]
                src = (hop + 1) % num_ranks if to_root else hop
                yield Transfer(step, channel, src, (src + 1) % num_ranks, chunk, offset, size, to_root)


def ring_broadcast(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """Rank 0's bytes travel 0, 1, ..., n - 1, pipelined by chunk."""
    return _chain(num_ranks, num_bytes, channels, chunks, to_root=False)


def ring_reduce(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """Partial sums travel 1, 2, ..., n - 1, 0, pipelined by chunk."""
    return _chain(num_ranks, num_bytes, channels, chunks, to_root=True)


def _tree_channel(tree: Tree, channel: int, pieces: Sequence[tuple[int, int]]) -> Schedule:
    """Up with sums, down with results; chunk k starts k steps later, as soon as the leaves are free."""
    depth = tree.depth
    level, parent = tree.level, tree.parent
    for chunk, (offset, size) in enumerate(pieces):
        for member in sorted(range(len(parent)), key=lambda m: -level[m]):
            if parent[member] >= 0:
                step = depth - level[member] + chunk
                yield Transfer(step, channel, member, parent[member], chunk, offset, size, True)
        for member in sorted(range(len(parent)), key=lambda m: level[m]):
            if parent[member] >= 0:
                step = depth + level[member] - 1 + chunk
                yield Transfer(step, channel, parent[member], member, chunk, offset, size, False)


def tree_all_reduce(num_ranks: int, num_bytes: int, channels: int = 2, chunks: int = 1) -> Schedule:
    """Double binary tree: even channels use the first tree, odd channels the second."""
    trees = double_binary_tree(num_ranks)
    for channel, pieces in _channel_chunks(num_bytes, channels, chunks):
        yield from _tree_channel(trees[channel % 2], channel, pieces)


def pairwise_all_to_all(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """Step s: rank r sends to rank r + s the piece that is meant for it.  ``num_bytes`` is one rank's input.

    ``chunk`` is the destination, ``offset`` the place in the sender's input.
    """
    del chunks
    pieces = split(num_bytes, num_ranks)
    for step in range(1, num_ranks):
        for src in range(num_ranks):
            dst = (src + step) % num_ranks
            offset, size = pieces[dst]
            for channel, (low, length) in enumerate(split(size, channels)):
                yield Transfer(step - 1, channel, src, dst, dst, offset + low, length, False)


def hierarchical_all_to_all(
    num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1, ranks_per_node: int = 0
) -> Schedule:
    """Each rank to its neighbours on the node, for their rails; then along the rails.

    ``num_bytes`` is one rank's input, ``ranks_per_node`` 0 all of them.  ``chunk`` is ``origin * n +
    destination``, ``offset`` the place in the origin's input.
    """
    del chunks
    local = ranks_per_node or num_ranks
    pieces = split(num_bytes, num_ranks)
    nodes = num_ranks // local

    def sent(step: int, src: int, dst: int, origin: int, to: int) -> Schedule:
        offset, size = pieces[to]
        for channel, (low, length) in enumerate(split(size, channels)):
            yield Transfer(step, channel, src, dst, origin * num_ranks + to, offset + low, length, False)

    for step in range(1, local):
        for src in range(num_ranks):
            dst = src - src % local + (src + step) % local
            for node in range(nodes):
                yield from sent(step - 1, src, dst, src, node * local + dst % local)
    for step in range(1, nodes):
        for src in range(num_ranks):
            dst = (src + step * local) % num_ranks
            for neighbour in range(local):
                yield from sent(local + step - 2, src, dst, src - src % local + neighbour, dst)


def switch_all_reduce(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """NVLS: rank r fetches slice r already added up, then stores it to all; adding and copying in the switch.

    A transfer to the owner stands for the switch's read of one member, one from the owner for a multicast
    copy.  Every port carries the buffer once and its own slice once more, each way; the schedule leaves out
    what a rank exchanges with itself.
    """
    del chunks
    for channel, slices in _channel_chunks(num_bytes, channels, num_ranks):
        for owner, (offset, size) in enumerate(slices):
            for peer in range(num_ranks):
                if peer != owner:
                    yield Transfer(0, channel, peer, owner, owner, offset, size, True)
        for owner, (offset, size) in enumerate(slices):
            for peer in range(num_ranks):
                if peer != owner:
                    yield Transfer(1, channel, owner, peer, owner, offset, size, False)


def switch_all_gather(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """NVLS: rank r stores chunk r once and the switch copies it to all.  ``num_bytes``: the whole output."""
    del chunks
    for channel, slices in _channel_chunks(num_bytes, channels, num_ranks):
        for owner, (offset, size) in enumerate(slices):
            for peer in range(num_ranks):
                if peer != owner:
                    yield Transfer(0, channel, owner, peer, owner, offset, size, False)


def switch_reduce_scatter(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """NVLS: rank r fetches chunk r, added up on the way.  ``num_bytes``: the whole input."""
    del chunks
    for channel, slices in _channel_chunks(num_bytes, channels, num_ranks):
        for owner, (offset, size) in enumerate(slices):
            for peer in range(num_ranks):
                if peer != owner:
                    yield Transfer(0, channel, peer, owner, owner, offset, size, True)


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


def pat_all_gather(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """Takes ceil(log2 n) steps, the farthest hops first, while chunks are few."""
    del chunks
    for channel, slices in _channel_chunks(num_bytes, channels, num_ranks):
        for step, (distance, come) in enumerate(aggregated_hops(num_ranks)):
            for owner, (offset, size) in enumerate(slices):
                for so_far in come:
                    src = (owner + so_far) % num_ranks
                    dst = (src + distance) % num_ranks
                    yield Transfer(step, channel, src, dst, owner, offset, size, False)


def pat_reduce_scatter(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """The all_gather backwards: sums travel towards their owner, the nearest hops first."""
    del chunks
    for channel, slices in _channel_chunks(num_bytes, channels, num_ranks):
        for step, (distance, come) in enumerate(reversed(aggregated_hops(num_ranks))):
            for owner, (offset, size) in enumerate(slices):
                for so_far in come:
                    dst = (owner + so_far) % num_ranks
                    src = (dst + distance) % num_ranks
                    yield Transfer(step, channel, src, dst, owner, offset, size, True)


_ALL_REDUCE: Final[dict[str, Generator]] = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "nvls": switch_all_reduce,
    # Over nodes each slice continues on a double binary tree of its rail.
    "nvls_tree": tree_all_reduce,
}
#: collective -> algorithm -> schedule.  A barrier is an all_reduce of one word (torch.distributed).
SCHEDULES: Final[dict[str, dict[str, Generator]]] = {
    "all_reduce": _ALL_REDUCE,
    "all_gather": {"ring": ring_all_gather, "nvls": switch_all_gather, "pat": pat_all_gather},
    "reduce_scatter": {
        "ring": ring_reduce_scatter,
        "nvls": switch_reduce_scatter,
        "pat": pat_reduce_scatter,
    },
    "broadcast": {"ring": ring_broadcast},
    "reduce": {"ring": ring_reduce},
    "all_to_all": {"pairwise": pairwise_all_to_all, "hierarchical": hierarchical_all_to_all},
    "barrier": _ALL_REDUCE,
}
COLLECTIVES: Final = tuple(SCHEDULES)
#: Algorithms that NCCL_ALGO may force, and one for all_to_all that NCCL itself does not have.
ALGORITHMS: Final = ("ring", "tree", "nvls", "nvls_tree", "pat", "hierarchical")


def algorithms_of(collective: str) -> tuple[str, ...]:
    """Algorithms that can run ``collective``.  InputError with the nearest name for an unknown one."""
    try:
        return tuple(SCHEDULES[collective])
    except KeyError:
        raise InputError(f"unknown collective {collective!r}{nearest(collective, COLLECTIVES)}") from None


def steps(
    algorithm: str, collective: str, num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1
) -> Schedule:
    """The schedule of ``collective`` by ``algorithm``: transfers in an order that respects the steps.

    Sizes follow nccl-tests: the whole output of all_gather, the whole input of reduce_scatter, one rank's
    input of all_to_all.  InputError for an unknown collective or algorithm.
    """
    known = algorithms_of(collective)
    if algorithm not in known:
        raise InputError(f"{collective} has no algorithm {algorithm!r}{nearest(algorithm, known)}")
    return SCHEDULES[collective][algorithm](num_ranks, num_bytes, channels, chunks)


def sent_share(collective: str, num_ranks: int) -> float:
    """Bytes that an average rank sends, per byte of nccl-tests' size; the same for every algorithm here.

    The sum of ``steps(...)`` divided by ranks and bytes: 2 (n-1)/n for all_reduce, (n-1)/n for the others.
    """
    share = (num_ranks - 1) / num_ranks
    return 2 * share if collective in ("all_reduce", "barrier") else share
