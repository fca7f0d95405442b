"""The plan of a logged pipeline as other edits have left its graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simcore.errors import InputError
from simcore.graph.kinds import is_p2p
from workloads.edits.job import EditableJob
from workloads.imports.logs.pipeline_graph import ACTION_NAMES
from workloads.imports.logs.pipeline_job import PipelineOrigin
from workloads.imports.logs.pipeline_plan import PipelinePlan


def current_plan(job: EditableJob) -> PipelinePlan:
    """The plan of ``job`` with durations as the graph has them now.

    Errors: InputError when the graph is no longer that of a plan: an edit took ops out, or changed the sends.
    """
    assert isinstance(job.origin, PipelineOrigin), "kind pipeline_log"
    plan, graph = job.origin.plan, job.graph
    sends = graph.ops.recorded_ps[is_p2p(graph.ops.kind)]
    known = [time for times in plan.p2p_ps.values() for time in times.values()]
    if not np.isin(sends, known).all():
        raise InputError("the sends were edited before; put edits of the schedule first")
    iterations = {number: list(stages) for number, stages in plan.iterations.items()}
    for stage, rank in enumerate(job.ranks):
        names = rank.recorded.name
        acts = np.isin(names.codes, [code for code, name in enumerate(names.values) if name in ACTION_NAMES])
        first = graph.template_start[int(graph.programs[stage].template[0])]
        durations = graph.ops.recorded_ps[first + np.sort(rank.flat[acts])].tolist()
        if len(durations) != sum(len(stages[stage].actions) for stages in iterations.values()):
            raise InputError("forwards or backwards were taken out before; put edits of the schedule first")
        left = iter(durations)
        for stages in iterations.values():
            actions = tuple(replace(action, duration_ps=next(left)) for action in stages[stage].actions)
            stages[stage] = replace(stages[stage], actions=actions)
    return replace(plan, iterations={number: tuple(stages) for number, stages in iterations.items()})
