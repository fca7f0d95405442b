"""What a stage of a logged pipeline needs for each microbatch, and how it falls on chunks and parts.

The source of every predicted schedule: durations are those of the log, re-cut.

Note [Stalls].  A host that pauses (garbage is collected, a file is written) holds one pass of one stage up,
ten times as long as it takes.  Where the bubble hides that, the logged step is none the longer; in another
order it falls on a pass that all wait for, where the real run of that order has no pause.  A pass lasts what
its stage takes for that chunk times what its microbatch takes against others (sequences differ in length).
One over twice that is a stall, and lasts that in an order written anew: so do gaps take the log's median.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simcore.records import dataclass
from workloads.imports.logs.pipeline_plan import PlannedAction, StagePlan

_Recorded = tuple[int, int] | None
_STALL = 2.0  # times what a pass takes
_KNOWN = 4  # microbatches that tell what a pass takes


@dataclass(frozen=True)
class Part:
    """A duration, and when its share of the log's action was recorded."""

    duration_ps: int
    recorded_ps: _Recorded


class StageTimes:
    """One iteration's stages: times of a microbatch's forward and backward, whatever chunks they ran on.

    ``head_ps[kind]`` is how much longer the last stage takes than a stage between: the head and the loss,
    which belong to its last chunk however many there are.
    """

    def __init__(self, stages: tuple[StagePlan, ...], num_microbatches: int) -> None:
        self._logged = num_microbatches
        self._by_place = [_by_place(own) for own in stages]
        self.head_ps = {kind: self._head(stages, kind) for kind in ("F", "B")}

    def part(self, stage: int, kind: str, microbatch: int, chunk: int, num_chunks: int) -> Part:
        """A microbatch's time on one of ``num_chunks`` equal chunks of a stage; "B" is the whole backward.

        Microbatches beyond the logged ones take the times of the logged ones in turn.
        """
        found = self._by_place[stage]
        own = [
            action
            for word in (kind, "W")
            if word == kind or kind == "B"
            for action in found.get((word, microbatch % self._logged), [])
        ]
        logged_chunks = len([action for action in own if action.kind == kind])
        recorded = microbatch < self._logged
        if logged_chunks == num_chunks and len(own) == num_chunks:
            (action,) = (action for action in own if action.chunk == chunk)
            return _as_logged(action, recorded)
        total = sum(action.duration_ps for action in own)
        is_last = stage == len(self._by_place) - 1
        head = min(self.head_ps[kind], total) if is_last else 0
        share = (total - head) // num_chunks + (head if chunk == num_chunks - 1 else 0)
        whole = own[0].recorded_ps if recorded and len(own) == 1 else None
        if whole is None:
            return Part(share, None)
        at = chunk if kind == "F" else num_chunks - 1 - chunk
        width = (whole[1] - whole[0]) // num_chunks
        return Part(share, (whole[0] + at * width, whole[0] + (at + 1) * width))

    def split(self, stage: int, microbatch: int, weight_share: float) -> tuple[Part, Part]:
        """The backward's parts for inputs and for weights: as logged, or ``weight_share`` of the whole."""
        recorded = microbatch < self._logged
        found = self._by_place[stage]
        weights = found.get(("W", microbatch % self._logged), [])
        if len(weights) == 1:
            inputs = found["B", microbatch % self._logged][0]
            return _as_logged(inputs, recorded), _as_logged(weights[0], recorded)
        whole = self.part(stage, "B", microbatch, 0, 1)
        later = round(whole.duration_ps * weight_share)
        if whole.recorded_ps is None:
            return Part(whole.duration_ps - later, None), Part(later, None)
        start, end = whole.recorded_ps
        cut = end - round((end - start) * weight_share)
        return Part(whole.duration_ps - later, (start, cut)), Part(later, (cut, end))

    def _head(self, stages: tuple[StagePlan, ...], kind: str) -> int:
        if len(stages) < 3:  # nothing lies between the first and the last
            return 0
        medians = [self._median(stage, kind) for stage in range(len(stages))]
        return max(0, medians[-1] - int(np.median(medians[1:-1])))

    def _median(self, stage: int, kind: str) -> int:
        wholes = [self._whole(stage, kind, microbatch) for microbatch in range(self._logged)]
        return int(np.median(wholes))

    def _whole(self, stage: int, kind: str, microbatch: int) -> int:
        words = (kind, "W") if kind == "B" else (kind,)
        found = self._by_place[stage]
        return sum(a.duration_ps for word in words for a in found.get((word, microbatch), []))


def without_stalls(stages: tuple[StagePlan, ...]) -> tuple[tuple[StagePlan, ...], list[tuple[int, int]]]:
    """``stages`` with passes as long as they take, and of each stall how long it lasted and now lasts, ps.

    See Note [Stalls].  Of fewer than four microbatches nothing is known.
    """
    kinds: dict[tuple[int, str, int], list[int]] = {}
    for stage, own in enumerate(stages):
        for action in own.actions:
            kinds.setdefault((stage, action.kind, action.chunk), []).append(action.duration_ps)
    usual = {kind: float(np.median(times)) for kind, times in kinds.items() if len(times) >= _KNOWN}
    against: dict[int, list[float]] = {}
    for stage, own in enumerate(stages):
        for action in own.actions:
            if lasts := usual.get((stage, action.kind, action.chunk)):
                against.setdefault(action.microbatch, []).append(action.duration_ps / lasts)
    size = {microbatch: float(np.median(ratios)) for microbatch, ratios in against.items()}
    stalls: list[tuple[int, int]] = []
    made = []
    for stage, own in enumerate(stages):
        actions = list(own.actions)
        for place, action in enumerate(actions):
            lasts = usual.get((stage, action.kind, action.chunk), 0.0)
            lasts_ps = round(lasts * size.get(action.microbatch, 0.0))
            if 0 < _STALL * lasts_ps < action.duration_ps:
                stalls.append((action.duration_ps, lasts_ps))
                actions[place] = replace(action, duration_ps=lasts_ps)
        made.append(replace(own, actions=tuple(actions)))
    return tuple(made), stalls


def regrouped(stages: tuple[StagePlan, ...], num_microbatches: int, num_stages: int) -> tuple[StagePlan, ...]:
    """The work of ``stages`` on ``num_stages``: neighbours put together, or each cut into equal parts.

    One is a multiple of the other.  What the last stage takes longer (head, loss) stays on the last.  Actions
    stand in no order.
    """
    times = StageTimes(stages, num_microbatches)
    parts = max(1, num_stages // len(stages))
    together = max(1, len(stages) // num_stages)
    made = []
    for stage in range(num_stages):
        sources = range(stage * together // parts, stage * together // parts + together)
        actions = []
        for kind in ("F", "B"):
            for microbatch in range(num_microbatches):
                each = [times.part(source, kind, microbatch, stage % parts, parts) for source in sources]
                lasts = sum(part.duration_ps for part in each)
                actions.append(PlannedAction(kind, microbatch, 0, lasts))
        tail = max(stages[source].tail_ps for source in sources)
        made.append(StagePlan(tuple(actions), tail_ps=tail))
    return tuple(made)


def _as_logged(action: PlannedAction, recorded: bool) -> Part:
    return Part(action.duration_ps, action.recorded_ps if recorded else None)


def _by_place(own: StagePlan) -> dict[tuple[str, int], list[PlannedAction]]:
    found: dict[tuple[str, int], list[PlannedAction]] = {}
    for action in own.actions:
        found.setdefault((action.kind, action.microbatch), []).append(action)
    return found
