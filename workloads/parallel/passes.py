"""Passes of a microbatch over a chunk: parts of a backward, and two passes that take turns.

Note [Overlapped passes]
    DualPipe (arXiv 2412.19437, section 3.2.1, figure 4) cuts both passes where experts exchange tokens, and
    lets them take turns on the compute stream: attention of the forward runs while the gradients of the
    backward's experts arrive, the backward's experts while the forward's tokens are dispatched, and so on.
    An exchange is launched as soon as its input is there; the gradients of weights, which nobody waits for,
    come behind it.  What the pass that had its turn needs next has arrived meanwhile, or the stream waits.
    A pass without exchanges (dense layers) hands on its turn behind each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Literal

from workloads.models.pieces import EP_STREAM, KernelLaunch, ModelPiece
from workloads.parallel.emit import OpWriter
from workloads.parallel.replicated import Backward
from workloads.parallel.stages import Chunk

#: What becomes of a new gradient: added to a buffer ("add"), copied into one that was not there ("copy"), or
#: left as it is ("keep").
Gradients = Literal["add", "copy", "keep"]


def backward_part(kind: str, gradients: Gradients = "add") -> Backward:
    """The kernels of a piece's backward that an action runs.

    ``kind``: all of them ("B"), recomputation and gradients of inputs ("I"), or the gradients of weights
    ("W"), whose inputs have been kept.
    """
    return partial(_part, kind=kind, gradients=gradients)


@lru_cache(maxsize=128)
def _part(piece: ModelPiece, *, kind: str, gradients: Gradients) -> Sequence[KernelLaunch]:
    """Kernels that belong, waits renumbered.

    Waits for the other half are met by the order of actions; those of an addition that is left out are taken
    over by the next kernel.
    """
    if kind == "B" and gradients == "add":
        return piece.backward
    place: dict[int, int] = {}
    kept: list[KernelLaunch] = []
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


def _copied(addition: KernelLaunch) -> KernelLaunch | None:
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


def exchanges_tokens(chunk: Chunk) -> bool:
    """Whether something of the chunk runs beside compute at all."""
    return any(kernel.stream == EP_STREAM for piece in chunk.pieces for kernel in piece.forward)


def take_turns(*passes: Iterator[None]) -> None:
    """Write all passes, each up to its next exchange, in turn."""
    waiting = list(passes)
    while waiting:
        waiting = [one for one in waiting if next(one, _END) is not _END]


_END = object()


def forward_pass(writer: OpWriter, chunk: Chunk, layer_offset: int) -> Iterator[None]:
    """A chunk's forward; ``layer_offset``: of its layers' numbers within the template."""
    by_layer = not exchanges_tokens(chunk)
    for piece, layer in zip(chunk.pieces, chunk.layers, strict=True):
        yield from writer.steps(piece.forward, phase="fwd", layer=_layer(layer, layer_offset))
        if by_layer:
            yield


def backward_pass(
    writer: OpWriter, chunk: Chunk, layer_offset: int, kernels: Callable[[ModelPiece], Sequence[KernelLaunch]]
) -> Iterator[None]:
    """A chunk's backward; what is put off at its end comes last."""
    by_layer = not exchanges_tokens(chunk)
    for piece, layer in zip(reversed(chunk.pieces), reversed(chunk.layers), strict=True):
        yield from writer.steps(kernels(piece), phase="bwd", layer=_layer(layer, layer_offset))
        if by_layer:
            writer.write_late("bwd")
            yield
    writer.write_late("bwd")


def _layer(layer: int, offset: int) -> int:
    return layer if layer < 0 else layer + offset
