"""Parts of a backward: what the stage before waits for and the rest, with or without earlier gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Literal

from workloads.models.pieces import Kernel, Piece
from workloads.parallel.replicated import Backward

#: What becomes of a new gradient: added to a buffer ("add"), copied into one that was not there ("copy"), or
#: left as it is ("keep").
Gradients = Literal["add", "copy", "keep"]


def backward_part(kind: str, gradients: Gradients = "add") -> Backward:
    """The kernels of a piece's backward that an action runs.

    ``kind``: all of them ("B"), recomputation and gradients of inputs ("I"), or the gradients of weights
    ("W"), whose inputs have been kept.
    """
    return partial(_part, kind=kind, gradients=gradients)


@lru_cache(maxsize=1024)
def _part(piece: Piece, *, kind: str, gradients: Gradients) -> Sequence[Kernel]:
    """Kernels that belong, waits renumbered.

    Waits for the other half are met by the order of actions; those of an addition that is left out are taken
    over by the next kernel.
    """
    if kind == "B" and gradients == "add":
        return piece.backward
    place: dict[int, int] = {}
    kept: list[Kernel] = []
    handed_on: tuple[int, ...] = ()
    for k, kernel in enumerate(piece.backward):
        if kind != "B" and kernel.weight_gradient != (kind == "W"):
            continue
        waits = (*handed_on, *kernel.waits_for)
        if kernel.accumulates and gradients != "add":
            copied = _copied(kernel) if gradients == "copy" else None
            if copied is None:
                handed_on = waits
                continue
            kernel = copied
        place[k], handed_on = len(kept), ()
        kept.append(replace(kernel, waits_for=tuple(sorted({place[w] for w in waits if w in place}))))
    return tuple(kept)


def _copied(addition: Kernel) -> Kernel | None:
    """The copy that makes a buffer of a first gradient; None where it has its type and becomes it."""
    gradient = addition.bytes_read - addition.bytes_written
    if gradient == addition.bytes_written:
        return None
    return replace(
        addition,
        name="aten::_to_copy",
        op_class="copy",
        in_shapes=addition.in_shapes[1:],
        bytes_read=gradient,
    )
