"""From what a user writes to a complete job: preset, model, degrees, and what is assumed for the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from simcore.errors import InputError, nearest
from simcore.graph import Graph
from simcore.graph.schedules import Placement, Schedule
from workloads.descriptions.values import checked, value_of
from workloads.models.hugging_face import model_fields
from workloads.models.public import model_names, named_model
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec
from workloads.parallel.check import check_job, divides
from workloads.parallel.generate import generate, schedule_of
from workloads.parallel.job import FSDP
from workloads.parallel.spec import ParallelSpec, TrainingSpec
from workloads.parallel.stages import even_as_possible
from workloads.presets import Preset, load_preset, preset_names

#: Parts of a description; ``--set SECTION.KEY=VALUE`` changes one key.
SECTIONS: Final = ("model", "parallel", "training", "software")

_MEGATRON, _TORCH = "megatron-core", "torchtitan-fsdp2"


@dataclass(frozen=True)
class Description:
    """A complete job.  ``gpu`` are settings of the GPU that its software decides (``gpu.key`` -> value)."""

    model: ModelSpec
    parallel: ParallelSpec
    training: TrainingSpec
    software: SoftwareSpec
    gpu: Mapping[str, str]
    assumptions: tuple[str, ...]

    def schedule(self) -> tuple[Schedule, Placement]:
        """What each stage does in order, and where model chunks lie.  InputError as :meth:`graph`."""
        check_job(self.model, self.parallel, self.training)
        count = self.training.num_microbatches(self.parallel)
        return schedule_of(self.parallel, count, forward_only=self.training.trainable == "none")

    def graph(self) -> Graph:
        """One step as every rank runs it.  InputError for a layout that cannot be."""
        return generate(self.model, self.parallel, self.training, self.software)


def describe(
    content: Mapping[str, Any], where: str, *, overrides: Mapping[str, str], num_gpus: int, folder: Path
) -> Description:
    """The job that ``content`` (keys :data:`SECTIONS`) and ``overrides`` (``section.key`` -> text) describe.

    ``model`` is a name, a path to a Hugging Face config.json (relative to ``folder``) or fields of
    :class:`ModelSpec`; ``software`` a preset's name, or fields of :class:`SoftwareSpec` with ``preset``.
    What is left open comes from the preset; dp fills ``num_gpus``.
    Errors: InputError for unknown keys and values that cannot be, naming the key and the nearest valid one.
    """
    given = {section: _section(content, section, where) for section in SECTIONS}
    for key, text in overrides.items():
        section, _, name = key.partition(".")
        if not name and section in ("model", "software"):
            given[section][section] = text
        else:
            _put(given[section], name.split("."), value_of(text, key), key)
    preset = _preset(given, where)
    model = _model(given["model"], preset, where, folder)
    notes = [f"software as preset {preset.name} has it: {preset.description}"]
    training = dict(given["training"])
    training = {**preset.values("training"), **training}
    seq = checked(TrainingSpec, training, f"{where}: training").seq
    parallel = _parallel(given["parallel"], preset, where, num_gpus, model.sequence(seq), notes)
    parallel = _dealt(parallel, model, notes)
    training = _training(training, parallel, given["training"], where, notes)
    software = {"name": preset.name, **preset.values("software"), **given["software"]}
    return Description(
        model=model,
        parallel=parallel,
        training=checked(TrainingSpec, training, f"{where}: training"),
        software=checked(SoftwareSpec, software, f"{where}: software"),
        gpu={f"gpu.{key}": f"{value}" for key, value in preset.values("gpu").items()},
        assumptions=tuple(notes),
    )


def sections_of(key: str) -> list[str]:
    """Sections that have a key of that name ("tp": parallel)."""
    specs: tuple[type[BaseModel], ...] = (ModelSpec, ParallelSpec, TrainingSpec, SoftwareSpec)
    return [section for section, spec in zip(SECTIONS, specs, strict=True) if key in spec.model_fields]


def _section(content: Mapping[str, Any], section: str, where: str) -> dict[str, Any]:
    value = content.get(section)
    if value is None:
        return {}
    if section in ("model", "software") and isinstance(value, str):
        return {section: value}
    if not isinstance(value, dict):
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


def _preset(given: dict[str, dict[str, Any]], where: str) -> Preset:
    software = given["software"]
    name = software.pop("software", None)
    name = software.pop("preset", name)
    if name is None:
        sharding = str(given["training"].get("sharding", ""))
        name = _TORCH if sharding.startswith("fsdp") else _MEGATRON
    if name not in preset_names():
        raise InputError(f"{where}: software: unknown preset {name!r}{nearest(str(name), preset_names())}")
    return load_preset(name)


def _model(given: dict[str, Any], preset: Preset, where: str, folder: Path) -> ModelSpec:
    fields = dict(given)
    source = fields.pop("model", None)
    base: dict[str, Any] = {}
    if source is not None:
        path = folder / source
        if path.suffix == ".json" or path.is_file():
            base = {**model_fields(_read_json(path), str(path)), "name": _name_of(path)}
        elif source in model_names():
            base = named_model(source).model_dump(exclude_unset=True)
        else:
            raise InputError(f"{where}: unknown model {source!r}{nearest(source, model_names())}")
    values = {**preset.values("model"), **base, **fields}
    for key in ("moe", "mla"):
        if isinstance(base.get(key), dict) and isinstance(fields.get(key), dict):
            values[key] = {**base[key], **fields[key]}
    return checked(ModelSpec, values, f"{where}: model")


def _name_of(path: Path) -> str:
    return path.parent.resolve().name if path.stem == "config" else path.stem


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected an object, got {type(content).__name__}")
    return content


def _parallel(
    given: Mapping[str, Any], preset: Preset, where: str, num_gpus: int, seq: int, notes: list[str]
) -> ParallelSpec:
    """``seq``: tokens of a sample, which sequence parallelism slices."""
    values = {**preset.values("parallel"), **given}
    key = f"{where}: parallel"
    if values.get("pp", 1) == 1 and "schedule" not in given:
        values.pop("schedule", None)  # the preset's is one of a pipeline
    spec = checked(ParallelSpec, values, key)
    if "sequence_parallel" not in values and spec.tp > 1:
        divides_seq = seq % (spec.cp * spec.tp) == 0
        values["sequence_parallel"] = divides_seq
        notes.append(
            "sequence parallelism goes with tensor parallelism"
            if divides_seq
            else f"no sequence parallelism: tp {spec.tp} does not divide {seq // spec.cp} tokens"
        )
    if "dp" not in values:
        inner = spec.tp * spec.cp * spec.pp
        if inner > num_gpus or num_gpus % inner:
            divides("GPUs of the cluster", num_gpus, inner, "tp x cp x pp")
        values["dp"] = num_gpus // inner
        notes.append(f"data parallelism over what tp, cp and pp leave of {num_gpus} GPUs: dp={values['dp']}")
    full = checked(ParallelSpec, values, key)
    if full.world_size > num_gpus:
        inner = full.world_size // full.dp
        near = f"; nearest: parallel.dp={num_gpus // inner}" if inner <= num_gpus else ""
        raise InputError(
            f"{key}: tp x cp x pp x dp = {full.world_size} ranks, the cluster has {num_gpus} GPUs{near}"
        )
    return full


def _dealt(parallel: ParallelSpec, model: ModelSpec, notes: list[str]) -> ParallelSpec:
    """Layers dealt as evenly as they go both ways (DualPipe), where both ends share their stages' work."""
    stages = parallel.pp * parallel.virtual_stages
    layers = model.layers + model.decoder_layers
    whole = layers + parallel.embedding_as_layer + parallel.head_as_layer
    if parallel.copies == 1 or parallel.stage_layers or whole % stages == 0 or layers < stages:
        return parallel
    dealt = even_as_possible(layers, stages, model.mtp_layers)
    notes.append(f"{layers} layers on {stages} stages: {', '.join(map(str, dealt))}")
    return parallel.model_copy(update={"stage_layers": dealt})


