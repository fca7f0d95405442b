"""The allocator of a described job's stage, played; and the stage that needs most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simcore.graph.schedules import Action
from simcore.memory.caching import AllocatorSettings, PlayedMemory, play
from workloads.jobs.published import Case
from workloads.parallel.check import check_job
from workloads.parallel.generate import schedule_of
from workloads.parallel.job import Job
from workloads.parallel.lifetimes import stage_lifetimes
from workloads.parallel.memory import MemoryEstimate, estimate_memory

#: Microbatches after which no schedule holds more.
_ENOUGH_MICROBATCHES = 64


@dataclass(frozen=True)
class JobStage:
    """A stage that runs ``actions``, and its estimate in closed form."""

    job: Job
    stage: int
    actions: Sequence[Action]
    estimate: MemoryEstimate

    def played(self, allocator: str = "", capacity_bytes: int | None = None) -> PlayedMemory:
        """Its storages on the allocator, on a device of so many bytes.  InputError for other settings."""
        events = stage_lifetimes(self.job, self.stage, self.actions).events
        return play(events, AllocatorSettings.from_text(allocator), capacity_bytes=capacity_bytes)


def job_of(case: Case) -> Job:
    """A published row's case as a job."""
    return Job(case.model, case.parallel, case.training, case.software)


def stages_of(job: Job) -> list[JobStage]:
    """All stages of a job.  InputError for degrees that cannot be."""
    check_job(job.model, job.parallel, job.training)
    parallel = job.parallel
    count = max(1, min(job.num_microbatches, _ENOUGH_MICROBATCHES))
    if parallel.virtual_stages > 1:  # whole groups of microbatches
        group = parallel.microbatch_group or parallel.pp
        count = max(1, count // group) * group
    schedule, _ = schedule_of(parallel, count, forward_only=job.training.trainable == "none")
    return [
        JobStage(job, stage, actions, estimate_memory(job, stage, actions))
        for stage, actions in enumerate(schedule)
    ]


def fullest(job: Job) -> JobStage:
    """The stage that holds most in closed form."""
    return max(stages_of(job), key=lambda one: one.estimate.total)


def needs(stage: JobStage, room_bytes: int, allocator: str) -> int:
    """Least bytes for the allocator with which the stage runs, as far as ``room_bytes`` asks for it.

    In closed form where that settles it; else its storages are played in the room that there is, where cached
    blocks are given back before anything fails.
    """
    total = stage.estimate.total
    allocated = total - stage.estimate.fragmentation
    if total <= room_bytes or allocated > room_bytes:
        return total if total <= room_bytes else allocated
    played = stage.played(allocator, room_bytes)
    return min(total, room_bytes) if played.full_at < 0 else max(total, room_bytes + 1)
