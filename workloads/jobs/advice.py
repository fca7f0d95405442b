"""What would make a described job fit its GPUs: variants tried with the closed form of memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import prod
from typing import Any

from simcore.errors import InputError
from simcore.records import dataclass
from simcore.units import GIB
from workloads.jobs.complete import Description, option_of
from workloads.jobs.presets import load_preset, preset_names
from workloads.models.spec import ModelSpec
from workloads.parallel import memory
from workloads.parallel.check import check_job, recomputable
from workloads.parallel.job import Job
from workloads.parallel.members import tables_of
from workloads.parallel.spec import FSDP

#: Kinds of variants named, of each the one that changes the job least; what is tried for them at most.
_NAMED = 6
_TRIED = 400
#: Keys that a variant changes at most, dp that follows from others included.
_MOST_KEYS = 4
#: Into so many parts a stage's layers are cut of which the first run again.
_PARTS = 4
#: Smaller micro batches that are tried, about: each is half of the one before, or less.
_BATCHES = 4


def peak_bytes(job: Description, *, at_most: int | None = None) -> int:
    """What the allocator holds on the fullest stage.  InputError for a layout that cannot be.

    Of one that needs more than ``at_most`` in any case, only so much as shows it.
    """
    check_job(job.model, job.parallel, job.training)
    laid_out = Job.of(job)
    if at_most is not None and (least := memory.least_bytes(laid_out)) > at_most:
        return least
    return memory.peak_bytes(laid_out)


@dataclass(frozen=True)
class Fitting:
    """A variant of a job that fits: its ``changes`` (``section.key`` -> value), itself, and its peak."""

    changes: dict[str, Any]
    job: Description
    peak_bytes: int

    @property
    def settings(self) -> str:
        """As options of ``run_sim.py``."""
        return " ".join(f"--set {key}={option_of(value)}" for key, value in self.changes.items())


def variants_that_fit(job: Description, available_bytes: int) -> list[Fitting]:
    """Variants of ``job`` on as many GPUs whose peak is at most ``available_bytes``, the mildest first.

    One for each set of keys that helps: recomputation (of modules, of some layers, of all), micro batch,
    sharding, tp, pp, ep, and some together.
    """
    found: list[Fitting] = []
    fitting: list[dict[str, Any]] = []
    for changes in islice(_variants(job), _TRIED):
        if any(fits.keys() <= changes.keys() for fits in fitting):
            continue  # less would do
        try:
            given, changed = _of_same_work(job, changes)
            peak = peak_bytes(changed, at_most=available_bytes)
        except InputError:
            continue
        if peak <= available_bytes:
            fitting.append(changes)
            found.append(Fitting(given, changed, peak))
        if len(found) == _NAMED:
            break
    return found


def _of_same_work(job: Description, changes: dict[str, Any]) -> tuple[dict[str, Any], Description]:
    """``job`` with ``changes``, and with the batch said where it would be another one; InputError as
    complete.
    """
    if changes.get("training.sharding") in FSDP:
        changes = {**changes, "software.preset": job.software.name}  # FSDP alone would choose another preset
    changed = job.changed(changes)
    kept = {
        f"training.{key}": now
        for key in ("global_batch", "micro_batch")
        if getattr(changed.training, key) != (now := getattr(job.training, key))
        and f"training.{key}" not in changes
    }
    return ({**changes, **kept}, job.changed({**changes, **kept})) if kept else (changes, changed)


def what_fits(job: Description, available_bytes: int) -> list[str]:
    """Variants of ``job`` whose peak is at most ``available_bytes``, one line each.

    On as many GPUs, or where none of those fits on more, with more pipeline stages.
    """
    found = variants_that_fit(job, available_bytes)
    if found:
        return [f"would fit: {one.settings} ({one.peak_bytes / GIB:.1f} GiB)" for one in found]
    nothing = "nothing fits of what was tried: recomputation, smaller micro batches, sharding, tp, pp, ep"
    return [nothing, *_on_more_gpus(job, available_bytes)]


def _on_more_gpus(job: Description, available_bytes: int) -> list[str]:
    """The fewest more GPUs, by doubling them: as the job is, or else fully recomputed.

    Where tables are dealt out, more ranks have fewer each.
    """
    if tables_of(Job.of(job)):
        return _on_more_gpus_with_tables(job, available_bytes)
    for factor in (2, 4, 8, 16):
        gpus = job.parallel.world_size * factor
        for changes in _variants_on(gpus, job):
            try:
                peak = peak_bytes(job.changed(changes, gpus), at_most=available_bytes)
            except InputError:
                continue
            if peak <= available_bytes:
                told = {key: value for key, value in changes.items() if key != "parallel.dp"}  # it follows
                settings = " ".join(f"--set {key}={value}" for key, value in told.items())
                return [f"would fit on {gpus} GPUs: {settings} ({peak / GIB:.1f} GiB)"]
    return []


def _on_more_gpus_with_tables(job: Description, available_bytes: int) -> list[str]:
    """The fewest more GPUs for dealt-out tables: as many samples on each, or else the batch as it is.

    The second because a rank with rows of a table holds sums for all samples, wherever they are.
    """
    training, parallel = job.training, job.parallel
    for factor in (2, 4, 8, 16, 32, 64):
        gpus, ranks = parallel.world_size * factor, parallel.dp * factor
        for changes in (
            {"training.global_batch": training.global_batch * factor},
            {
                "training.global_batch": training.global_batch,
                "training.micro_batch": min(training.micro_batch, training.global_batch // ranks),
            },
        ):
            try:
                changed = job.changed({"parallel.dp": ranks, **changes}, gpus)
                peak = peak_bytes(changed, at_most=available_bytes)
            except InputError:
                continue
            if peak <= available_bytes:
                settings = " ".join(f"--set {key}={value}" for key, value in changes.items())
                return [f"would fit on {gpus} GPUs: {settings} ({peak / GIB:.1f} GiB)"]
    return []


def _variants_on(gpus: int, job: Description) -> Iterator[dict[str, Any]]:
    """Changes for so many GPUs: more stages, else any degrees, each as it is and fully recomputed."""
    factor = gpus // job.parallel.world_size
    wider = {"parallel.dp": job.parallel.dp * factor}
    alone, together = _degrees(job, job.parallel.dp * factor)
    for degrees in (
        {"parallel.pp": job.parallel.pp * factor},
        *({**wider, **one} for one in alone + together),
    ):
        yield degrees
        if job.training.recompute != "full":
            yield {**degrees, "training.recompute": "full"}


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
    yield from _recomputed_in_part(job)
    for again in recompute:  # alone, before anything is moved
        if again:
            yield again
    if tables_of(Job.of(job)):
        if parallel.strategy.embedding not in ("", "mp"):
            yield {"parallel.strategy.embedding": "mp"}
        for way in ("balanced", "row_wise"):
            if way != parallel.strategy.tables:
                yield {"parallel.strategy.tables": way}
    alone, together = _degrees(job, job.parallel.dp)
    for degree_change in ({}, *alone):
        for shard_change in sharding:
            for batch in batches:
                for again in recompute:
                    changes = {**again, **batch, **shard_change, **degree_change}
                    if changes and len(changes) <= _MOST_KEYS:
                        yield changes
    for degree_change in together:
        for again in recompute:
            yield {**again, **degree_change}


def _recomputed_in_part(job: Description) -> Iterator[dict[str, Any]]:
    """Single modules again, then several, then the first layers of each stage, as far as the build has it."""
    training, name = job.training, job.software.name
    if not isinstance(job.model, ModelSpec) or name not in preset_names():
        return
    supports = load_preset(name).values("supports")
    full = training.recompute == "full"
    if not full:
        now = training.recompute_modules if training.recompute == "selective" else ()
        modules = [
            one
            for one in recomputable(job.model)
            if one in supports.get("recompute_modules", ()) and one not in ("core_attn", *now)
        ]
        several = [tuple(modules[:count]) for count in range(2, len(modules) + 1)]
        for more in (*((one,) for one in modules), *several):
            yield {"training.recompute": "selective", "training.recompute_modules": (*now, *more)}
    if "full" in supports.get("recompute_layers", ()):
        most = -(-job.model.layers // (job.parallel.pp * job.parallel.virtual_stages))
        least = training.recompute_layers if full else 0
        how = {} if full else {"training.recompute": "full"}
        for layers in sorted({most * part // _PARTS for part in range(1, _PARTS + full)}):
            if 0 <= least < layers:
                yield {**how, "training.recompute_layers": layers}


def _degrees(job: Description, dp: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Higher degrees of one axis at the cost of ``dp`` (ep is inside it), and of two."""
    parallel, model = job.parallel, job.model
    moe = model.moe if isinstance(model, ModelSpec) else None
    by_axis: dict[str, list[int]] = {}
    for axis, limit in (("tp", 8), ("pp", 64), ("ep", moe.num_experts if moe is not None else 1)):
        now = getattr(parallel, axis)
        by_axis[axis] = [now << k for k in range(1, 8) if now << k <= limit]

    def changed(**degrees: int) -> dict[str, Any] | None:
        taken = prod(size // getattr(parallel, axis) for axis, size in degrees.items() if axis != "ep")
        if dp % taken:
            return None
        left = {"parallel.dp": dp // taken} if taken > 1 else {}
        return {**{f"parallel.{axis}": size for axis, size in degrees.items()}, **left}

    alone = [changed(**{axis: size}) for axis, sizes in by_axis.items() for size in sizes]
    together = [
        changed(**{one: a, other: b})
        for one, other in (("tp", "pp"), ("ep", "pp"), ("tp", "ep"))
        for a in by_axis[one]
        for b in by_axis[other]
    ]
    return [one for one in alone if one is not None], [one for one in together if one is not None]
