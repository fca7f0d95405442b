"""The strategy of a job that says none: of a few that fit the one with the lowest rough bound.

Note [Usual strategy]
    Layouts are tried from the least tensor parallelism and the fewest stages on, each with as little
    recomputation as it fits with (by the closed form of memory, with the margin that predictions miss), up to
    four times the least model parallelism that fits.  Of those that fit, the one with the lowest
    rough bound is moved along chunks of stages and the micro batch.  Where parameters or gradients travel for
    each microbatch, which the rough bound does not see, it is the lowest close bound of those whose rough one
    is below it: without, Mixtral 8x7B under FSDP2 had no expert parallelism on 64 H100 (18.5 s for 14.9).
    ``plan.py`` searches all, with simulations; docs/planning.md says how far from its answers these are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final

from simcore.planning.appraisal import Appraiser
from simcore.planning.ground import Ground, Settings
from simcore.planning.question import Question
from simcore.planning.space import asked_axes, candidates
from workloads.jobs.batches import usual_batch
from workloads.jobs.complete import says_layout
from workloads.jobs.draft import Assumed
from workloads.models.spec import ModelSpec
from workloads.parallel.job import Job, element_bytes
from workloads.parallel.spec import FSDP

_BATCH, _MICRO, _RECOMPUTE = "training.global_batch", "training.micro_batch", "training.recompute"
#: So many times the model parallelism of the first layout that fits is tried.
_BEYOND: Final = 4
_FEWEST_MICROBATCHES: Final = 2
_MOST_EXPERT_RANKS: Final = 64
_MOST_SAMPLES: Final = 8
#: Tokens of a sequence that is split over GPUs.
_LONG: Final = 16_384


def usual_strategy(question: Question) -> tuple[Assumed, ...]:
    """Degrees, recomputation and batches for a job that says no degree, each with why it was chosen.

    Nothing where a degree is said, where no layout fits, or of a list of blocks, whose replicas fill the
    cluster.  InputError where the model itself cannot be.
    """
    if says_layout(question.said):
        return ()
    ground = question.ground
    if not isinstance(ground.base.model, ModelSpec):
        return ()
    batch = _batch(question, ground)
    appraiser = Appraiser(question)
    best = _lowest(_coarse(question, ground, batch), appraiser)
    if best is None:
        return ()
    for moved in (_chunked, _larger_batches):
        best = _lowest([best, *moved(question, ground, best)], appraiser) or best
    why = (
        f"of the layouts that fit {ground.num_gpus} GPUs the one with the lowest bound (plan.py searches all)"
    )
    usual = f"a usual step's tokens on {ground.num_gpus} GPUs"
    chosen = {key: value for key, value in best.items() if key not in question.said}
    job = question.completed(best)
    return tuple(
        Assumed(key, getattr(getattr(job, section), name), usual if key == _BATCH else why)
        for key in chosen
        for section, _, name in (key.partition("."),)
    )


def _lowest(layouts: Iterable[dict[str, str]], appraiser: Appraiser) -> dict[str, str] | None:
    """The one with the lowest bound; the close one is only worked out where it may decide."""
    rough = [(appraiser.rough_ps(one), one) for one in layouts]
    rough.sort(key=itemgetter(0))
    training = appraiser.question.ground.base.training
    if training.sharding not in (*FSDP, "zero2") and not training.reduce_every_microbatch:
        return rough[0][1] if rough else None
    lowest, best = math.inf, None
    for rough_ps, one in rough:
        if rough_ps >= lowest:
            break
        close_ps = appraiser.bound_ps(one)
        if close_ps < lowest:
            lowest, best = close_ps, one
    return best


def usual_settings(question: Question) -> dict[str, str]:
    """:func:`usual_strategy` as settings over the job."""
    return {one.key: str(one.value) for one in usual_strategy(question)}


def _batch(question: Question, ground: Ground) -> dict[str, str]:
    if _BATCH in question.said:
        return {}
    tokens = ground.model.sequence(ground.base.training.seq)
    return {_BATCH: str(usual_batch(ground.num_gpus, tokens))}


def _coarse(question: Question, ground: Ground, batch: Settings) -> Iterator[dict[str, str]]:
    """Layouts that fit, from the least model parallelism on; see Note [Usual strategy]."""
    recompute: list[str] = [ground.base.training.recompute]
    if _RECOMPUTE not in question.said:
        recompute = list(dict.fromkeys((*recompute, *ground.supports("recompute"))))
    micro = {} if _MICRO in question.said else {_MICRO: "1"}
    most = math.inf
    floor = _Floor(ground)
    for _, of_group in groupby(sorted(_layouts(ground), key=_group_and_stages), key=_group):
        for degrees in of_group:
            size = _size(degrees, "tp", "cp", "pp")
            if size > most:
                break
            if floor.num_bytes(degrees) > question.available_bytes:
                continue
            tried = [{**batch, **micro, **degrees, _RECOMPUTE: how} for how in recompute]
            fitting = next((one for one in tried if _fits(question, one)), None)
            if fitting is not None:
                most = min(most, _BEYOND * size)
                yield fitting
                if fitting is tried[0]:
                    break  # more stages of the same kind only wait longer


def _layouts(ground: Ground) -> Iterator[dict[str, str]]:
    """Degrees that divide the GPUs: tp within a node, ep over powers of two, pp over divisors of the rest."""
    context = "cp," if ground.base.training.seq > _LONG else ""
    for found in candidates(ground, asked_axes(f"tp,{context}ep,pp", ())):
        ep = _size(found, "ep")
        if ep <= _MOST_EXPERT_RANKS and ep & (ep - 1) == 0:
            yield {key: text for key, text in found.items() if text != "1"}


def _size(degrees: Settings, *axes: str) -> int:
    return math.prod(int(degrees.get(f"parallel.{axis}", "1")) for axis in axes)


def _group(degrees: Settings) -> tuple[int, ...]:
    """Layouts that share their kernels: all but the stages."""
    return tuple(_size(degrees, axis) for axis in ("tp", "cp", "ep"))


def _group_and_stages(degrees: Settings) -> tuple[int, ...]:
    return (*_group(degrees), _size(degrees, "pp"))


class _Floor:
    """What weights and gradients take at least on each GPU: told at once, where memory takes milliseconds."""

    def __init__(self, ground: Ground) -> None:
        job = Job.of(ground.base)
        self._dense, self._experts = (
            job.numel(job.pieces.all_pieces, of, trainable=True) for of in ("dp", "expert_dp")
        )
        self._each = 0 if job.training.sharding in FSDP else 2 + element_bytes(job.training.grad_dtype)

    def num_bytes(self, degrees: Settings) -> int:
        """Bytes on the GPU that holds most."""
        of_experts = self._experts // _size(degrees, "ep")
        return self._each * (self._dense + of_experts) // _size(degrees, "tp", "pp")


def _fits(question: Question, settings: Settings) -> bool:
    batch = int(settings.get(_BATCH, question.ground.base.training.global_batch))
    stages, micro = (
        _size(settings, "pp"),
        int(settings.get(_MICRO, question.ground.base.training.micro_batch)),
    )
    each = question.cluster.num_placed // _size(settings, "tp", "cp", "pp") * micro
    if batch % each or (_BATCH not in question.said and batch < _FEWEST_MICROBATCHES * each):
        return False
    # A pipeline is as full with four microbatches a stage as with more.
    shorter = {**settings, _BATCH: str(min(batch, 4 * stages * each))}
    one = question.examined(shorter)
    return not one.reason and not question.is_tight(one.peak_bytes)


def _chunked(question: Question, ground: Ground, settings: Settings) -> Iterator[dict[str, str]]:
    """The same layout with more chunks a stage."""
    if int(settings.get("parallel.pp", "1")) > 1:
        for offer in candidates(ground, asked_axes("pp,schedule", ())):
            one = {**settings, **offer}
            if offer["parallel.pp"] == settings["parallel.pp"] and _fits(question, one):
                yield one


def _larger_batches(question: Question, _: Ground, settings: Settings) -> Iterator[dict[str, str]]:
    """The same layout with more samples at once."""
    size = 2
    while _MICRO not in question.said and size <= _MOST_SAMPLES:
        one = {**settings, _MICRO: str(size)}
        if not _fits(question, one):
            return
        yield one
        size *= 2
