"""Backward in which gradients of weights are put off until nothing else can run.

What tables wait for, the gradients of their rows, travels as soon as the gradients of inputs have been
computed; meanwhile gradients of weights are (HugeCTR's ``async_mlp_wgrad``).  They come in the order of
layers before the first kernel that waits for an exchange, or at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from workloads.models.pieces import KernelLaunch, ModelPiece
from workloads.parallel.emit import OpWriter
from workloads.parallel.stages import Chunk

Late = list[tuple[Sequence[KernelLaunch], int]]


def backward(
    writer: OpWriter, chunk: Chunk, kernels: Callable[[ModelPiece], Sequence[KernelLaunch]],
    complete: Callable[[], None],
) -> None:  # fmt: skip
    """``kernels`` of all pieces in reverse; ``complete`` is called when all gradients of weights are
    there.
    """
    late: Late = []
    done = False

    def catch_up() -> None:
        nonlocal done
        for launched, layer in late:
            writer.kernels(launched, phase="bwd", layer=layer)
        late.clear()
        if not done:
            done = True
            complete()

    for position in reversed(range(len(chunk.pieces))):
        piece, layer = chunk.pieces[position], chunk.layers[position]
        launched = kernels(piece)
        if piece.layer_class == "embedding":
            catch_up()
            writer.kernels(launched, phase="bwd", layer=layer)
            continue
        now, off = _parted(launched)
        writer.kernels(now, phase="bwd", layer=layer)
        if off:
            late.append((off, layer))
    catch_up()


def _parted(launched: Sequence[KernelLaunch]) -> tuple[list[KernelLaunch], list[KernelLaunch]]:
    """What gradients of inputs need, and the rest; waits within a list stay right."""
    parts: tuple[list[KernelLaunch], list[KernelLaunch]] = ([], [])
    places: dict[int, tuple[bool, int]] = {}
    for position, kernel in enumerate(launched):
        off = kernel.weight_gradient
        waits = tuple(places[k][1] for k in kernel.waits_for if k in places and places[k][0] == off)
        places[position] = off, len(parts[off])
        parts[off].append(replace(kernel, waits_for=waits))
    return parts
