"""From what is said of a job to the complete job, by one ordered list of rules for users and published rows.

What is said comes from a YAML file, ``--set``, a Hugging Face config.json, or the columns of a published run
(``workloads/jobs/published``).  Each rule fills in what was left open and says what it assumed and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from simcore.errors import InputError, nearest
from simcore.graph import Graph
from simcore.graph.schedules import Placement, Schedule
from simcore.records import dataclass
from workloads.jobs.draft import Assumed, Draft
from workloads.jobs.other_names import called_otherwise
from workloads.jobs.presets import Preset, load_preset, megatron_build, preset_names, read_preset
from workloads.jobs.rules import RULES
from workloads.jobs.said_model import file_beside, said_model
from workloads.models.check import check_model
from workloads.models.checked import value_of
from workloads.models.listed import BlockModel
from workloads.models.model import AnyModel
from workloads.models.public import is_named, named_model
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec, transformer_of
from workloads.parallel.check import check_job
from workloads.parallel.generate import generate, schedule_of
from workloads.parallel.spec import ParallelSpec, TrainingSpec

#: Parts of a description; ``--set SECTION.KEY=VALUE`` changes one key.
SECTIONS: Final = ("model", "parallel", "training", "software")

_LAYOUT: Final = frozenset(
    f"parallel.{key}"
    for key in (
        "tp", "cp", "pp", "dp", "ep", "etp", "dp_shard", "virtual_stages", "schedule", "stage_layers",
    )
)  # fmt: skip

_TORCH: Final = "torchtitan-fsdp2"
#: Of lists of blocks: with tables, and others.
_TABLES, _IMAGES = "torchrec", "timm"


@dataclass(frozen=True)
class Description:
    """A complete job.  ``gpu`` are settings of the GPU that its software decides (``gpu.key`` -> value).

    ``assumed`` is what the rules took for granted, in their order; ``warnings`` what contradicts itself or
    was never seen to run.  ``asked`` is what :func:`complete` was asked.
    """

    model: AnyModel
    parallel: ParallelSpec
    training: TrainingSpec
    software: SoftwareSpec
    gpu: Mapping[str, str]
    assumed: tuple[Assumed, ...] = ()
    warnings: tuple[str, ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def changed(self, changes: Mapping[str, Any], num_gpus: int | None = None) -> Description:
        """The same question with other values (``section.key`` -> value), completed by the same rules.

        InputError as :func:`complete`.
        """
        asked = dict(self.asked)
        asked["overrides"] = {
            **(asked["overrides"] or {}),
            **{key: option_of(one) for key, one in changes.items()},
        }
        asked["num_gpus"] = num_gpus or asked["num_gpus"]
        if any(key.startswith("parallel.") for key in changes):
            asked["chosen"] = ()  # who says a degree says them all
        return complete(**asked)

    @property
    def transformer(self) -> ModelSpec:
        """The model where it is a transformer, which programs of others train.  InputError where it is
        none.
        """
        return transformer_of(self.model, "this")

    @property
    def assumptions(self) -> tuple[str, ...]:
        """``assumed`` as lines for the record of a run."""
        return tuple(map(str, self.assumed))

    def schedule(self) -> tuple[Schedule, Placement]:
        """What each stage does in order, and where model chunks lie.  InputError as :meth:`graph`."""
        check_job(self.model, self.parallel, self.training)
        count = self.training.num_microbatches(self.parallel)
        return schedule_of(self.parallel, count, forward_only=self.training.trainable == "none")

    def graph(self) -> Graph:
        """One step as every rank runs it.  InputError for a layout that cannot be."""
        return generate(self.model, self.parallel, self.training, self.software)


def option_of(value: Any) -> str:
    """A value as ``--set KEY=...`` takes it."""
    return f"[{','.join(value)}]" if isinstance(value, tuple) else f"{value}"


def complete(
    content: Mapping[str, Any],
    where: str,
    *,
    num_gpus: int,
    generation: str = "",
    domain_gpus: int = 8,
    overrides: Mapping[str, str] | None = None,
    folder: Path | None = None,
    chosen: Sequence[Assumed] = (),
) -> Description:
    """The job that ``content`` (keys :data:`SECTIONS`) and ``overrides`` (``section.key`` -> text) describe.

    ``model`` is a name, a path to a Hugging Face config.json or fields of :class:`ModelSpec`; ``software`` a
    preset's name or TOML file, or fields of :class:`SoftwareSpec` with ``preset``.  Files that ``content``
    names lie in ``folder`` where it is given, those that ``overrides`` name anywhere.
    ``chosen``: what of it somebody has chosen already where it was left open.
    What is left open follows from :data:`RULES` on ``num_gpus`` GPUs of a ``generation``, of which NVLink
    joins ``domain_gpus``: ranks from 0 on, as many after them, and so on.
    Errors: InputError for unknown keys and values that cannot be, naming the key and the nearest valid one.
    """
    said = {section: _section(content, section, where) for section in SECTIONS}
    for key, text in (overrides or {}).items():
        section, _, name = key.partition(".")
        if section not in SECTIONS or (name and not all(name.split("."))):
            raise InputError(f"{key[:80]!r} is no key of {', '.join(SECTIONS)}")
        if not name and section in ("model", "software"):
            said[section][section] = text
        else:
            _put(said[section], name.split("."), value_of(text, key), key)
    _check_sections(said, where)
    given = (overrides or {}).keys()  # by the user, who may name any file
    free = {
        "model": {"model", "model.model"},
        "software": {"software", "software.software", "software.preset"},
    }
    at = {section: None if keys & given else folder for section, keys in free.items()}
    preset_said = bool(said["software"].keys() & {"software", "preset"})
    preset = _preset(said, where, at["software"])
    model, remarks, context = said_model(said["model"], preset, where, at["model"])
    experts = isinstance(model, ModelSpec) and model.moe is not None
    if experts and not preset_said and preset.name == megatron_build(experts=False):
        preset = load_preset(megatron_build(experts=True))
        model, remarks, context = said_model(said["model"], preset, where, at["model"])
    if isinstance(model, ModelSpec):
        check_model(model, f"{where}: model")
    draft = Draft(
        where, num_gpus, generation, preset, model, said, preset_said=preset_said, context=context,
        domain_gpus=domain_gpus,
    )  # fmt: skip
    draft.warnings += remarks
    for one in chosen:
        draft.choose(one)
    for rule in RULES:
        rule(draft)
    return Description(
        model=model,
        parallel=draft.parallel,
        training=draft.training,
        software=draft.software,
        gpu={f"gpu.{key}": f"{value}" for key, value in preset.values("gpu").items()},
        assumed=tuple(draft.assumed),
        warnings=tuple(draft.warnings),
        asked={
            "content": content, "where": where, "num_gpus": num_gpus, "generation": generation,
            "domain_gpus": domain_gpus, "overrides": overrides, "folder": folder, "chosen": chosen,
        },
    )  # fmt: skip


def sections_of(key: str) -> list[str]:
    """Sections that have a key of that name ("tp": parallel)."""
    specs: tuple[type[BaseModel], ...] = (ModelSpec, ParallelSpec, TrainingSpec, SoftwareSpec)
    return [section for section, spec in zip(SECTIONS, specs, strict=True) if key in spec.model_fields]


def meant(name: str) -> str | None:
    """The key (``section.key``) that is so called here or by others; None where none is."""
    for known in (name, name.removesuffix("_size")):
        if sections := sections_of(known):
            return f"{sections[0]}.{known}"
    return called_otherwise(name)


def _check_sections(said: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """InputError for a key that another section has, or that has another name; what a model has depends on
    its kind.
    """
    for section in SECTIONS:
        for key in said[section]:
            other = meant(key) if section != "model" else called_otherwise(key)
            if other and section not in sections_of(key):
                raise InputError(f"{where}: unknown key '{section}.{key}'; did you mean {other!r}?")


def said_keys(content: Mapping[str, Any], overrides: Mapping[str, str]) -> set[str]:
    """Keys of a job (``section.key``) that its file and ``overrides`` say."""
    of_file = {
        f"{section}.{key}"
        for section, values in content.items()
        if isinstance(values, Mapping)
        for key in values
    }
    parallel = content.get("parallel")
    strategy = parallel.get("strategy") if isinstance(parallel, Mapping) else None
    if isinstance(strategy, Mapping):
        of_file |= {f"parallel.strategy.{key}" for key in strategy}
    return of_file | overrides.keys()


def says_layout(said: set[str]) -> bool:
    """Whether keys say how a job is laid out: then what they say is all."""
    return bool(said & _LAYOUT) or any(key.startswith("parallel.strategy") for key in said)


def _section(content: Mapping[str, Any], section: str, where: str) -> dict[str, Any]:
    value = content.get(section)
    if value is None:
        return {}
    if section in ("model", "software") and isinstance(value, str):
        return {section: value}
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {section} must map keys to values, not {value!r}")
    return {str(key): inner for key, inner in value.items()}


def _put(target: dict[str, Any], path: list[str], value: Any, key: str) -> None:
    for part in path[:-1]:
        inner = target.get(part)
        if inner is not None and not isinstance(inner, dict):
            raise InputError(f"{key}: {part} is {inner!r}, it has no keys")
        target[part] = dict(inner or {})
        target = target[part]
    target[path[-1]] = value


def _preset(said: dict[str, dict[str, Any]], where: str, folder: Path | None) -> Preset:
    software = said["software"]
    name = software.pop("software", None)
    name = software.pop("preset", name)
    if name is None:
        name = _usual_preset(said)
    if str(name).endswith(".toml"):
        return read_preset(file_beside(str(name), where, folder))
    if name not in preset_names():
        raise InputError(f"{where}: software: unknown preset {name!r}{nearest(str(name), preset_names())}")
    return load_preset(name)


def _usual_preset(said: Mapping[str, Mapping[str, Any]]) -> str:
    """The build that such models are usually trained by."""
    name, blocks = said["model"].get("model"), said["model"].get("blocks")
    named = named_model(name) if isinstance(name, str) and is_named(name) else None
    if isinstance(named, BlockModel):
        blocks = [block.model_dump() for block in named.blocks]
    if isinstance(blocks, list):
        tables = any(isinstance(one, Mapping) and one.get("block") == "tables" for one in blocks)
        return _TABLES if tables else _IMAGES
    strategy = said["parallel"].get("strategy")
    words = str(strategy.get("transformer", "")) if isinstance(strategy, Mapping) else ""
    sharding = str(said["training"].get("sharding", "")) or words
    return _TORCH if "fsdp" in sharding else megatron_build(experts=False)
