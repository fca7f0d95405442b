"""What the stages of a pipeline do, as data: actions in order, what each waits for, and the gaps before them.

A gap is how much later than explained an action starts; typical ones are medians of a log, by what comes
before an action.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import NamedTuple

import numpy as np

from simcore.records import dataclass
from workloads.imports.logs.pipeline_log import LoggedAction


class ActionKey(NamedTuple):
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

    @property
    def recorded_end_ps(self) -> int:
        """When it ended: as logged, or with the last action that was, ps after its begin."""
        ends = (action.recorded_ps[1] for action in self.actions if action.recorded_ps is not None)
        return max(self.recorded_total_ps, max(ends, default=0))


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


def producer(key: ActionKey, num_stages: int, num_chunks: int, v_shaped: bool) -> ActionKey | None:
    """The action whose output this one needs; None at the ends of the model and for weight gradients."""

    def mirrored(stage: int, chunk: int) -> int:
        return num_stages - 1 - stage if v_shaped and chunk % 2 == 1 else stage

    place = key.chunk * num_stages + mirrored(key.stage, key.chunk)  # in the model
    before = {"F": place - 1, "B": place + 1}.get(key.kind, -1)
    if not 0 <= before < num_stages * num_chunks:
        return None
    chunk, within = divmod(before, num_stages)
    return ActionKey(mirrored(within, chunk), key.kind, key.microbatch, chunk)


def keys(stage: int, actions: Iterable[PlannedAction | LoggedAction]) -> list[ActionKey]:
    """How others refer to a stage's actions."""
    return [ActionKey(stage, action.kind, action.microbatch, action.chunk) for action in actions]


class Situation(NamedTuple):
    """What an action is, what its stage did before ("": it is the first), whether it receives what it needs,
    and whether the one before sent what it made.
    """

    kind: str
    before: str
    receives: bool
    sent: bool


def situations(
    stage: int, actions: Iterable[PlannedAction], num_stages: int, num_chunks: int, v_shaped: bool
) -> Iterator[Situation]:
    """The situation of each action of a stage."""
    before, sent = "", False
    for key in keys(stage, actions):
        source = producer(key, num_stages, num_chunks, v_shaped)
        yield Situation(key.kind, before, source is not None and source.stage != stage, sent)
        before, sent = key.kind, _sends(key, num_stages, num_chunks, v_shaped)


def _sends(key: ActionKey, num_stages: int, num_chunks: int, v_shaped: bool) -> bool:
    """Whether another stage needs an action's output: the action after it in the model is another stage's."""
    for stage in {(key.stage - 1) % num_stages, (key.stage + 1) % num_stages} - {key.stage}:
        for chunk in range(num_chunks):
            if (
                producer(ActionKey(stage, key.kind, key.microbatch, chunk), num_stages, num_chunks, v_shaped)
                == key
            ):
                return True
    return False


@dataclass(frozen=True)
class TypicalGaps:
    """Median gaps by situation, ps, of a log whose sends take ``p2p_ps`` and are ``overlapped`` or not."""

    by_situation: dict[Situation, int]
    p2p_ps: int
    overlapped: bool

    def of(self, situation: Situation, overlapped: bool) -> int:
        """The gap before an action, ps; ``overlapped``: as if sends ran beside computes."""
        gap = self.by_situation.get(situation)
        if gap is None:  # a situation that the schedule of the log does not have
            alike = [
                value
                for known, value in self.by_situation.items()
                if (known.receives, known.sent) == (situation.receives, situation.sent) and known.before
            ]
            gap = int(np.median(alike)) if alike else 0
        if overlapped and not self.overlapped and situation.sent and not situation.receives:
            gap = max(0, gap - self.p2p_ps)  # there it waited for its own send
        return gap


def typical_gaps(plan: PipelinePlan, p2p_ps: int) -> TypicalGaps:
    """The medians of a logged plan."""
    found: dict[Situation, list[int]] = defaultdict(list)
    for stages in plan.iterations.values():
        for stage, own in enumerate(stages):
            each = situations(stage, own.actions, plan.num_stages, plan.num_chunks, plan.v_shaped)
            for situation, action in zip(each, own.actions, strict=True):
                found[situation].append(action.unexplained_ps)
    medians = {situation: int(np.median(gaps)) for situation, gaps in found.items()}
    return TypicalGaps(medians, p2p_ps, plan.overlapped)
