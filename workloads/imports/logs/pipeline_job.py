"""The log of a pipeline's stages imported: clocks aligned, sends inferred, a graph to replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simcore.records import dataclass
from simcore.units import s_from_ps
from workloads.imports.files import TraceFile
from workloads.imports.job import ImportedJob, ImportReport, RankReport
from workloads.imports.logs.pipeline_clocks import (
    StageClocks,
    actions_by_key,
    align_clocks,
    arrivals,
    contradictions,
    typical_p2p_ps,
    with_receives,
)
from workloads.imports.logs.pipeline_graph import pipeline_graph_of
from workloads.imports.logs.pipeline_log import LoggedAction, PipelineLog, read_pipeline_log
from workloads.imports.logs.pipeline_plan import (
    ActionKey,
    PipelinePlan,
    PlannedAction,
    StagePlan,
    TypicalGaps,
    keys,
    producer,
    situations,
    typical_gaps,
)
from workloads.imports.logs.pipeline_standin import nearest_stages, with_stand_ins


@dataclass(frozen=True)
class PipelineOrigin:
    """What other schedules are predicted from: a plan and its schedule, and what the log shows of gaps and of
    sends between stages.
    """

    plan: PipelinePlan
    schedule: str
    gaps: TypicalGaps


def import_pipeline_logs(sources: Sequence[TraceFile], skip_bad: bool, gaps: str) -> ImportedJob:
    """Import the logs of all stages of one pipeline, with the configuration beside them if there is one.

    ``gaps`` "recorded": time before an action that order, sends and what it needs do not explain is kept, and
    each pair of stages has the send time of the iteration; "typical": medians of the whole log instead.
    ``skip_bad``: stages whose file is bad or missing are stood in for, their rows are not compared.
    Errors: InputError as :func:`read_pipeline_log`.
    """
    log = with_stand_ins(read_pipeline_log(sources, skip_bad))
    v_shaped = _is_v_shaped(log)
    clocks = {
        number: align_clocks(stages, log.num_chunks, v_shaped) for number, stages in log.iterations.items()
    }
    plan = _logged_plan(log, clocks, v_shaped)
    median_ps = typical_p2p_ps(list(clocks.values()))
    usual = typical_gaps(plan, median_ps)
    if gaps == "typical":
        plan = typical_plan(plan, usual)
    graph, ranks, unexplained = pipeline_graph_of(plan)
    origin = PipelineOrigin(plan, _schedule_of(plan), usual)
    return ImportedJob(graph, ranks, _report(log, plan, origin, clocks, unexplained), origin)


def _is_v_shaped(log: PipelineLog) -> bool:
    """Whether chunk 1 stands in the model in the stages' reversed order: the log contradicts the other."""
    stages = next(iter(log.iterations.values()))
    if log.num_chunks != 2:
        return False
    return contradictions(stages, 2, True) < contradictions(stages, 2, False)


def _schedule_of(plan: PipelinePlan) -> str:
    """The schedule that a plan follows, by the order of its first stage."""
    kinds = [action.kind for action in next(iter(plan.iterations.values()))[0].actions]
    if "W" in kinds:
        return "zero_bubble"
    if plan.num_chunks > 1:
        return "v_shaped" if plan.v_shaped else "interleaved"
    forwards = kinds.count("F")
    deep = forwards > plan.num_stages
    return "gpipe" if deep and kinds[:forwards] == ["F"] * forwards else "1f1b"


def typical_plan(plan: PipelinePlan, usual: TypicalGaps) -> PipelinePlan:
    """A plan with the typical gap of its situation before every action, and one send time for all."""
    iterations = {}
    for number, stages in plan.iterations.items():
        planned = []
        for stage, own in enumerate(stages):
            each = situations(stage, own.actions, plan.num_stages, plan.num_chunks, plan.v_shaped)
            actions = tuple(
                replace(action, gap_ps=usual.of(situation, plan.overlapped))
                for situation, action in zip(each, own.actions, strict=True)
            )
            planned.append(replace(own, actions=actions))
        iterations[number] = tuple(planned)
    p2p = {number: dict.fromkeys(times, usual.p2p_ps) for number, times in plan.p2p_ps.items()}
    return replace(plan, iterations=iterations, p2p_ps=p2p)


