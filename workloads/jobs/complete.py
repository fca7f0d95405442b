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
from simcore.outside import inside, json_document, read_text, there
from simcore.records import dataclass
from workloads.jobs.draft import Assumed, Draft
from workloads.jobs.presets import Preset, load_preset, preset_names, read_preset
from workloads.jobs.rules import RULES
from workloads.models.block import BLOCKS
from workloads.models.check import check_model
from workloads.models.checked import checked, value_of
from workloads.models.hugging_face import longest_sequence, model_fields
from workloads.models.listed import BlockModel
from workloads.models.model import AnyModel
from workloads.models.public import (
    MOST_CONTEXT,
    USUAL_CONTEXT,
    context_of,
    is_named,
    model_names,
    named_model,
)
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

_MEGATRON, _TORCH = "megatron-core", "torchtitan-fsdp2"
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
    model, remarks, context = _model(said["model"], preset, where, at["model"])
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


def _check_sections(said: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """InputError for a key that another section has; what a model has depends on its kind."""
    for section in SECTIONS[1:]:
        for key in said[section]:
            known = sections_of(key)
            if known and section not in known:
                raise InputError(f"{where}: unknown key '{section}.{key}'; did you mean '{known[0]}.{key}'?")


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


def _file(name: str, where: str, folder: Path | None) -> Path:
    """The file ``name``: in ``folder``, where a file in it names it."""
    return Path(name) if folder is None else inside(folder, name, where)


def _preset(said: dict[str, dict[str, Any]], where: str, folder: Path | None) -> Preset:
    software = said["software"]
    name = software.pop("software", None)
    name = software.pop("preset", name)
    if name is None:
        name = _usual_preset(said)
    if str(name).endswith(".toml"):
        return read_preset(_file(str(name), where, folder))
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
    return _TORCH if "fsdp" in sharding else _MEGATRON


def _model(
    said: dict[str, Any], preset: Preset, where: str, folder: Path | None
) -> tuple[AnyModel, tuple[str, ...], tuple[int, str]]:
    """The model, warnings of what was said of it, and tokens of its usual sequences with the reason."""
    fields = dict(said)
    source = fields.pop("model", None)
    base: dict[str, Any] = {}
    remarks: tuple[str, ...] = ()
    context = USUAL_CONTEXT, "as most models are trained on"
    if source is not None:
        if not isinstance(source, str):
            raise InputError(f"{where}: model must be a name, not {str(source)[:80]!r}")
        path = _file(source, where, folder)
        if path.suffix == ".json" or there(path):
            config = _read_json(path)
            found, remarks = model_fields(config, str(path))
            base = {**found, "name": _name_of(path)}
            if (longest := longest_sequence(config)) > 0:
                context = min(longest, MOST_CONTEXT), f"{path.name} takes up to {longest:,} tokens"
        elif is_named(source):
            named = named_model(source)
            context = context_of(source), f"sequences that {source} is trained on"
            if not fields and not preset.values("model"):
                return named, (), _context_of_images(named) or context
            base = named.model_dump(exclude_unset=True)
        else:
            raise InputError(f"{where}: unknown model {source!r}{nearest(source, model_names())}")
    if isinstance(fields.get("blocks"), dict) and "blocks" in base:
        fields["blocks"] = _changed_blocks(base["blocks"], fields["blocks"], where)
    if "blocks" in fields or "blocks" in base:
        listed = _listed({**base, **fields}, where)
        return listed, remarks, _context_of_images(listed) or context
    values = {**preset.values("model"), **base, **fields}
    for key in (block.key for block in BLOCKS.values()):
        if isinstance(base.get(key), dict) and isinstance(fields.get(key), dict):
            values[key] = {**base[key], **fields[key]}
    model = checked(ModelSpec, values, f"{where}: model")
    if source is None and model.max_positions:
        context = model.max_positions, "the model's positions"
    return model, remarks, _context_of_images(model) or context


def _context_of_images(model: AnyModel) -> tuple[int, str] | None:
    """Nothing of a list of blocks is as long as a sequence."""
    if not isinstance(model, ModelSpec):
        return 1, "a sample of this model is one thing, no sequence"
    return (model.sequence(1), "an image's patches and its class token") if model.image_size else None


def _changed_blocks(
    blocks: Sequence[Mapping[str, Any]], changes: Mapping[str, Any], where: str
) -> list[dict[str, Any]]:
    """A named model's blocks with changes of some, said by name, kind or place (``blocks.tables.memory``)."""
    found = [dict(block) for block in blocks]
    for key, values in changes.items():
        meant = [
            block
            for number, block in enumerate(found)
            if str(key) in (str(number), block["block"], block.get("name"))
        ]
        if not meant or not isinstance(values, dict):
            known = dict.fromkeys(block.get("name") or block["block"] for block in found)
            raise InputError(f"{where}: model.blocks.{key}: no block to change{nearest(str(key), known)}")
        for block in meant:
            block.update(values)
    return found


def _listed(values: Mapping[str, Any], where: str) -> BlockModel:
    """A list of blocks; ``image_size`` is that of its first block."""
    found = dict(values)
    size = found.pop("image_size", None)
    if size is not None:
        first, *others = found["blocks"]
        found["blocks"] = [{**dict(first), "size": size}, *others]
    return checked(BlockModel, found, f"{where}: model")


def _name_of(path: Path) -> str:
    return path.parent.resolve().name if path.stem == "config" else path.stem


def _read_json(path: Path) -> Mapping[str, Any]:
    content = json_document(read_text(path, "a model's config.json", "json"), str(path))
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected an object, got {type(content).__name__}")
    return content
