"""Which pieces of a model a pipeline stage holds, chunk by chunk, and what is gathered of them at once."""

from __future__ import annotations

from dataclasses import replace

from simcore.errors import InputError
from simcore.graph.schedules import home
from simcore.records import dataclass
from workloads.models.pieces import ModelPiece, ModelPieces
from workloads.parallel.spec import ParallelSpec


@dataclass(frozen=True)
class Chunk:
    """Consecutive pieces on one (virtual) stage; ``first_layer`` is the model's number of its first layer."""

    pieces: tuple[ModelPiece, ...]
    layers: tuple[int, ...]  # of each piece: its layer within the chunk, -1 for the ends
    first_layer: int
    has_embedding: bool
    has_head: bool


def split_layers(num_layers: int, parallel: ParallelSpec) -> tuple[int, ...]:
    """Layers of each virtual stage, in order.  InputError when they neither divide nor are given."""
    count = parallel.pp * parallel.virtual_stages
    if parallel.stage_layers:
        given = parallel.stage_layers
        if len(given) != count or sum(given) != num_layers:
            raise InputError(
                f"stage_layers {list(given)}: {count} virtual stages and {num_layers} layers need {count}"
                f" numbers that add up to {num_layers}; nearest: {_nearest_split(given, count, num_layers)}"
            )
        empty = [k for k, layers in enumerate(given) if layers < (0 if k in (0, count - 1) else 1)]
        if empty:
            found = given[empty[0]]
            raise InputError(f"stage_layers: virtual stage {empty[0]} has {found} layers; nearest: 1")
        return given
    total = num_layers + parallel.embedding_as_layer + parallel.head_as_layer
    if total % count:
        lower, upper = total // count * count, (total // count + 1) * count
        near = f"{lower} or {upper}" if lower else f"{upper}"
        extra = " (embedding or head counted as layers)" if total != num_layers else ""
        raise InputError(
            f"{total} layers{extra} do not divide into {parallel.pp} stages x {parallel.virtual_stages}"
            f" chunks; nearest: {near} layers, or give stage_layers"
        )
    each = total // count
    layers = [each] * count
    layers[0] -= parallel.embedding_as_layer
    layers[-1] -= parallel.head_as_layer
    return tuple(layers)


def even_as_possible(layers: int, stages: int, further: int) -> tuple[int, ...]:
    """Layers of each (virtual) stage, the fewer where embedding, head and ``further`` predicted tokens are.

    InputError for fewer layers than stages.
    """
    if layers < stages:
        raise InputError(f"{layers} layers on {stages} pipeline stages")
    all_parts = layers + 2 + further
    if further and all_parts % stages == 0 and all_parts // stages > further:
        each = all_parts // stages
        return (each - 1, *[each] * (stages - 2), each - 1 - further)
    each, more = divmod(layers, stages)
    counts = [each] * stages
    order = sorted(range(stages), key=lambda k: (k == stages - 1, k == 0, k))
    for k in order[:more]:
        counts[k] += 1
    return tuple(counts)


def _nearest_split(given: tuple[int, ...], count: int, num_layers: int) -> list[int]:
    """``given`` cut or filled up to ``count`` numbers, then the difference taken from the end."""
    found = [*given[:count], *[0] * (count - len(given))]
    missing = num_layers - sum(found)
    for k in reversed(range(count)):
        change = max(missing, -max(0, found[k] - 1))
        found[k] += change
        missing -= change
    return found if not missing else [1] * num_layers


def chunks_of(model: ModelPieces, parallel: ParallelSpec) -> list[list[Chunk]]:
    """``[stage][chunk]``; virtual stage v is chunk v // pp of stage v % pp.

    In a V the second chunk goes back up: stage s holds virtual stages s and 2 pp - 1 - s.  Both ways
    (DualPipe) stage s holds virtual stages s and pp - 1 - s of two copies.
    """
    counts = split_layers(len(model.layers), parallel)
    stages: list[list[Chunk]] = [[] for _ in range(parallel.pp)]
    first = 0
    last = len(counts) - 1
    for number, count in enumerate(counts):
        pieces = list(model.layers[first : first + count])
        layers = list(range(count))
        if number == 0:
            pieces.insert(0, model.embedding)
            layers.insert(0, -1)
        if number == last:
            pieces.append(model.head)
            layers.append(-1)
        stage, _ = home(number, parallel.pp, parallel.placement)
        if number == last and (stage == 0 or parallel.copies > 1):
            pieces[-1] = _without_tied(pieces[-1])
        stages[stage].append(
            Chunk(tuple(pieces), tuple(layers), first, has_embedding=number == 0, has_head=number == last)
        )
        first += count
    if parallel.copies > 1:
        stages = [[*one, *other] for one, other in zip(stages, reversed(stages), strict=True)]
    return stages


def _without_tied(head: ModelPiece) -> ModelPiece:
    """The head where the embedding is on the same stage: they share one weight."""
    own = tuple(parameter for parameter in head.parameters if not parameter.name.endswith("(tied)"))
    return replace(head, parameters=own)


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