def _logged_plan(log: PipelineLog, clocks: dict[int, StageClocks], v_shaped: bool) -> PipelinePlan:
    overlapped = log.num_chunks > 1
    iterations, p2p = {}, {}
    for number, stages in log.iterations.items():
        found, came = clocks[number], dict[ActionKey, int]()
        if overlapped:
            found, came = arrivals(stages, found, log.num_chunks, v_shaped)
        else:
            found = with_receives(stages, found)
        p2p[number] = found.p2p_ps
        by_key = actions_by_key(stages)
        plans = []
        for stage, logged in enumerate(stages):
            actions: list[PlannedAction] = []
            free = 0
            for key, action in zip(keys(stage, logged.actions), logged.actions, strict=True):
                source = producer(key, log.num_stages, log.num_chunks, v_shaped)
                ready = max(free, came[key]) if key in came else _ready(by_key, found, source, stage, free)
                late = max(0, action.start_ps - ready)
                actions.append(
                    PlannedAction(
                        action.kind, action.microbatch, action.chunk, action.end_ps - action.start_ps, late,
                        (action.start_ps, action.end_ps), late,
                    )
                )  # fmt: skip
                free = action.end_ps
            tail = max(0, logged.total_ps - free) if logged.total_ps else 0
            plans.append(StagePlan(tuple(actions), found.offset_ps[stage], tail, logged.total_ps))
        iterations[number] = tuple(plans)
    return PipelinePlan(log.num_chunks, iterations, p2p, v_shaped, overlapped, log.missing)


def _ready(
    by_key: dict[ActionKey, LoggedAction],
    clocks: StageClocks,
    source: ActionKey | None,
    stage: int,
    free_ps: int,
) -> int:
    """When a stage that is free at ``free_ps``, and receives only then, has what an action needs."""
    if source is None or source not in by_key:
        return free_ps
    if source.stage == stage:
        return max(free_ps, by_key[source].end_ps)
    sent = by_key[source].end_ps + clocks.offset_ps[source.stage] - clocks.offset_ps[stage]
    return max(free_ps, sent) + clocks.p2p_ps[source.stage, stage]


def _report(
    log: PipelineLog,
    plan: PipelinePlan,
    origin: PipelineOrigin,
    clocks: dict[int, StageClocks],
    unexplained: list[int],
) -> ImportReport:
    ranks = []
    for stage, label in enumerate(log.labels):
        if not label:
            continue
        own = [stages[stage] for stages in log.iterations.values()]
        ranks.append(
            RankReport(
                rank=stage, file=label, gpu_ops=sum(len(found.actions) for found in own), steps=len(own),
                span_s=s_from_ps(sum(found.span_ps for found in own)),
                unexplained_waits=sum(
                    action.gap_ps > 0 for each in plan.iterations.values() for action in each[stage].actions
                ),
                unexplained_s=s_from_ps(unexplained[stage]),
            )
        )  # fmt: skip
    shift = np.median([found.offset_ps for found in clocks.values()], axis=0) / 1e6
    shape = "in a V" if plan.v_shaped else "one after the other"
    chunks = f", {log.num_chunks} chunks per stage {shape}" if log.num_chunks > 1 else ""
    inferred = [
        f"a send between stages takes {origin.gaps.p2p_ps / 1e9:.3f} ms (median): from the forwards and"
        " backwards that waited for it; clocks of stages likewise",
        *([log.counted] if log.counted else []),
    ]
    missing = [
        f"no log of stage {stage}: it is stood in for, computing as long as stage"
        f" {' and stage '.join(map(str, nearest_stages(log, stage)))}; not compared"
        for stage in log.missing
    ]
    missing.append("kernels, sends and receives are not in the log: a stage's forward is one op")
    return ImportReport(
        ranks=tuple(ranks), world_size=log.world_size,
        clock_shift_us=tuple(round(float(value), 3) for value in shift),
        skipped=log.skipped, format="pipeline_log",
        found=(f"{log.num_stages} stages, {log.num_microbatches} microbatches{chunks}",),
        inferred=tuple(inferred),
        missing=tuple(missing),
    )  # fmt: skip
