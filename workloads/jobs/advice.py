"""What would make a described job fit its GPUs: variants tried with the closed form of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from simcore.errors import InputError
from simcore.units import GIB
from workloads.jobs.complete import Description
from workloads.parallel import memory
from workloads.parallel.check import check_job
from workloads.parallel.job import FSDP, Job

#: Variants named; the first ones change the job least.
_NAMED = 4
#: Smaller micro batches that are tried, about: each is half of the one before, or less.
_BATCHES = 4


def peak_bytes(job: Description) -> int:
    """What the allocator holds on the fullest stage.  InputError for a layout that cannot be."""
    check_job(job.model, job.parallel, job.training)
    return memory.peak_bytes(Job.of(job))


@dataclass(frozen=True)
class Fitting:
    """A variant of a job that fits: its ``changes`` (``section.key`` -> value), itself, and its peak."""

    changes: dict[str, Any]
    job: Description
    peak_bytes: int

    @property
    def settings(self) -> str:
        """As options of ``run_sim.py``."""
        return " ".join(f"--set {key}={value}" for key, value in self.changes.items())


def variants_that_fit(job: Description, available_bytes: int) -> list[Fitting]:
    """Variants of ``job`` on as many GPUs whose peak is at most ``available_bytes``, the mildest first."""
    found: list[Fitting] = []
    fitting: list[dict[str, Any]] = []
    for changes in _variants(job):
        if any(fits.items() <= changes.items() for fits in fitting):
            continue  # less would do
        try:
            changed = _changed(job, changes)
            peak = peak_bytes(changed)
        except InputError:
            continue
        if peak <= available_bytes:
            fitting.append(changes)
            given = dict(changes)
            if given.get("training.sharding") in FSDP:
                given["software.preset"] = job.software.name  # FSDP alone would choose another preset
            found.append(Fitting(given, changed, peak))
        if len(found) == _NAMED:
            break
    return found


def what_fits(job: Description, available_bytes: int) -> list[str]:
    """Variants of ``job`` whose peak is at most ``available_bytes``, one line each.

    On as many GPUs, or where none of those fits on more, with more pipeline stages.
    """
    found = variants_that_fit(job, available_bytes)
    if found:
        return [f"would fit: {one.settings} ({one.peak_bytes / GIB:.1f} GiB)" for one in found]
    nothing = "nothing fits of what was tried: recomputation, smaller micro batches, sharding, tp, pp"
    return [nothing, *_on_more_gpus(job, available_bytes)]


def _on_more_gpus(job: Description, available_bytes: int) -> list[str]:
    """The fewest more GPUs, by doubling the stages: as the job is, or else fully recomputed."""
    for factor in (2, 4, 8, 16):
        stages: dict[str, Any] = {"parallel.pp": job.parallel.pp * factor}
        for changes in (stages, {**stages, "training.recompute": "full"}):
            try:
                peak = peak_bytes(_changed(job, changes))
            except InputError:
                continue
            if peak <= available_bytes:
                settings = " ".join(f"--set {key}={value}" for key, value in changes.items())
                gpus = job.parallel.world_size * factor
                return [f"would fit on {gpus} GPUs: {settings} ({peak / GIB:.1f} GiB)"]
    return []


def _variants(job: Description) -> Iterator[dict[str, Any]]:
    """Changes by ``section.key``, alone and together, the mildest first."""
    training, parallel = job.training, job.parallel
    recompute: list[dict[str, Any]] = [{}]
    recompute += [
        {"training.recompute": how}
        for how in ("selective", "full")
        if training.recompute not in (how, "full")
    ]
    batches: list[dict[str, Any]] = [{}]
    smaller, step = training.micro_batch // 2, max(2, round(training.micro_batch ** (1 / _BATCHES)))
    while smaller:
        batches.append({"training.micro_batch": smaller})
        smaller //= step
    sharding: list[dict[str, Any]] = [{}]
    if parallel.dp > 1:
        sharding += [{"training.sharding": "zero1"}] if training.sharding == "ddp" else []
        sharding += [{"training.sharding": "fsdp2"}] if training.sharding not in FSDP else []
    degrees: list[dict[str, Any]] = [{}]
    for axis, limit in (("tp", 8), ("pp", 64)):
        degree, dp = 2 * getattr(parallel, axis), parallel.dp
        while degree <= limit and dp % 2 == 0:
            dp //= 2
            degrees.append({f"parallel.{axis}": degree, "parallel.dp": dp})
            degree *= 2
    for degree_change in degrees:
        for shard_change in sharding:
            for batch in batches:
                for again in recompute:
                    changes = {**again, **batch, **shard_change, **degree_change}
                    if changes:
                        yield changes


def _changed(job: Description, changes: dict[str, Any]) -> Description:
    by_section: dict[str, dict[str, Any]] = {"parallel": {}, "training": {}}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        by_section[section][name] = value
    return replace(
        job,
        parallel=job.parallel.model_copy(update=by_section["parallel"]),
        training=job.training.model_copy(update=by_section["training"]),
    )
