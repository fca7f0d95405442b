"""A forward and a backward of two microbatches run as one, each behind the other's exchanges of tokens.

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

from workloads.models.pieces import EP_STREAM, Kernel, Piece
from workloads.parallel.emit import Writer
from workloads.parallel.stages import Chunk


def exchanges_tokens(chunk: Chunk) -> bool:
    """Whether something of the chunk runs beside compute at all."""
    return any(kernel.stream == EP_STREAM for piece in chunk.pieces for kernel in piece.forward)


def take_turns(*passes: Iterator[None]) -> None:
    """Write all passes, each up to its next exchange, in turn."""
    waiting = list(passes)
    while waiting:
        waiting = [one for one in waiting if next(one, _END) is not _END]


_END = object()


def forward_pass(writer: Writer, chunk: Chunk, layer_offset: int) -> Iterator[None]:
    """A chunk's forward; ``layer_offset``: of its layers' numbers within the template."""
    by_layer = not exchanges_tokens(chunk)
    for piece, layer in zip(chunk.pieces, chunk.layers, strict=True):
        yield from writer.steps(piece.forward, phase="fwd", layer=_layer(layer, layer_offset))
        if by_layer:
            yield


def backward_pass(
    writer: Writer, chunk: Chunk, layer_offset: int, kernels: Callable[[Piece], Sequence[Kernel]]
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
