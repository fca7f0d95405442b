"""What all candidates of a plan share, and what an axis of their space is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from simcore.hardware import ClusterSpec
from simcore.records import dataclass
from simcore.units import what_counts
from workloads.jobs import Description
from workloads.jobs.presets import Preset
from workloads.models.listed import KINDS, BlockModel
from workloads.models.pieces import LayerClass
from workloads.models.spec import ModelSpec, transformer_of
from workloads.parallel.job import Described

Settings = Mapping[str, str]
#: The one setting of a candidate that speaks of the cluster: which GPU runs which rank.
PLACEMENT: Final = "cluster.placement"


@dataclass(frozen=True)
class Ground:
    """What all candidates share: the job as said, completed by default, and the GPUs."""

    base: Description
    preset: Preset
    cluster: ClusterSpec

    @property
    def num_gpus(self) -> int:
        """GPUs of the cluster, all of which a candidate runs on."""
        return self.cluster.num_placed

    @property
    def domain(self) -> int:
        """GPUs that NVLink joins."""
        return self.cluster.gpus_per_domain

    @property
    def model(self) -> ModelSpec:
        """The transformer that is trained.  InputError for a list of blocks."""
        return transformer_of(self.base.model, "an axis of transformers")

    @property
    def classes(self) -> frozenset[LayerClass]:
        """Classes of layers that a list of blocks has; none of a transformer, which has axes of its own."""
        return classes_of(self.base)

    @property
    def counted(self) -> str:
        """What throughput counts: "tokens", or "samples" where a sample has but one."""
        return what_counts(self.base.training.seq)

    @property
    def length(self) -> tuple[str, int]:
        """What throughput counts, and tokens of a sample."""
        return self.counted, self.base.training.seq

    @property
    def counted_short(self) -> str:
        """The same in three letters."""
        return "smp" if self.counted == "samples" else "tok"

    def supports(self, key: str) -> list[str]:
        """What the framework has of a kind; what the job itself asks for where the preset does not say."""
        return self.allows(key) or [str(getattr(self.base.training, key, ""))]

    def allows(self, key: str) -> list[str]:
        """What the framework's preset says that it has of a kind; nothing where it does not say."""
        return list(self.preset.values("supports").get(key, ()))

    def deals_out(self, degree: str) -> bool:
        """Whether the framework has a degree of parallelism; all where its preset does not say."""
        return degree in self.preset.values("supports").get("degrees", [degree])

    @property
    def num_layers(self) -> int:
        """Layers that are dealt out to stages."""
        return self.model.num_layers


@dataclass(frozen=True)
class SearchAxis:
    """An axis by the ``name`` that ``--search`` knows.

    ``keys``: settings that it decides; a job that says one of them itself keeps it unless the axis is asked
    for.  ``offers``: settings to choose from, given those chosen on earlier axes.  ``usual``: searched
    unasked.  ``fine``: the best are moved along it afterwards (:mod:`simcore.planning.polish`).  ``lists``:
    it is one of lists of blocks, not of transformers.
    """

    name: str
    keys: tuple[str, ...]
    offers: Callable[[Ground, Settings], Sequence[Settings]]
    usual: bool = True
    fine: bool = False
    lists: bool = False


def classes_of(job: Described) -> frozenset[LayerClass]:
    """Classes of layers of a job whose model is a list of blocks; none of another."""
    if not isinstance(job.model, BlockModel):
        return frozenset()
    return frozenset(KINDS[block.block].layer_class for block in job.model.blocks)


def number(ground: Ground, chosen: Settings, key: str) -> int:
    """A degree: chosen, else the job's own."""
    return int(chosen.get(f"parallel.{key}", getattr(ground.base.parallel, key)))


def left(ground: Ground, chosen: Settings, *taken: str) -> int:
    """GPUs for each combination of the degrees ``taken``; 0 where they do not divide."""
    inner = 1
    for key in taken:
        inner *= number(ground, chosen, key)
    return 0 if ground.num_gpus % inner else ground.num_gpus // inner
