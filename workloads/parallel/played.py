"""Peaks of a described job's stages: lifetimes of their storages, played on the caching allocator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from simcore.graph.schedules import Schedule
from simcore.memory.caching import AllocatorSettings, PlayedMemory, play
from workloads.parallel.check import check_job
from workloads.parallel.generate import schedule_of
from workloads.parallel.job import Job
from workloads.parallel.lasting import EMBEDDING, HEAD, NO_LAYER, OPTIMIZER, StorageHolder
from workloads.parallel.lifetimes import StageLifetimes, stage_lifetimes
from workloads.parallel.memory import MemoryEstimate, enough_microbatches, estimate_memory
from workloads.parallel.static import fullest

_PASSES: Final = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weight gradients"}
_ENDS: Final = {EMBEDDING: "the embedding", HEAD: "the head"}


@dataclass(frozen=True)
class HeldStorage:
    """``count`` live storages of ``num_bytes`` each, alike in holder and microbatch (-1: none)."""

    num_bytes: int
    count: int
    holder: StorageHolder
    microbatch: int


@dataclass(frozen=True)
class PlayedStage:
    """A stage's rank: lifetimes of its storages, what the allocator made of them, and the closed form."""

    stage: int
    lifetimes: StageLifetimes
    memory: PlayedMemory
    estimate: MemoryEstimate
    settings: AllocatorSettings

    def needs_bytes(self, room_bytes: int) -> int:
        """Bytes for the allocator with which the stage runs, of ``room_bytes`` that there are.

        What it reserves where it may, for a device that is full gives cached blocks back before it fails.
        """
        reserved, allocated = self.memory.peak_reserved, self.memory.peak_allocated
        if reserved <= room_bytes or allocated > room_bytes:
            return reserved if reserved <= room_bytes else allocated
        return room_bytes if play(self.lifetimes.events, self.settings, room_bytes).full_at < 0 else reserved

    @property
    def peak_event(self) -> int:
        """The event at which most is allocated."""
        return self.memory.peak_at

    @property
    def instant(self) -> str:
        """That event in words: "microbatch 3's forward of layer 12"."""
        lifetimes, at = self.lifetimes, self.peak_event
        number = int(lifetimes.action[at]) if at >= 0 else -1
        if number < 0:
            return "the optimizer's step" if number == OPTIMIZER else "what lives through the step"
        action, layer = lifetimes.actions[number], int(lifetimes.layer[at])
        if layer == NO_LAYER:  # what is received or sent, or a release: the pass tells the layer
            near = lifetimes.layer[: at + 1][(lifetimes.action[: at + 1] == number)]
            known = near[near != NO_LAYER]
            layer = int(known[-1]) if len(known) else NO_LAYER
        of = f" of {_ENDS.get(layer, f'layer {layer}')}" if layer != NO_LAYER else ""
        return f"microbatch {action.microbatch}'s {_PASSES[action.kind]}{of}"

    @cached_property
    def at_peak(self) -> tuple[HeldStorage, ...]:
        """What is live at the peak, the largest storages first."""
        events, lifetimes = self.lifetimes.events, self.lifetimes
        live: dict[int, int] = {}
        for k, (storage, num_bytes) in enumerate(
            zip(events.storage[: self.peak_event + 1].tolist(), events.num_bytes.tolist(), strict=False)
        ):
            if num_bytes >= 0:
                live[storage] = k
            else:
                del live[storage]
        alike: dict[tuple[int, int, int], int] = {}
        for k in live.values():
            key = int(events.num_bytes[k]), int(lifetimes.holder[k]), int(lifetimes.microbatch[k])
            alike[key] = alike.get(key, 0) + 1
        found = [
            HeldStorage(num_bytes, count, lifetimes.holders[holder], microbatch)
            for (num_bytes, holder, microbatch), count in alike.items()
        ]
        return tuple(sorted(found, key=lambda one: -one.num_bytes))

    @property
    def by_category(self) -> dict[str, int]:
        """Bytes at the peak by category, the largest first."""
        found: dict[str, int] = {}
        for one in self.at_peak:
            found[one.holder.category] = found.get(one.holder.category, 0) + one.num_bytes * one.count
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def played_stages(job: Job, *, near: float = 0.0, only: int | None = None) -> list[PlayedStage]:
    """Stages of ``job`` whose closed form is at least ``near`` times the fullest one's, in order, or ``only``
    one of them.

    On a device that can give anything.  InputError for degrees that cannot be, and for settings of the
    allocator (``software.allocator``) that PyTorch refuses.
    """
    check_job(job.model, job.parallel, job.training)
    job = fullest(job)
    settings = AllocatorSettings.from_text(job.software.allocator)
    schedule = shortened(job)
    estimates = [estimate_memory(job, stage, actions) for stage, actions in enumerate(schedule)]
    least = near * max(one.total for one in estimates)
    found = []
    for stage, (actions, estimate) in enumerate(zip(schedule, estimates, strict=True)):
        if stage == only if only is not None else estimate.total >= least:
            lifetimes = stage_lifetimes(job, stage, actions)
            memory = play(lifetimes.events, settings)
            if job.software.planned_memory:
                memory = replace(memory, reserved=memory.allocated)
            found.append(PlayedStage(stage, lifetimes, memory, estimate, settings))
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
