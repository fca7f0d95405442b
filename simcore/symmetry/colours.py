"""Colours as small integers: numbering rows, relabelling by first appearance, hashing multisets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray

Hash = npt.NDArray[np.uint64]  # [n, 2]: two independent 64-bit hashes, so that collisions are out of reach

_SEEDS = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], dtype=np.uint64)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_FEW_COLUMNS = 4  # that are sooner sorted one by one than as the bytes of rows


def unique_rows(matrix: npt.NDArray[np.generic]) -> IntArray:
    """Number of each row: equal rows have equal numbers, counted in order of first appearance."""
    if matrix.ndim == 1:
        matrix = matrix[:, None]
    if not matrix.shape[1]:
        return np.zeros(len(matrix), dtype=np.int64)
    if matrix.shape[1] <= _FEW_COLUMNS:
        order = np.lexsort(matrix.T)
        ordered = matrix[order]
        starts = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))[: len(order)]
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.cumsum(starts) - 1
        return _by_appearance(order[starts], number)
    raw = np.ascontiguousarray(matrix).view(np.dtype((np.void, matrix.dtype.itemsize * matrix.shape[1])))
    _, first, number = np.unique(raw.reshape(-1), return_index=True, return_inverse=True)
    return _by_appearance(first, number)


def _by_appearance(first: IntArray, number: IntArray) -> IntArray:
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first, kind="stable")] = np.arange(len(first))
    return place[number]


def first_seen(matrix: IntArray) -> IntArray:
    """Each row relabelled by first appearance within it: ``[7, 3, 7, 9]`` becomes ``[0, 1, 0, 2]``."""
    if matrix.shape[1] == 2:
        return np.stack([np.zeros(len(matrix), dtype=np.int64), matrix[:, 0] != matrix[:, 1]], axis=1)
    order = np.argsort(matrix, axis=1, kind="stable")
    ordered = np.take_along_axis(matrix, order, axis=1)
    starts = np.ones_like(ordered, dtype=np.bool_)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    # The first position that holds each value, spread over its run in sorted order.
    head = np.maximum.accumulate(np.where(starts, np.arange(matrix.shape[1]), 0), axis=1)
    first_place = np.empty_like(order)
    np.put_along_axis(first_place, order, np.take_along_axis(order, head, axis=1), axis=1)
    is_first = first_place == np.arange(matrix.shape[1])
    label = np.cumsum(is_first, axis=1) - 1
    return np.take_along_axis(label, first_place, axis=1)


def mix(*columns: IntArray) -> Hash:
    """Two hashes of each row of integers; the order of columns counts."""
    found = np.empty((*columns[0].shape, 2), dtype=np.uint64)
    shifted = np.empty(columns[0].shape, dtype=np.uint64)
    with np.errstate(over="ignore"):
        added = [column.astype(np.uint64) * _FACTORS[0] for column in columns]
        for number, seed in enumerate(_SEEDS):
            state = np.full(shifted.shape, seed)
            for column in added:
                state += column
                state += seed
                for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):  # splitmix64's finaliser
                    state ^= np.right_shift(state, shift, out=shifted)
                    state *= factor
                state ^= np.right_shift(state, _SHIFTS[2], out=shifted)
            found[..., number] = state
    return found


def add_at(total: Hash, where: IntArray, hashes: Hash) -> None:
    """Add hashes to rows of ``total``: the sum stands for the multiset of what was added."""
    with np.errstate(over="ignore"):
        np.add.at(total, where, hashes)


def refined(colour: IntArray, signature: Hash) -> IntArray:
    """Colours split by signature."""
    return unique_rows(np.concatenate([colour.astype(np.uint64)[:, None], signature], axis=1))
