"""How much later than explained an action of a pipeline starts, by what comes before it: medians of a log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from workloads.imports.pipeline_plan import Key, PipelinePlan, PlannedAction, keys, producer


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
    for key in keys(stage, tuple(actions)):
        source = producer(key, num_stages, num_chunks, v_shaped)
        yield Situation(key.kind, before, source is not None and source.stage != stage, sent)
        before, sent = key.kind, _sends(key, num_stages, num_chunks, v_shaped)


def _sends(key: Key, num_stages: int, num_chunks: int, v_shaped: bool) -> bool:
    """Whether another stage needs an action's output: the action after it in the model is another stage's."""
    for stage in {(key.stage - 1) % num_stages, (key.stage + 1) % num_stages} - {key.stage}:
        for chunk in range(num_chunks):
            if producer(Key(stage, key.kind, key.microbatch, chunk), num_stages, num_chunks, v_shaped) == key:
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
