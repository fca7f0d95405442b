"""What would make a plan possible where nothing is legal and fits: on how many GPUs something would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from simcore.errors import InputError
from simcore.planning.ground import Settings
from simcore.planning.question import Question
from simcore.planning.space import asked_axes, candidates
from simcore.planning.words import short_form
from simcore.records import dataclass

#: Times as many GPUs that are tried, and what splits a model further.
_TIMES: Final = (2, 4, 8, 16, 32, 64)
_AXES: Final = ("tp", "ep", "etp", "pp", "sharding")


@dataclass(frozen=True)
class MoreGpus:
    """The fewest GPUs, by doubling, on which something fits: the leanest there, its peak in bytes."""

    num_gpus: int
    strategy: str
    peak_bytes: int


def more_gpus(question: Question) -> MoreGpus | None:
    """Where the job fits with one sample a microbatch and all recomputed; None where on none tried."""
    if question.ground.classes:  # what relieves a list of blocks is advice on the job
        return None
    axes = [(axis, values) for axis, values in asked_axes("", question.said) if axis.name in _AXES]
    for times in _TIMES:
        cluster = replace(question.cluster, num_nodes=question.cluster.num_nodes * times)
        larger = replace(question, cluster=cluster, overrides={**question.overrides, **_leanest(question)})
        try:
            fitting = [
                found for one in candidates(larger.ground, axes) if not (found := larger.examined(one)).reason
            ]
        except InputError:  # more GPUs than the batch has samples, say
            continue
        if fitting:
            best = min(fitting, key=lambda one: one.peak_bytes)
            return MoreGpus(cluster.num_gpus, short_form(larger.completed(best.settings)), best.peak_bytes)
    return None


def _leanest(question: Question) -> Settings:
    """Settings that need least memory, of those that the job leaves open."""

    def found() -> Iterator[tuple[str, str]]:
        if "training.micro_batch" not in question.said:
            yield "training.micro_batch", "1"
        if "training.recompute" not in question.said and "full" in question.ground.supports("recompute"):
            yield "training.recompute", "full"

    return dict(found())
