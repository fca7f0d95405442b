"""Backward in which gradients of weights are put off until nothing else can run.

What tables wait for, the gradients of their rows, travels as soon as the gradients of inputs have been
computed; meanwhile gradients of weights are (HugeCTR's ``async_mlp_wgrad``).  They come in the order of
layers before the first kernel that waits for an exchange, or at the end; those of tables that every rank has
come behind them, since they are added up together.
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
    everything = [kernels(piece) for piece in chunk.pieces]
    first = min((position for position, launched in enumerate(everything) if launched), default=0)

    def catch_up() -> None:
        for launched, layer in late:
            writer.kernels(launched, phase="bwd", layer=layer)
        late.clear()

    for position in reversed(range(len(chunk.pieces))):
        layer = chunk.layers[position]
        if chunk.pieces[position].layer_class == "embedding":
            held, copied = _parted(everything[position], _of_copies)
            catch_up()
            writer.kernels(copied, phase="bwd", layer=layer)
            if position == first:
                complete()
            writer.kernels(held, phase="bwd", layer=layer)
            continue
        now, off = _parted(everything[position], _of_weights)
        writer.kernels(now, phase="bwd", layer=layer)
        if off:
            late.append((off, layer))
    catch_up()
    if not chunk.pieces or chunk.pieces[first].layer_class != "embedding":
        complete()


def _of_weights(kernel: KernelLaunch) -> bool:
    return kernel.weight_gradient


def _of_copies(kernel: KernelLaunch) -> bool:
    """Of a gradient of tables that every rank has (``lookups.copied``)."""
    return ".copied" in kernel.module


def _parted(
    launched: Sequence[KernelLaunch], put_off: Callable[[KernelLaunch], bool]
) -> tuple[list[KernelLaunch], list[KernelLaunch]]:
    """Kernels that are not ``put_off``, and those that are; waits within a list stay right."""
    parts: tuple[list[KernelLaunch], list[KernelLaunch]] = ([], [])
    places: dict[int, tuple[bool, int]] = {}
    for position, kernel in enumerate(launched):
        off = put_off(kernel)
        waits = tuple(places[k][1] for k in kernel.waits_for if k in places and places[k][0] == off)
        places[position] = off, len(parts[off])
        parts[off].append(replace(kernel, waits_for=waits))
    return parts
