"""What the stages of a pipeline do, as data: actions in order, with durations; and what each waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: (stage, chunk) -> place in the model, 0 first.
Placement = Callable[[int, int], int]


class Key(NamedTuple):
    """An action on a stage, as others refer to it."""

    stage: int
    kind: str
    microbatch: int
    chunk: int


@dataclass(frozen=True)
class PlannedAction:
    """An action of a stage: what it lasts, and how much later it starts than order and waits explain.

    ``recorded_ps`` is when the same action was recorded, after the stage's begin (None: it was not), and
    ``unexplained_ps`` how much of the time before it the log does not explain.
    """

    kind: str
    microbatch: int
    chunk: int
    duration_ps: int
    gap_ps: int = 0
    recorded_ps: tuple[int, int] | None = None
    unexplained_ps: int = 0


@dataclass(frozen=True)
class StagePlan:
    """One iteration of a stage: it begins ``offset_ps`` after the first stage does, plays its actions one
    after the other, and goes on for ``tail_ps`` after the last.  ``recorded_total_ps``: as logged, or 0.
    """

    actions: tuple[PlannedAction, ...]
    offset_ps: int = 0
    tail_ps: int = 0
    recorded_total_ps: int = 0


@dataclass(frozen=True)
class PipelinePlan:
    """A pipeline's iterations; sends to a neighbour last ``p2p_ps[iteration][sender, receiver]``.

    ``v_shaped``: chunk 1 runs from the last stage to the first (otherwise each chunk begins at the first).
    ``overlapped``: receives are posted early and run beside computes; otherwise a stage receives after its
    last action, as the non-interleaved schedules of Megatron do.
    ``stood_in`` are stages without a log: what stands there of recorded times is no recording.
    """

    num_chunks: int
    iterations: dict[int, tuple[StagePlan, ...]]
    p2p_ps: dict[int, dict[tuple[int, int], int]] = field(default_factory=dict)
    v_shaped: bool = False
    overlapped: bool = False
    stood_in: tuple[int, ...] = ()

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return len(next(iter(self.iterations.values())))


def place_of(num_stages: int, v_shaped: bool) -> Placement:
    """Where a stage's chunk stands in the model."""

    def place(stage: int, chunk: int) -> int:
        backwards = v_shaped and chunk % 2 == 1
        return chunk * num_stages + (num_stages - 1 - stage if backwards else stage)

    return place


def holder_of(num_stages: int, v_shaped: bool, place: int) -> tuple[int, int]:
    """The stage and chunk that stand at ``place`` of the model."""
    chunk, within = divmod(place, num_stages)
    return (num_stages - 1 - within if v_shaped and chunk % 2 == 1 else within), chunk


def producer(key: Key, num_stages: int, num_chunks: int, v_shaped: bool) -> Key | None:
    """The action whose output this one needs; None at the ends of the model and for weight gradients."""
    place = place_of(num_stages, v_shaped)(key.stage, key.chunk)
    before = {"F": place - 1, "B": place + 1}.get(key.kind, -1)
    if not 0 <= before < num_stages * num_chunks:
        return None
    stage, chunk = holder_of(num_stages, v_shaped, before)
    return Key(stage, key.kind, key.microbatch, chunk)


def keys(stage: int, actions: Sequence[PlannedAction]) -> list[Key]:
    """How others refer to a stage's actions."""
    return [Key(stage, action.kind, action.microbatch, action.chunk) for action in actions]
