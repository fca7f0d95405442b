"""A row as the cases to simulate: one where everything is published, a band where something is not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from typing import Any, Final

from simcore.errors import InputError
from simcore.hardware import ClusterSpec, load_cluster
from simcore.records import dataclass
from workloads.jobs import complete
from workloads.jobs.presets import Preset, PublishedRecipe, load_preset, recipe_of, recognise
from workloads.jobs.published.cluster import cluster_of
from workloads.jobs.published.layout import plausible_chunks, said_of_layout
from workloads.jobs.published.model import model_of, told_columns
from workloads.jobs.published.row import RunRow
from workloads.jobs.published.samples import image_words
from workloads.jobs.published.sharding import resharding, sharding_of
from workloads.jobs.published.words import fp8_attention_of, fp8_recipe_of, precision_of, recompute_of
from workloads.models.model import AnyModel
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec
from workloads.parallel.spec import ParallelSpec, TrainingSpec

#: Of more combinations of unpublished inputs than this, the corners are simulated.
MAX_CASES: Final = 4

#: LoRA where a run names it: NeMo's rank (nemo/collections/llm/peft/lora.py, dim = 32), beside the projection
#: to queries, keys and values alone (NVIDIA-NeMo/Megatron-Bridge, Llama 3 performance recipes:
#: peft.target_modules = ["linear_qkv"]; Hugging Face's peft also takes q_proj and v_proj of Llama).
_LORA_RANK: Final = 32
_LORA_TARGETS: Final = "linear_qkv"


@dataclass(frozen=True)
class Case:
    """One run to simulate: a complete job on a cluster.

    ``die`` is the GPU's.  ``assumed`` says what was chosen for inputs that the row leaves open.  ``said`` is
    the description that the job was completed from, as a YAML file would have it; ``assumptions`` and
    ``warnings`` are what completing it took for granted.
    """

    model: AnyModel
    parallel: ParallelSpec
    training: TrainingSpec
    software: SoftwareSpec
    die: str
    cluster: str
    overrides: tuple[tuple[str, str], ...]
    assumed: str = ""
    said: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    assumptions: tuple[str, ...] = field(default=(), compare=False, repr=False)
    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def microbatches(self) -> int:
        """Microbatches of each replica."""
        return self.training.num_microbatches(self.parallel)


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
    if row.counts_samples:
        return _of_samples(row)
    preset = load_preset(recognise(told_columns(row)))
    recipe = _recipe_of(row, preset, model_of(row, preset))
    preset = load_preset(recipe.preset) if recipe else preset
    model = model_of(row, preset)
    open_inputs = _open_inputs(row, preset)
    cases = []
    reason = "no case"
    for values in [{}] if recipe else _combinations(open_inputs):
        try:
            cases.append(_case(row, preset, model, values, recipe))
        except InputError as error:
            reason = str(error)
    if not cases:
        raise InputError(f"{row.id}: {reason}")
    unique = tuple(dict.fromkeys(cases))
    return Band(recipe.name if recipe else preset.name, unique, () if recipe else tuple(open_inputs))


#: Presets that were written from the recipes of 2025, and the GPUs that these were for.
_OF_2025: Final = (("megatron-bridge-deepseek", "h100"),)


def _recipe_of(row: RunRow, preset: Preset, model: ModelSpec) -> PublishedRecipe | None:
    """The recipe that a run of Megatron-Bridge followed, where there is one for its GPU and degrees."""
    if "bridge" not in row.text("source_repo_or_paper").lower():
        return None
    gpu = cluster_of(row)[0]
    if (preset.name, gpu) in _OF_2025 and re.search(r"\b25\.\d\d\b", row.text("source_location")):
        return None
    said = " ".join(row.text(key) for key in ("id", "source_location", "notes", "model")).replace("_", " ")
    kinds = (("peft", r"\b(lora|peft)\b"), ("sft", r"\b(sft|fine-?tuning)\b"))
    kind = next((name for name, words in kinds if re.search(words, said, re.IGNORECASE)), "pretrain")
    parallel = said_of_layout(row, preset, model)
    usual = str(preset.values("training").get("sharding", "zero1"))
    training = {**precision_of(row), **sharding_of(row, usual), **_batches(row, parallel["dp"], {})}
    recipe = fp8_recipe_of(row)
    return recipe_of(model, gpu, row.count("gpus"), kind, training, recipe, parallel)


def _of_samples(row: RunRow) -> Band:
    """A row of images or users: what it leaves open is usual, so that there is one case."""
    preset = load_preset(recognise(row.columns))
    return Band(preset.name, (_completed(row, image_words(row, preset), {}),), ())


def _open_inputs(row: RunRow, preset: Preset) -> dict[str, list[Any]]:
    """Inputs that the row does not give and the values that the preset finds plausible."""
    plausible = {"virtual_stages": plausible_chunks(row), **preset.values("unpublished")}
    if row.text("quality").upper() == "A":
        return {}
    columns = {
        "micro_batch": "micro_batch", "virtual_stages": "vpp", "recompute": "recompute",
        "sequence_parallel": "sp",
    }  # fmt: skip
    found: dict[str, list[Any]] = _splits(row)
    derived = bool(found)
    for key, values in plausible.items():
        if key in columns and row.says(columns[key]) and not (derived and key == "sequence_parallel"):
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


#: Degrees whose product a table may know without their split.
_SPLIT: Final = ("tp", "cp")


def _splits(row: RunRow) -> dict[str, list[Any]]:
    """How tensor and context parallelism may share a product of which a row says that its split is assumed.

    The split that the table assumed comes first.
    """
    if not re.search(r"split tp=\d+ cp=\d+ assumed", row.text("notes")):
        return {}
    tp, cp = (row.count(key, 1) for key in _SPLIT)
    sizes = [size for size in (1, 2, 4, 8) if tp * cp % size == 0]
    others = [(size, tp * cp // size) for size in sizes if size != tp]
    return {"split": [(tp, cp), *others]}


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


def _case(
    row: RunRow, preset: Preset, model: ModelSpec, assumed: Mapping[str, Any], recipe: PublishedRecipe | None
) -> Case:
    content = _content(row, preset, model, assumed)
    for section, settings in (recipe.settings if recipe else {}).items():
        content[section] = {**settings, **content[section]}  # what the row says goes before
    if recipe and content["training"]["sharding"] != recipe.settings["training"]["sharding"]:
        content["training"].pop("offload", None)  # what it makes room for is another layout
    return _completed(row, content, assumed)


def _completed(row: RunRow, content: dict[str, dict[str, Any]], assumed: Mapping[str, Any]) -> Case:
    board, name, overrides = cluster_of(row)
    plain = _plain(board)
    per_node = plain.gpus_per_node
    job = complete(
        content, row.id, num_gpus=-(-row.count("gpus") // per_node) * per_node,
        generation=plain.gpu.generation, domain_gpus=plain.gpus_per_domain,
    )  # fmt: skip
    said = {**content, "cluster": name, "set": dict(overrides)}
    assumptions = ", ".join(f"{key}={value}" for key, value in assumed.items())
    return Case(
        job.model, job.parallel, job.training, job.software, plain.gpu.die, name,
        (*overrides, *job.gpu.items()), assumptions, {key: part for key, part in said.items() if part},
        job.assumptions, job.warnings,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _plain(board: str) -> ClusterSpec:
    return load_cluster(board)


def _content(
    row: RunRow, preset: Preset, model: ModelSpec, assumed: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """The row's words as a description: what a user would write in a YAML file."""
    parallel = said_of_layout(row, preset, model)
    software: dict[str, Any] = {"preset": preset.name, **(_dispatcher(row) if model.moe else {})}
    recipe = fp8_recipe_of(row)
    if recipe:
        software["fp8_recipe"] = recipe
    if re.search(r"cross-entropy fusion on\b", row.text("overlap_notes")):
        software["cross_entropy"] = "fused"  # Transformer Engine's: measured peaks leave no room for another
    if fp8_attention_of(row):
        software["fp8_attention"] = True
    if "split" in assumed:
        parallel |= dict(zip(_SPLIT, assumed["split"], strict=True))
    training = _training(row, preset, model, parallel, assumed)
    for section, keys in (
        (parallel, ("virtual_stages", "sequence_parallel")),
        (training, ("recompute", "sharding", "reshard_after_forward")),
        (software, ("attention",)),
    ):
        section |= {key: assumed[key] for key in keys if key in assumed}
    fields = model.model_dump(exclude_defaults=True)
    length = assumed.get("document_length", row.count("seq"))
    if length < row.count("seq"):
        # A causal document of L tokens: each attends to L / 2 on average.
        fields["sliding_window"] = max(1, length // 2)
    return {
        "model": {"name": model.name, **fields}, "parallel": parallel, "training": training,
        "software": software,
    }  # fmt: skip


def _dispatcher(row: RunRow) -> dict[str, Any]:
    """Token dispatcher where the row names one."""
    said = row.text("overlap_notes").lower()
    if re.search(r"(deep|hybrid)[\s_-]?ep\b|flex dispatcher", said):
        return {"moe_dispatcher": "flex"}
    if re.search(r"alltoall dispatcher|\ba2a\b", said):
        return {"moe_dispatcher": "alltoall"}
    if re.search(r"all-?gather dispatcher", said):
        return {"moe_dispatcher": "allgather"}
    return {}


def _training(
    row: RunRow, preset: Preset, model: ModelSpec, parallel: Mapping[str, Any], assumed: Mapping[str, Any]
) -> dict[str, Any]:
    usual = str(preset.values("training").get("sharding", "ddp"))
    found = precision_of(row) | sharding_of(row, usual)
    found |= recompute_of(row, model.layers // parallel["pp"])
    found |= {"seq": row.count("seq"), **_batches(row, parallel["dp"], assumed)}
    said = f"{row.id} {row.text('model')} {row.text('notes')} {row.text('overlap_notes')}".replace("_", " ")
    if re.search(r"\b(lora|peft)\b", said, re.IGNORECASE):
        found |= {"trainable": "lora", **_adapters(said)}
    notes = row.text("overlap_notes").lower()
    if re.search(
        r"1f1b overlap|a2a.overlap|ep.overlap|expert.parallel.*overlap", notes + row.text("notes").lower()
    ):
        found["ep_overlap"] = True
    none = re.search(r"\bno ((?:[tdp]p)(?:(?:, | or | and |/)[tdp]p)*) (?:comm\w* )?overlap", notes)
    axes = none[1] if none else ""
    if re.search(r"tp overlap off", notes) or "tp" in axes:
        found["tp_overlap"] = False
    if "dp" in axes:
        found |= {"overlap_grad_reduce": False, "overlap_param_gather": False}
    if re.search(r"ub_tp_comm_overlap true|tp comm overlap|async tp", notes):
        found["tp_overlap"] = True
    if re.search(r"(fp8|float8) all-?gather", notes):
        found["param_gather_dtype"] = "fp8"
    return found


def _adapters(said: str) -> dict[str, Any]:
    """Rank and targets of adapters: "LoRA r16", "on attention projections"; NeMo's where unsaid."""
    rank = re.search(r"\brank[\s=:]*(\d+)|\blora\W{0,2}r\s?=?\s?(\d+)\b", said, re.IGNORECASE)
    both = re.search(
        r"attention projections|q\w*kv and proj|linear_qkv.{0,5}linear_proj", said, re.IGNORECASE
    )
    return {
        "lora_rank": int(next(filter(None, rank.groups()))) if rank else _LORA_RANK,
        "lora_targets": "linear_qkv|linear_proj" if both else _LORA_TARGETS,
    }


def _batches(row: RunRow, dp: int, assumed: Mapping[str, Any]) -> dict[str, int]:
    """Micro batch, where it is known, and a global batch of whole micro batches on every replica."""
    samples = row.number("global_batch") / dp
    if samples < 1:
        raise InputError(f"{row.id}: {row.number('global_batch'):g} samples on {dp} replicas")
    micro = int(assumed.get("micro_batch") or row.number("micro_batch", 0))
    micro = min(micro, int(samples))
    whole = max(1, micro)
    found = {"global_batch": int(samples / whole) * whole * dp}
    return found | ({"micro_batch": micro} if micro else {})
