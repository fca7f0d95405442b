"""Parameters of new stages: their optimizer and the communication of their gradients."""

from __future__ import annotations

import numpy as np

from simcore.graph import OpKind
from workloads.edits.kernel_classes import op_classes
from workloads.edits.stages.plan import Plan
from workloads.edits.stages.program import ProgramWriter

_PARAMETERS = ("optimizer", "foreach")  # kernels over all parameters at once
_SMALL_BYTES = 4096  # a collective of so few bytes is a norm or a flag, no gradients


class Parameters:
    """How parameters of stages change, and what follows them.

    ``ends_only`` are rows of collectives among the first and the last stage alone: gradients of tied
    embeddings, which no stage between has.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._classes = op_classes(plan.job.graph)
        self.ends_only = _between_ends(plan)

    def scale(self, writer: ProgramWriter, stage: int, index: int) -> None:
        """Kernels and collectives over all parameters of a stage, for the layers that it has now."""
        plan = self._plan
        if plan.layers is None or (plan.pp == plan.old_pp and not plan.wanted.layers):
            return
        ratio = self._ratio(stage, plan.stage_of[index])
        ops = plan.job.graph.ops
        for at in writer.plain_rows:
            row = writer.rows[at]
            if row in self.ends_only:
                apart = plan.ends_ratio(int(ops.num_bytes[row]))
                writer.patches.setdefault(at, {})["recorded_ps"] = round(int(ops.recorded_ps[row]) * apart)
                continue
            large = ops.kind[row] == OpKind.COLLECTIVE and ops.num_bytes[row] > _SMALL_BYTES
            if large or self._classes[row] in _PARAMETERS:
                patch = writer.patches.setdefault(at, {})
                patch["recorded_ps"] = round(int(ops.recorded_ps[row]) * ratio)
                patch["num_bytes"] = round(int(ops.num_bytes[row]) * ratio)

    def _ratio(self, stage: int, source: int) -> float:
        """Parameters of a new stage over those of the recorded one, by the time of the optimizer."""
        plan = self._plan
        assert plan.layers is not None
        counts, time = plan.layers.counts, [self._optimizer_ps(s) for s in range(plan.old_pp)]
        if not all(time):
            return plan.layers_of(stage) / counts[source]
        # Stages between have layers alone; without one, the end with fewer parameters for its layers.
        inner = range(1, plan.old_pp - 1) if plan.old_pp > 2 else range(plan.old_pp)
        each = min(time[s] / counts[s] for s in inner)
        own = each * plan.layers_of(stage)
        if stage in (0, plan.pp - 1):
            own += max(0.0, time[source] - each * counts[source])
        return own / time[source]

    def _optimizer_ps(self, stage: int) -> int:
        graph = self._plan.job.graph
        first, last = graph.template_start[self._plan.recorded.stages[stage][0] :][:2]
        mine = np.isin(self._classes[first:last], _PARAMETERS)
        return int(graph.ops.recorded_ps[first:last][mine].sum())


def _between_ends(plan: Plan) -> frozenset[int]:
    graph = plan.job.graph
    found: list[int] = []
    owner = np.repeat(np.arange(graph.num_templates), np.diff(graph.template_start))  # a rank each
    for name, group in graph.groups.items():
        ends = [m for m in group.explicit if {plan.stage_of[i] for i in m} == {0, plan.old_pp - 1}]
        if ends:
            rows = np.flatnonzero(graph.ops.group.equals(name))
            rows = rows[np.isin(owner[rows], np.concatenate(ends))]
            # Of two stages both are ends: small things concern all.
            kept = rows if plan.old_pp > 2 else rows[graph.ops.num_bytes[rows] > _SMALL_BYTES]
            found += kept.tolist()
    return frozenset(found)
