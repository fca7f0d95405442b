"""How ranks lie: mixed-radix bases of process groups, ranks as ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simcore.errors import InputError
from simcore.graph.groups import Dim
from simcore.graph.ops import IntArray


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
    """``ranks`` as few ``(start, stop, step)`` ranges, ascending.  Greedy: maximal runs of equal step."""
    pending: IntArray = np.unique(np.fromiter(ranks, dtype=np.int64))
    ranges: list[tuple[int, int, int]] = []
    position = 0
    while position < len(pending):
        if position + 1 == len(pending):
            ranges.append((int(pending[position]), int(pending[position]) + 1, 1))
            break
        steps = np.diff(pending[position:])
        differs = np.flatnonzero(steps != steps[0])
        count = int(differs[0]) + 1 if len(differs) else len(steps) + 1
        start, step = int(pending[position]), int(steps[0])
        ranges.append((start, start + (count - 1) * step + 1, step))
        position += count
    return tuple(ranges)
