"""Parts of a backward: what the stage before waits for and the rest, with or without earlier gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

from workloads.models.pieces import Kernel, Piece
from workloads.parallel.replicated import Backward


def backward_part(kind: str, *, accumulates: bool = True) -> Backward:
    """The kernels of a piece's backward that an action runs.

    ``kind``: all of them ("B"), recomputation and gradients of inputs ("I"), or the gradients of weights
    ("W"), whose inputs have been kept.  ``accumulates`` False: nothing is added to earlier gradients.
    """
    return partial(_part, kind=kind, accumulates=accumulates)


@lru_cache(maxsize=1024)
def _part(piece: Piece, *, kind: str, accumulates: bool) -> Sequence[Kernel]:
    """Kernels that belong, waits renumbered.

    Waits for the other half are met by the order of actions; those of an addition that is left out are taken
    over by the next kernel.
    """
    if kind == "B" and accumulates:
        return piece.backward
    place: dict[int, int] = {}
    kept: list[Kernel] = []
    handed_on: tuple[int, ...] = ()
    for k, kernel in enumerate(piece.backward):
        if kind != "B" and kernel.weight_gradient != (kind == "W"):
            continue
        waits = (*handed_on, *kernel.waits_for)
        if kernel.accumulates and not accumulates:
            handed_on = waits
            continue
        place[k], handed_on = len(kept), ()
        kept.append(replace(kernel, waits_for=tuple(sorted({place[w] for w in waits if w in place}))))
    return tuple(kept)