def _training(
    values: dict[str, Any], parallel: ParallelSpec, given: Mapping[str, Any], where: str, notes: list[str]
) -> dict[str, Any]:
    spec = checked(TrainingSpec, values, f"{where}: training")
    if "optimizer_bytes_per_parameter" not in given and not {"optimizer", "precision"}.isdisjoint(given):
        values["optimizer_bytes_per_parameter"] = _optimizer_bytes(spec)
    if spec.sharding == "fsdp2" and parallel.pp > 1 and "reshard_after_forward" not in given:
        # pytorch/torchtitan parallelize_llama.py: "default" does not reshard with pipelines.
        values["reshard_after_forward"] = False
        notes.append(
            "FSDP2 gathers parameters once a step and keeps them, as torchtitan and Llama 3 do with"
            " pipelines; training.reshard_after_forward=true gathers for each microbatch"
        )
    if "global_batch" not in given:
        count = 4 * parallel.pp if parallel.pp > 1 else 1
        values["global_batch"] = count * spec.micro_batch * parallel.dp
        notes.append(f"global batch {values['global_batch']}: {count} microbatches for each replica")
    if "seq" not in given:
        notes.append(f"sequences of {spec.seq} tokens")
    return values


def _optimizer_bytes(spec: TrainingSpec) -> int:
    """Bytes of optimizer state a parameter: Adam's two fp32 moments, and an fp32 copy of 16-bit weights.

    Sharded parameters are fp32 themselves: where Adam keeps states, they count as the copy among them.
    """
    moments = 8 if spec.optimizer == "adam" else 0
    if spec.sharding in FSDP:
        return moments + 4 if moments else 0
    return moments if spec.optimizer == "none" or spec.precision in ("fp32", "tf32") else moments + 4
