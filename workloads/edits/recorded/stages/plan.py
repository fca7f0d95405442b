"""What recorded pipelines shall become, and how new stages follow from recorded ones."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from simcore.errors import InputError
from simcore.graph.schedules import Schedule
from simcore.records import dataclass
from workloads.edits.job import EditableJob, TransferPlanner
from workloads.edits.recorded.stages.layers import Layers
from workloads.edits.recorded.stages.pipelines import Recorded
from workloads.edits.recorded.stages.weights import WeightGradients


@dataclass(frozen=True)
class Wanted:
    """What the pipelines shall look like.  ``order[s]`` may hold "I" and "W" instead of "B".

    ``layers`` in all stages; 0: as many as recorded.
    """

    num_stages: int
    num_chunks: int
    order: Schedule
    overlapped: bool
    layers: int = 0


@dataclass(frozen=True)
class PipelineRewrite:
    """A recorded job and what its pipelines shall become.

    ``layers`` where stages or chunks change; ``weights`` where backwards are split.  ``width`` is how far
    the ranks of neighbouring stages are apart.
    """

    job: EditableJob
    recorded: Recorded
    wanted: Wanted
    layers: Layers | None
    weights: WeightGradients | None
    stage_of: dict[int, int] = field(init=False)
    width: int = field(init=False)
    planner: TransferPlanner | None = field(init=False)

    def __post_init__(self) -> None:
        stages = self.recorded.stages
        object.__setattr__(self, "stage_of", {i: s for s, lanes in enumerate(stages) for i in lanes})
        first, second = (self.job.ranks[lanes[0]].number for lanes in stages[:2])
        object.__setattr__(self, "width", max(self.lanes, abs(second - first)))
        object.__setattr__(self, "planner", self._planned())

    def _planned(self) -> TransferPlanner | None:
        """Plans communication among the new ranks, on the recorded GPUs; None where these are not known."""
        if self.pp == self.old_pp or self.job.planner is None or self.job.home is None:
            return None
        try:
            return self.job.planner(self.job.home(self.width * max(self.pp, self.old_pp)))
        except InputError:
            return None

    def number(self, stage: int) -> int:
        """The rank of a stage in the first pipeline."""
        return self.job.ranks[self.recorded.stages[0][0]].number + stage * self.width

    def transfer_ps(self, stage: int, peer: int) -> int:
        """What a send between two stages takes: as recorded, in proportion to the plans where they moved."""
        known = self.recorded.transfer_ps
        if self.pp == self.old_pp and abs(stage - peer) == 1:
            return known[min(stage, peer)]
        typical = int(np.median(known))
        if self.planner is None or not self.recorded.sent_bytes:
            return typical
        pairs = ((self.number(0), self.number(1)), (self.number(stage), self.number(peer)))
        before, after = (self.planner.plan_p2p(self.recorded.sent_bytes, *pair).alone_ps for pair in pairs)
        return round(typical * after / max(1, before))

    def ends_ratio(self, num_bytes: int) -> float:
        """New over old time of an all_reduce of the first stage and the last."""
        if self.planner is None or not num_bytes:
            return 1.0
        ends = ((self.number(0), self.number(pp - 1)) for pp in (self.old_pp, self.pp))
        before, after = (self.planner.plan("all_reduce", num_bytes, pair).alone_ps for pair in ends)
        return after / max(1, before)

    @property
    def old_pp(self) -> int:
        """Stages as recorded."""
        return len(self.recorded.stages)

    @property
    def pp(self) -> int:
        """Stages as wanted."""
        return self.wanted.num_stages

    @property
    def lanes(self) -> int:
        """Recorded ranks of a stage: pipelines side by side."""
        return len(self.recorded.stages[0])

    def source(self, stage: int) -> int:
        """The recorded stage whose ops a new stage runs."""
        if self.pp == self.old_pp:
            return stage
        if stage == 0:
            return 0
        if stage == self.pp - 1:
            return self.old_pp - 1
        between = self.old_pp - 2
        return 1 + min(between - 1, (stage - 1) * between // max(1, self.pp - 2)) if between else 0

    def layers_of(self, stage: int) -> int:
        """Layers of a new stage."""
        assert self.layers is not None
        if self.pp == self.old_pp and not self.wanted.layers:
            return self.layers.counts[stage]
        return (self.wanted.layers or sum(self.layers.counts)) // self.pp
