"""Stages of a pipeline whose log is missing, stood in for by what their neighbours did and waited for.

A stand-in computes as long as the nearest stages with a log, in the schedule that these follow, starts what
it has received as soon as it can, and is done before the next stage went on with its output.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np

from simcore.errors import InputError
from simcore.graph.schedules import Action, Schedule, gpipe, interleaved_one_f_one_b
from workloads.imports.logs.pipeline_log import LoggedAction, PipelineLog, StageLog
from workloads.imports.logs.pipeline_plan import ActionKey, producer

_Stages = tuple[StageLog, ...]
_Durations = dict[int, dict[Action, int]]  # of the missing stages, by action


def with_stand_ins(log: PipelineLog) -> PipelineLog:
    """``log`` with actions for its missing stages; as it is where none is missing.

    Errors: InputError when the stages follow no schedule that says what a missing one did.
    """
    if not log.missing:
        return log
    schedule = _schedule(log)
    iterations = {number: _completed(log, stages, schedule) for number, stages in log.iterations.items()}
    return replace(log, iterations=iterations)


def nearest_stages(log: PipelineLog, stage: int) -> tuple[int, ...]:
    """The stages with a log whose computes a missing one is taken to have: the next on either side.

    The first stage has the embedding and the last the head: they stand for nobody where others can.
    """
    present = [other for other, label in enumerate(log.labels) if label]
    between = [other for other in present if 0 < other < log.num_stages - 1] or present
    below = [other for other in between if other < stage][-1:]
    above = [other for other in between if other > stage][:1]
    return (*below, *above)


def _schedule(log: PipelineLog) -> Schedule:
    """The schedule that all stages with a log follow."""
    known: list[Schedule] = []
    if log.num_chunks == 1 or log.num_microbatches % log.num_stages == 0:
        known.append(interleaved_one_f_one_b(log.num_stages, log.num_microbatches, log.num_chunks))
    if log.num_chunks == 1:
        known.append(gpipe(log.num_stages, log.num_microbatches))
    stages = next(iter(log.iterations.values()))
    for schedule in known:
        if all(
            [_action(action) for action in own.actions] == schedule[stage]
            for stage, own in enumerate(stages)
            if own.actions
        ):
            return schedule
    raise InputError(
        f"{next(filter(None, log.labels))}: the log of stage {log.missing[0]} of {log.num_stages} is missing;"
        " it cannot be stood in for: the others follow neither 1F1B nor GPipe"
    )


def _action(logged: LoggedAction) -> Action:
    kind: Literal["F", "B", "W"] = "F" if logged.kind == "F" else "B" if logged.kind == "B" else "W"
    return Action(kind, logged.microbatch, logged.chunk)


def _completed(log: PipelineLog, stages: _Stages, schedule: Schedule) -> _Stages:
    """One iteration with stand-ins, which are played between the stages that are there, on one clock."""
    lasts = {stage: _durations(log, stages, stage, schedule) for stage in log.missing}
    clock_ps, send_ps = _clocks(log, stages, lasts)
    begun: dict[ActionKey, int] = {}
    ended: dict[ActionKey, int] = {}
    for stage, own in enumerate(stages):
        for logged in own.actions:
            key = ActionKey(stage, *_action(logged))
            begun[key] = logged.start_ps + clock_ps[stage]
            ended[key] = logged.end_ps + clock_ps[stage]
    user = {
        source: key
        for stage in range(log.num_stages)
        for key in (ActionKey(stage, *action) for action in schedule[stage])
        if (source := producer(key, log.num_stages, log.num_chunks, v_shaped=False)) is not None
    }
    source_of = {key: source for source, key in user.items()}
    made: dict[int, list[LoggedAction]] = {stage: [] for stage in log.missing}
    while any(len(done) < len(schedule[stage]) for stage, done in made.items()):
        for stage, done in made.items():
            for action in schedule[stage][len(done) :]:
                key = ActionKey(stage, *action)
                source = source_of.get(key)
                if source is not None and source not in ended:
                    break  # of another missing stage
                start = done[-1].end_ps + clock_ps[stage] if done else clock_ps[stage]
                if source is not None:
                    start = max(start, ended[source] + send_ps)
                end = start + lasts[stage][action]
                if user.get(key) in begun:
                    end = max(start, min(end, begun[user[key]] - send_ps))
                begun[key], ended[key] = start, end
                times = start - clock_ps[stage], end - clock_ps[stage]
                done.append(LoggedAction(action.kind, action.microbatch, action.chunk, *times))
    return tuple(
        StageLog(tuple(made[stage]), made[stage][-1].end_ps) if stage in made else own
        for stage, own in enumerate(stages)
    )


def _durations(log: PipelineLog, stages: _Stages, stage: int, schedule: Schedule) -> dict[Action, int]:
    """How long a missing stage takes for each action: the mean of the nearest stages with a log."""
    nearest = [
        {_action(a): a.end_ps - a.start_ps for a in stages[other].actions}
        for other in nearest_stages(log, stage)
    ]
    return {action: int(np.mean([own[action] for own in nearest])) for action in schedule[stage]}


def _clocks(log: PipelineLog, stages: _Stages, lasts: _Durations) -> tuple[list[int], int]:
    """Where each stage's clock begins, and how long a send takes.

    As :func:`~workloads.imports.logs.pipeline_clocks.align_clocks`, across the missing stages: what they
    compute is taken out of the time between what a stage sent and what one behind them received.
    """
    times = [{_action(action): action for action in own.actions} for own in stages]
    present = [stage for stage, own in enumerate(stages) if own.actions]
    begins = {present[0]: 0}
    sends = []
    for before, after in pairwise(present):
        between = range(before + 1, after)
        down, up = (
            min(
                times[late][action].start_ps
                - times[early][action].end_ps
                - sum(lasts[stage][action] for stage in between)
                for action in times[early]
                if action.kind == kind
            )
            for kind, early, late in (("F", before, after), ("B", after, before))
        )
        begins[after] = begins[before] + (up - down) // 2
        sends.append(max(0, down + up) // (2 * (after - before)))
    for stage in log.missing:
        nearest = min(present, key=lambda other: abs(other - stage))
        begins[stage] = begins[nearest]
    return [begins[stage] for stage in range(log.num_stages)], int(np.median(sends)) if sends else 0
