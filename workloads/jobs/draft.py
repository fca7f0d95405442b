"""A job on its way from what was said to complete specs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from simcore.records import dataclass
from workloads.jobs.presets import Preset
from workloads.models.checked import checked
from workloads.models.model import AnyModel
from workloads.models.software import SoftwareSpec
from workloads.parallel.spec import ParallelSpec, TrainingSpec

Spec = TypeVar("Spec", bound=BaseModel)


@dataclass(frozen=True)
class Assumed:
    """What a rule took for granted: ``section.key``, its value, and why."""

    key: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}: {self.why}" if self.key else self.why


class Draft:
    """Values of each section as they stand: the preset's, what was said over them, and what rules assume.

    ``said[section]`` is what was said, which no rule overrules without a warning; ``preset_said``: whether
    the preset was, too; ``context``: tokens of the sequences that such a model is trained on, and why so many
    (0: not known).  Errors: InputError, when specs are asked for, for unknown keys and values that
    cannot be.
    """

    def __init__(
        self,
        where: str,
        num_gpus: int,
        generation: str,
        preset: Preset,
        model: AnyModel,
        said: Mapping[str, Mapping[str, Any]],
        *,
        preset_said: bool = True,
        context: tuple[int, str] = (0, ""),
        domain_gpus: int = 8,
    ) -> None:
        self.where, self.num_gpus, self.generation = where, num_gpus, generation
        self.domain_gpus = domain_gpus
        self.preset, self.model, self.said, self.preset_said = preset, model, said, preset_said
        self.context = context
        self.assumed: list[Assumed] = []
        self.warnings: list[str] = []
        self._values = {
            section: {**preset.values(section), **said[section]}
            for section in ("parallel", "training", "software")
        }
        usual, own = preset.values("parallel").get("strategy"), said["parallel"].get("strategy")
        if isinstance(usual, Mapping) and isinstance(own, Mapping):
            self._values["parallel"]["strategy"] = {**usual, **own}
        self._values["software"].setdefault("name", preset.name)
        self._specs: dict[str, BaseModel] = {}  # as they stand, while they stand

    @property
    def parallel(self) -> ParallelSpec:
        """Degrees as they stand."""
        return self._spec(ParallelSpec, "parallel")

    @property
    def training(self) -> TrainingSpec:
        """Training as it stands."""
        return self._spec(TrainingSpec, "training")

    @property
    def software(self) -> SoftwareSpec:
        """Kernel choices as they stand."""
        return self._spec(SoftwareSpec, "software")

    def _spec(self, kind: type[Spec], section: str) -> Spec:
        if section not in self._specs:
            self._specs[section] = checked(kind, self._values[section], f"{self.where}: {section}")
        return cast("Spec", self._specs[section])

    def is_said(self, key: str) -> bool:
        """Whether ``section.key`` was said."""
        section, _, name = key.partition(".")
        return name in self.said[section]

    def is_open(self, key: str) -> bool:
        """Whether ``section.key`` was neither said nor chosen yet."""
        return not self.is_said(key) and key not in {one.key for one in self.assumed}

    def is_set(self, key: str) -> bool:
        """Whether ``section.key`` was said or the preset has it."""
        section, _, name = key.partition(".")
        return name in self._values[section]

    def assume(self, key: str, value: Any, why: str) -> None:
        """Set ``section.key``; it is recorded where that changes what was there."""
        section, _, name = key.partition(".")
        if getattr(getattr(self, section), name) != value:
            self._values[section][name] = value
            self._specs.pop(section)
            self.assumed.append(Assumed(key, value, why))

    def choose(self, one: Assumed) -> None:
        """Set what somebody has chosen before the rules are asked."""
        section, _, name = one.key.partition(".")
        self._values[section][name] = one.value
        self._specs.pop(section, None)
        self.assumed.append(one)

    def left(self, key: str, why: str) -> None:
        """Record that ``section.key`` stays as it is, unless it was said or a rule has recorded it."""
        if self.is_open(key):
            section, _, name = key.partition(".")
            self.assumed.append(Assumed(key, getattr(getattr(self, section), name), why))

    def note(self, why: str) -> None:
        """Record what was taken for granted without a key of its own."""
        self.assumed.append(Assumed("", None, why))
