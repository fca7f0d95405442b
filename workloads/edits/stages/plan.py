"""What recorded pipelines shall become, and how new stages follow from recorded ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from simcore.graph.schedules import Schedule
from workloads.edits.job import EditableJob
from workloads.edits.stages.layers import Layers
from workloads.edits.stages.pipelines import Recorded
from workloads.edits.stages.weights import WeightGradients


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
class Plan:
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

    def __post_init__(self) -> None:
        stages = self.recorded.stages
        object.__setattr__(self, "stage_of", {i: s for s, lanes in enumerate(stages) for i in lanes})
        first, second = (self.job.ranks[lanes[0]].number for lanes in stages[:2])
        object.__setattr__(self, "width", max(self.lanes, abs(second - first)))

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
