"""Peaks of a described job's stages: lifetimes of their storages, played on the caching allocator."""

from __future__ import annotations

from dataclasses import replace

from simcore.graph.schedules import Schedule
from simcore.memory.caching import AllocatorSettings, play
from simcore.memory.played import PlayedStage
from workloads.parallel.check import check_job
from workloads.parallel.generate import schedule_of
from workloads.parallel.job import Job
from workloads.parallel.lifetimes import stage_lifetimes
from workloads.parallel.memory import enough_microbatches, estimate_memory
from workloads.parallel.static import fullest


def played_stages(
    job: Job, *, near: float = 0.0, full: float = 0.0, only: int | None = None
) -> list[PlayedStage]:
    """Stages of ``job`` whose closed form is at least ``near`` times the fullest one's, in order, or ``only``
    one of them; of these such whose storages take, at their peak, at least ``full`` times what those of the
    fullest do.

    On a device that can give anything.  InputError for degrees that cannot be, and for settings of the
    allocator (``software.allocator``) that PyTorch refuses.
    """
    check_job(job.model, job.parallel, job.training)
    job = fullest(job)
    settings = AllocatorSettings.from_text(job.software.allocator)
    schedule = shortened(job)
    estimates = [estimate_memory(job, stage, actions) for stage, actions in enumerate(schedule)]
    least = near * max(one.total for one in estimates)
    lifetimes = {
        stage: stage_lifetimes(job, stage, actions)
        for stage, actions in enumerate(schedule)
        if (stage == only if only is not None else estimates[stage].total >= least)
    }
    enough = full * max((one.peak_bytes for one in lifetimes.values()), default=0)
    found = []
    for stage, one in lifetimes.items():
        if one.peak_bytes >= enough:
            memory = play(one.events, settings)
            if job.software.planned_memory:
                memory = replace(memory, reserved=memory.allocated)
            found.append(PlayedStage(stage, one, memory, settings, estimates[stage].total))
    return found


def shortened(job: Job) -> Schedule:
    """The job's schedule with as few microbatches as hold what all of them do.

    A steady pipeline repeats itself, and its allocator finds the same blocks again.
    """
    p, forward_only = job.parallel, job.training.trainable == "none"
    count, deferred = job.num_microbatches, job.training.deferred_head_gradients
    if deferred:  # 0: each one adds to what waits for the last
        count = enough_microbatches(
            p.schedule, p.pp, count, p.virtual_stages, p.microbatch_group, forward_only
        )
    if deferred >= count:
        count = job.num_microbatches
    return schedule_of(p, count, forward_only=forward_only)[0]
