"""What FSDP and ZeRO-3 gather at once."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.parallel.stages import Chunk


@dataclass(frozen=True)
class Unit:
    """Pieces that are gathered together; positions in the chunk.  ``kept``: not freed behind its forward."""

    positions: tuple[int, ...]
    kept: bool = False


def units_of(chunk: Chunk, *, ends_apart: bool = False) -> list[Unit]:
    """The root unit (both ends, where the chunk has them), then a unit per layer.

    ``ends_apart``: embedding and head are units where they stand, as torchtitan has had them since 2025.
    """
    if ends_apart:
        last = len(chunk.pieces) - 1
        return [Unit((k,), kept=chunk.has_head and k == last) for k in range(last + 1)]
    ends = tuple(k for k, layer in enumerate(chunk.layers) if layer < 0)
    root = [Unit(ends, kept=True)] if ends else []
    return root + [Unit((k,)) for k, layer in enumerate(chunk.layers) if layer >= 0]
