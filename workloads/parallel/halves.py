"""A backward in two: what the stage before waits for, and the gradients of weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from workloads.models.pieces import Kernel, Piece


@lru_cache(maxsize=256)
def input_half(piece: Piece) -> tuple[Kernel, ...]:
    """Recomputation and gradients of inputs ("I")."""
    return _part(piece.backward, lambda kernel: not kernel.weight_gradient)


@lru_cache(maxsize=256)
def weight_half(piece: Piece) -> tuple[Kernel, ...]:
    """Gradients of weights alone ("W"); their inputs have been kept."""
    return _part(piece.backward, lambda kernel: kernel.weight_gradient)


def _part(kernels: tuple[Kernel, ...], belongs: Callable[[Kernel], bool]) -> tuple[Kernel, ...]:
    """Kernels that belong, waits renumbered; waits for the other half are met by the order of actions."""
    place = {k: n for n, k in enumerate(k for k, kernel in enumerate(kernels) if belongs(kernel))}
    return tuple(
        replace(kernels[k], waits_for=tuple(place[w] for w in kernels[k].waits_for if w in place))
        for k in place
    )
