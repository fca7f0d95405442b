"""How ranks lie: mixed-radix bases of process groups, ranks as ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simcore.errors import InputError
from simcore.graph.groups import Dim
from simcore.graph.ops import IntArray

_STEPS_TRIED = 16  # for a range that begins at some rank: distances to so many of the next


def tiling(name: str, dims: Sequence[Dim], world_size: int) -> tuple[Dim, ...]:
    """Base dims that complete ``dims`` to a mixed radix of the whole world.

    InputError when a stride is not a multiple of the dims below it, or the world no multiple of all.
    """
    base: list[Dim] = []
    covered = 1
    for size, stride in sorted(dims, key=lambda dim: dim[1]):
        if stride % covered:
            raise InputError(f"process group {name!r}: stride {stride} is no multiple of {covered}")
        if stride > covered:
            base.append((stride // covered, covered))
        covered = stride * size
    if world_size % covered:
        raise InputError(f"process group {name!r}: {covered} ranks do not divide the world of {world_size}")
    if world_size > covered:
        base.append((world_size // covered, covered))
    return tuple(base)


def rank_ranges(ranks: Iterable[int]) -> tuple[tuple[int, int, int], ...]:
    """``ranks`` as few ``(start, stop, step)`` ranges, ascending by start.

    One after the other where that takes no more of them; else interleaved, so that GPUs 1 to 7 of each of
    1,024 nodes are 3 ranges and not 1,024.
    """
    pending: IntArray = np.array(sorted(set(ranks)), dtype=np.int64)
    one_by_one, interleaved = _runs(pending), _interleaved(pending)
    return tuple(one_by_one if len(one_by_one) <= len(interleaved) else interleaved)


def contiguous_text(ranks: Iterable[int]) -> str:
    """``"0-7, 16"``: ranks for a message."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def _runs(pending: IntArray) -> list[tuple[int, int, int]]:
    """Greedy: maximal runs of equal step."""
    steps = np.diff(pending)
    changes = np.append(np.flatnonzero(steps[1:] != steps[:-1]) + 1, len(steps))
    ranges: list[tuple[int, int, int]] = []
    position = 0
    while position < len(pending):
        last = position
        if position < len(steps):
            last = int(changes[np.searchsorted(changes, position, side="right")])
        start, stop = int(pending[position]), int(pending[last]) + 1
        ranges.append((start, stop, int(steps[position]) if last > position else 1))
        position = last + 1
    return ranges


def _interleaved(pending: IntArray) -> list[tuple[int, int, int]]:
    """Greedy: the lowest rank that is left begins the range that takes the most of those left."""
    ranges: list[tuple[int, int, int]] = []
    while len(pending):
        start = int(pending[0])
        steps = (pending[1 : 1 + _STEPS_TRIED] - start).tolist()
        count, step = max(((_reach(pending, step), step) for step in steps), default=(1, 1))
        stop = start + (count - 1) * step + 1
        ranges.append((start, stop, step))
        pending = pending[(pending >= stop) | ((pending - start) % step != 0)]
    return ranges


def _reach(pending: IntArray, step: int) -> int:
    """How many ranks there are from the lowest on, ``step`` apart without a gap."""
    wanted = np.arange(pending[0], pending[-1] + 1, step)
    found = pending[np.minimum(np.searchsorted(pending, wanted), len(pending) - 1)] == wanted
    return len(found) if found.all() else int(np.argmin(found))
