"""A row as the cases to simulate: one where everything is published, a band where something is not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from simcore.errors import InputError
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec
from workloads.parallel.spec import ParallelSpec, TrainingSpec
from workloads.presets import Preset, load_preset, recognise
from workloads.published.cluster import cluster_of
from workloads.published.layout import parallel_of, plausible_chunks
from workloads.published.model import model_of, told_columns
from workloads.published.physics import board_group
from workloads.published.row import RunRow
from workloads.published.sharding import resharding, sharding_of
from workloads.published.words import fp8_recipe_of, precision_of, recompute_of

#: Of more combinations of unpublished inputs than this, the corners are simulated.
MAX_CASES: Final = 4

#: LoRA where a run names it: NeMo's rank (nemo/collections/llm/peft/lora.py, dim = 32), beside the projection
#: to queries, keys and values alone (NVIDIA-NeMo/Megatron-Bridge, Llama 3 performance recipes:
#: peft.target_modules = ["linear_qkv"]; Hugging Face's peft also takes q_proj and v_proj of Llama).
_LORA_RANK: Final = 32
_LORA_TARGETS: Final = "linear_qkv"


@dataclass(frozen=True)
class Case:
    """One run to simulate.  ``microbatches`` may be a fraction: the last one of a step can be smaller."""

    model: ModelSpec
    parallel: ParallelSpec
    training: TrainingSpec
    software: SoftwareSpec
    board: str  # key of board_physics()
    cluster: str
    overrides: tuple[tuple[str, str], ...]
    microbatches: float
    assumed: str = ""


@dataclass(frozen=True)
class Band:
    """All cases of a row; more than one where inputs are unpublished (``unpublished`` names them)."""

    preset: str
    cases: tuple[Case, ...]
    unpublished: tuple[str, ...]


def describe(row: RunRow) -> Band:
    """What a row ran, from its columns alone.

    Errors: InputError for what is not modelled or does not divide, with the reason.
    """
    preset = load_preset(recognise(told_columns(row)))
    model = model_of(row, preset)
    open_inputs = _open_inputs(row, preset)
    cases = []
    reason = "no case"
    for values in _combinations(open_inputs):
        try:
            cases.append(_case(row, preset, model, values))
        except (InputError, ValidationError) as error:
            reason = str(error) if isinstance(error, InputError) else str(error.errors()[0]["msg"])
    if not cases:
        raise InputError(f"{row.id}: {reason}")
    unique = tuple(dict.fromkeys(cases))
    return Band(preset.name, unique, tuple(open_inputs))


def _open_inputs(row: RunRow, preset: Preset) -> dict[str, list[Any]]:
    """Inputs that the row does not give and the values that the preset finds plausible."""
    plausible = {"virtual_stages": plausible_chunks(row), **preset.values("unpublished")}
    if row.text("quality").upper() == "A":
        return {}
    columns = {
        "micro_batch": "micro_batch", "virtual_stages": "vpp", "recompute": "recompute",
        "sequence_parallel": "sp",
    }  # fmt: skip
    found: dict[str, list[Any]] = {}
    for key, values in plausible.items():
        if key in columns and row.says(columns[key]):
            continue
        if key == "virtual_stages" and row.count("pp", 1) == 1:
            continue
        if key == "sequence_parallel" and row.count("tp", 1) == 1:
            continue
        if len(values) > 1:
            found[key] = list(values)
    kind = sharding_of(row, preset.values("training").get("sharding", "ddp"))
    if row.count("pp", 1) > 1 and kind.get("sharding", preset.values("training").get("sharding")) == "fsdp2":
        choices = resharding(f"{row.text('zero_fsdp')} {row.text('notes')}", pipeline=True)
        found |= {"reshard_after_forward": list(choices)} if len(choices) > 1 else {}
    if re.search(r"\bpacked\b", row.text("overlap_notes"), re.IGNORECASE):
        # Tokens attend within their own document; its length is published nowhere.
        found["document_length"] = [row.count("seq"), row.count("seq") // 8]
    return found


def _combinations(values: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """All combinations, or, of many, the corners: both ends of the first two inputs.

    Further inputs have their first value, in the last corner their last, and in the first corner either.
    """
    every = [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
    if len(every) <= MAX_CASES:
        return every
    ends = [
        (found[0], found[-1]) if number < 2 else (found[0],) for number, found in enumerate(values.values())
    ]
    corners = [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*ends)]
    last = {key: found[-1] for key, found in values.items()}
    others = {key: last[key] for key in list(values)[2:]}
    return [*corners[:-1], {**corners[0], **others}, last] if others else corners


def _case(row: RunRow, preset: Preset, model: ModelSpec, assumed: Mapping[str, Any]) -> Case:
    parallel = parallel_of(row, preset, model, assumed)
    samples = row.number("global_batch") / parallel.dp
    micro = int(assumed.get("micro_batch") or row.number("micro_batch", 0) or _micro_batch(preset))
    if samples < 1:
        raise InputError(f"{row.id}: {row.number('global_batch'):g} samples on {parallel.dp} replicas")
    micro = max(1, min(micro, int(samples)))
    training = _training(row, preset, assumed, micro, parallel, model.layers)
    length = assumed.get("document_length", training.seq)
    if length < training.seq:
        # A causal document of L tokens: each attends to L / 2 on average.
        model = model.model_copy(update={"sliding_window": max(1, length // 2)})
    software = preset.software()
    if model.moe:
        software = software.model_copy(update=_dispatcher(row))
    recipe = fp8_recipe_of(row)
    if recipe:
        software = software.model_copy(update={"fp8_recipe": recipe})
    if training.param_gather_dtype == "fp8":
        # Owners cast their shards before the gather.
        software = software.model_copy(update={"fp8_weight_cast": "never"})
    if "attention" in assumed:
        software = software.model_copy(update={"attention": assumed["attention"]})
    board, name, overrides = cluster_of(row)
    gpu = tuple((f"gpu.{key}", str(value)) for key, value in preset.values("gpu").items())
    said = ", ".join(f"{key}={value}" for key, value in assumed.items())
    return Case(
        model,
        parallel,
        training,
        software,
        board_group(board),
        name,
        (*overrides, *gpu),
        samples / micro,
        said,
    )  # fmt: skip


def _dispatcher(row: RunRow) -> dict[str, Any]:
    """Token dispatcher where the row names one."""
    said = row.text("overlap_notes").lower()
    if re.search(r"deepep|hybridep|flex dispatcher", said):
        return {"moe_dispatcher": "flex"}
    if re.search(r"alltoall dispatcher|\ba2a\b", said):
        return {"moe_dispatcher": "alltoall"}
    if re.search(r"all-?gather dispatcher", said):
        return {"moe_dispatcher": "allgather"}
    return {}


def _micro_batch(preset: Preset) -> int:
    values = preset.values("unpublished").get("micro_batch", [1])
    return int(values[0])


def _training(
    row: RunRow, preset: Preset, assumed: Mapping[str, Any], micro: int, parallel: ParallelSpec, layers: int
) -> TrainingSpec:
    settings = preset.values("training")
    settings |= precision_of(row) | sharding_of(row, settings.get("sharding", "ddp"))
    settings |= recompute_of(row, layers // parallel.pp)
    said = f"{row.id} {row.text('model')} {row.text('notes')} {row.text('overlap_notes')}".replace("_", " ")
    if re.search(r"\b(lora|peft)\b", said, re.IGNORECASE):
        settings |= {"trainable": "lora", "lora_rank": _LORA_RANK, "lora_targets": _LORA_TARGETS}
    if "recompute" in assumed:
        settings["recompute"] = assumed["recompute"]
    if parallel.pp > 1 and settings.get("sharding") == "fsdp2":
        said_so = sharding_of(row, "fsdp2").get("reshard_after_forward", False)
        settings["reshard_after_forward"] = assumed.get("reshard_after_forward", said_so)
    # Interleaved schedules post sends and receives together, whatever the build.
    settings["overlap_p2p"] = parallel.virtual_stages > 1 or parallel.copies > 1
    notes = row.text("overlap_notes").lower()
    if re.search(
        r"1f1b overlap|a2a.overlap|ep.overlap|expert.parallel.*overlap", notes + row.text("notes").lower()
    ):
        settings["ep_overlap"] = True
    if parallel.schedule in ("dualpipe", "dualpipe_v"):
        settings["ep_overlap"] = True  # what the schedule is for
    if re.search(r"tp overlap off|no tp(/dp)? overlap", notes):
        settings["tp_overlap"] = False
    if re.search(r"ub_tp_comm_overlap true|tp comm overlap|async tp", notes):
        settings["tp_overlap"] = True
    settings["tp_overlap"] = bool(settings.get("tp_overlap")) and parallel.sequence_parallel
    if re.search(r"(fp8|float8) all-?gather", notes):
        settings["param_gather_dtype"] = "fp8"
    if settings.get("scatter_gather_p2p") and parallel.sequence_parallel:
        settings["scatter_gather_p2p"] = False
    return TrainingSpec(micro_batch=micro, global_batch=micro * parallel.dp, seq=row.count("seq"), **settings)
