"""Strategies of a model's classes of layers as MAD-Max enumerates them, and a job's step under each.

``plan.py`` and ``codesign.py`` search all there are (:mod:`simcore.planning.classes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

from simcore.apps.run.loading import loaded, loaded_cluster
from simcore.apps.run.scenario import resolve_scenario
from simcore.apps.run.simulation import setup_of
from simcore.errors import InputError, OutOfMemoryError
from simcore.records import dataclass
from simcore.run import run

#: What is tried of each class: a node and what lies between nodes (docs/recommendation.md).
TRIED: Final[Mapping[str, tuple[str, ...]]] = {
    "embedding": ("mp",),
    "dense": ("ddp", "fsdp", "fsdp.ddp", "tp.ddp"),
    "transformer": ("ddp", "fsdp", "fsdp.ddp", "tp.ddp", "tp.fsdp"),
    "expert": ("mp", "mp.ddp", "ddp"),
}
#: MAD-Max's baseline: all layers in shards over all ranks, tables and experts dealt out.
BASELINE: Final = {"embedding": "mp", "dense": "fsdp", "transformer": "fsdp", "expert": "mp"}


@dataclass(frozen=True)
class ClassStrategy:
    """Words by class of layers."""

    words: Mapping[str, str]

    @property
    def settings(self) -> dict[str, str]:
        """As ``--set`` takes them."""
        return {f"strategy.{layers}": said for layers, said in self.words.items()}

    def __str__(self) -> str:
        return ", ".join(f"{layers} {said}" for layers, said in self.words.items() if layers != "embedding")


@dataclass(frozen=True)
class ClassStep:
    """A step under a strategy: seconds, or why there is none (``reason``)."""

    strategy: ClassStrategy
    step_s: float | None
    reason: str = ""


def classes_of(model: str, cluster: str, settings: Mapping[str, str]) -> list[str]:
    """Classes of layers that the model has, in the order of :data:`TRIED`.  InputError for a model that is
    no description.
    """
    from workloads.models.listed import KINDS, BlockModel

    _, job = loaded_cluster(resolve_scenario(model, cluster=cluster, settings=dict(settings)))
    if job is None:
        raise InputError(f"{model}: strategies of classes need a model that is described")
    if not isinstance(job.model, BlockModel):
        experts = getattr(job.model, "moe", None) is not None
        return ["transformer", *(["expert"] if experts else [])]
    held = {KINDS[block.block].layer_class for block in job.model.blocks}
    return [layers for layers in TRIED if layers in held]


def strategies(classes: Sequence[str]) -> list[ClassStrategy]:
    """Every combination of what is tried."""
    words = (TRIED[layers] for layers in classes)
    return [ClassStrategy(dict(zip(classes, chosen, strict=True))) for chosen in product(*words)]


def baseline(classes: Sequence[str]) -> ClassStrategy:
    """MAD-Max's."""
    return ClassStrategy({layers: BASELINE[layers] for layers in classes})


def class_step(model: str, cluster: str, settings: Mapping[str, str], strategy: ClassStrategy) -> ClassStep:
    """A step of ``model``, as ``run_sim.py`` simulates it; one that cannot be or does not fit says why."""
    asked = {**settings, **strategy.settings}
    try:
        scenario = resolve_scenario(model, cluster=cluster, settings=asked, force=True)
        found = loaded(scenario)
        found.fits(found.graph, found.cluster, scenario, advised=False)
        return ClassStep(strategy, run(found.graph, found.cluster, setup_of(scenario)).step_s)
    except OutOfMemoryError as error:
        return ClassStep(strategy, None, str(error).splitlines()[0])
    except InputError as error:
        return ClassStep(strategy, None, str(error))


def best_of(steps: Sequence[ClassStep]) -> ClassStep | None:
    """The fastest; None where none can be."""
    return min(
        (one for one in steps if one.step_s is not None), key=lambda one: one.step_s or 0.0, default=None
    )
