"""The rules that complete a job, in the order in which they are asked.

Each fills in keys that were not said, and says why.  None knows who asks: a user's file, a flag or a row of a
table of published runs.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Final

from simcore.errors import InputError
from simcore.memory.lifetimes import PRODUCT_THREADS, product_workspace
from simcore.tables import names
from workloads.jobs.batches import batches, groups_of_microbatches
from workloads.jobs.draft import Assumed, Draft
from workloads.jobs.strategies import (
    inner_level,
    strategies_of_transformers,
    what_goes_with_shards,
    words_of_the_job,
)
from workloads.models.check import nearest_divisors
from workloads.models.local import NARROW
from workloads.models.spec import ModelSpec
from workloads.parallel.axis import divides
from workloads.parallel.job import MOMENTS
from workloads.parallel.spec import FSDP
from workloads.parallel.stages import even_as_possible

Rule = Callable[[Draft], None]
#: Generations whose tensor cores know no bf16 (NVIDIA's whitepapers of V100 and T4).
_WITHOUT_BF16: Final = ("volta", "turing")


def software_is_the_presets(draft: Draft) -> None:
    """Says which framework build stands behind all that is left open."""
    why = f"software as preset {draft.preset.name} has it: {draft.preset.description}"
    if draft.preset_said:
        draft.note(why)
    else:
        draft.assumed.append(Assumed("software.preset", draft.preset.name, why))


def length(draft: Draft) -> None:
    """The length of a sequence: the model's own."""
    tokens, why = draft.context
    if tokens and not draft.is_set("training.seq"):
        draft.assume("training.seq", tokens, why)
    draft.left("training.seq", why or "as nothing else is said")


def precision(draft: Draft) -> None:
    """GPUs without bf16 products train in fp16."""
    if (
        draft.generation in _WITHOUT_BF16
        and draft.training.precision == "bf16"
        and draft.is_open("training.precision")
    ):
        draft.assume("training.precision", "fp16", f"GPUs of generation {draft.generation} have no bf16")


def sequence_parallelism(draft: Draft) -> None:
    """Sequence parallelism goes with tensor parallelism in builds that have it, where it divides."""
    spec = draft.parallel
    if draft.is_set("parallel.sequence_parallel") or spec.tp == 1:
        return
    usual = draft.preset.values("unpublished").get("sequence_parallel", [False])[0]
    tokens = draft.model.sequence(draft.training.seq) // spec.cp
    if not usual:
        why = f"no sequence parallelism: {draft.preset.name} has none unless it is asked for"
    elif tokens % spec.tp:
        why = f"no sequence parallelism: tp {spec.tp} does not divide {tokens} tokens"
        usual = False
    else:
        why = "sequence parallelism goes with tensor parallelism"
    if usual:
        draft.assume("parallel.sequence_parallel", True, why)
    else:
        draft.note(why)


def data_parallelism(draft: Draft) -> None:
    """Data parallelism over what the other degrees leave of the cluster."""
    spec, num_gpus = draft.parallel, draft.num_gpus
    inner = spec.world_size // spec.dp
    others = ["tp", "cp", "pp", *spec.further_degrees]
    if not draft.is_set("parallel.dp"):
        if inner > num_gpus or num_gpus % inner:
            divides("GPUs of the cluster", num_gpus, inner, " x ".join(others))
        dp, names = num_gpus // inner, f"{', '.join(others[:-1])} and {others[-1]}"
        draft.assume("parallel.dp", dp, f"data parallelism over what {names} leave of {num_gpus} GPUs")
    spec = draft.parallel
    if spec.world_size > num_gpus:
        near = f"; nearest: parallel.dp={num_gpus // inner}" if inner <= num_gpus else ""
        raise InputError(
            f"{draft.where}: parallel: {' x '.join(others)} x dp = {spec.world_size} ranks, the cluster has"
            f" {num_gpus} GPUs{near}"
        )


def experts(draft: Draft) -> None:
    """Without expert parallelism experts are split as everything else is."""
    spec = draft.parallel
    if spec.ep == 1 and not draft.is_said("parallel.etp") and spec.etp:
        draft.assume("parallel.etp", 0, "experts are split as dense layers are, as ep is 1")


def layers_on_stages(draft: Draft) -> None:
    """Layers that the stages do not divide: both ends count as layers, or stages are as even as possible.

    Llama-3 405B's 126 layers on 16 stages of 8 chunks (arXiv 2407.21783, section 3.3.2) and 70 on 12 were
    chosen so that embedding and head count as layers.
    """
    spec = draft.parallel
    stages = spec.pp * spec.virtual_stages
    layers = draft.model.num_layers
    if len(draft.training.sequences(draft.model)) > 1 or draft.said["parallel"].keys() & {
        "stage_layers", "embedding_as_layer", "head_as_layer",
    }:  # fmt: skip
        return
    chosen = spec.embedding_as_layer or layers % stages != 0
    as_layers = chosen and (layers + 2) % stages == 0
    even = "embedding and head count as layers, so that stages are even" if as_layers else "stages are even"
    draft.assume("parallel.embedding_as_layer", as_layers, even)
    draft.assume("parallel.head_as_layer", as_layers, even)
    if not as_layers and layers % stages:
        given = even_as_possible(layers, stages, getattr(draft.model, "mtp_layers", 0))
        draft.assume(
            "parallel.stage_layers", given,
            f"{layers} layers on {stages} (virtual) stages: as even as possible, the fewer at the ends",
        )  # fmt: skip


def optimizer_states(draft: Draft) -> None:
    """Bytes of optimizer states follow from optimizer and precision where they are not the preset's."""
    if draft.is_said("training.optimizer_bytes_per_parameter"):
        return
    spec = draft.training
    other = spec.precision != draft.preset.values("training").get("precision", spec.precision)
    if draft.is_said("training.optimizer") or other:
        draft.assume(
            "training.optimizer_bytes_per_parameter", _optimizer_bytes(draft),
            f"states of {spec.optimizer} beside weights in {spec.precision}",
        )  # fmt: skip


def _optimizer_bytes(draft: Draft) -> int:
    """Bytes of optimizer state a parameter: Adam's two fp32 moments, and an fp32 copy of 16-bit weights.

    Sharded parameters are fp32 themselves: where Adam keeps states, they count as the copy among them.
    """
    spec = draft.training
    moments = 4 * MOMENTS[spec.optimizer]
    if spec.sharding in FSDP:
        return moments + 4 if moments else 0
    kept = draft.software.fp8_beside if spec.precision in NARROW else spec.precision
    if spec.precision in NARROW and spec.param_gather_dtype == "fp8":
        kept = "fp8"
    wide = kept in ("fp32", "tf32") or draft.software.autocast
    return moments if spec.optimizer == "none" or wide else moments + 4


#: What is said of recomputation, and of which kind it is.
_OF_RECOMPUTE: Final = (
    ("recompute_modules", "selective"), ("recompute_keeps", "full"), ("recompute_layers", "full"),
)  # fmt: skip


def recomputation(draft: Draft) -> None:
    """Who says what runs again has said how; who said otherwise is told that it counts for nothing."""
    for name, how in _OF_RECOMPUTE:
        value = draft.said["training"].get(name)
        if not value or value == -1 or draft.training.recompute == how:
            continue
        if draft.is_said("training.recompute"):
            draft.warnings.append(
                f"training.{name} is of recompute={how}; with {draft.training.recompute} it is unused"
            )
        else:
            draft.assume("training.recompute", how, f"training.{name} says what runs again")


def fsdp_in_pipelines(draft: Draft) -> None:
    """FSDP2 keeps what it gathered where a pipeline would gather it again for each microbatch."""
    in_pipeline = draft.parallel.pp > 1 and draft.training.sharding == "fsdp2"
    if in_pipeline and not draft.is_said("training.reshard_after_forward"):
        # pytorch/torchtitan parallelize_llama.py: "default" does not reshard with pipelines.
        draft.assume(
            "training.reshard_after_forward", False,
            "FSDP2 gathers once a step and keeps what it has, as torchtitan and Llama 3 do with pipelines",
        )  # fmt: skip


def schedule_of_one_stage(draft: Draft) -> None:
    """A preset's schedule is one of pipelines."""
    if draft.parallel.pp == 1 and not draft.is_said("parallel.schedule"):
        draft.assume("parallel.schedule", "1f1b", "there is no pipeline to schedule")


def overlap_of_messages(draft: Draft) -> None:
    """Schedules with several chunks post sends and receives together, whatever the build; others wait."""
    if not draft.is_said("training.overlap_p2p"):
        ahead = draft.parallel.virtual_stages > 1 or draft.parallel.copies > 1
        why = "schedules with several chunks post messages ahead" if ahead else "each message is waited for"
        draft.assume("training.overlap_p2p", ahead, why)


def exchange_domain(draft: Draft) -> None:
    """An exchange by kernels of its own sends a token once to what NVLink joins."""
    flex = draft.software.moe_dispatcher == "flex" and getattr(draft.model, "moe", None) is not None
    if flex and not draft.is_set("software.moe_exchange_domain") and draft.domain_gpus != 8:
        draft.assume(
            "software.moe_exchange_domain", draft.domain_gpus, f"NVLink joins {draft.domain_gpus} GPUs"
        )


def overlap_of_experts(draft: Draft) -> None:
    """DualPipe is there to hide experts' exchanges behind another microbatch's compute."""
    hides = draft.parallel.pipeline.overlaps_passes
    if hides and getattr(draft.model, "moe", None) is not None and not draft.is_said("training.ep_overlap"):
        draft.assume("training.ep_overlap", True, "what DualPipe is for (arXiv 2412.19437, section 3.2.1)")


def overlap_of_tensor_parallelism(draft: Draft) -> None:
    """Exchanges are split beside products only under sequence parallelism, by buffers of one domain."""
    tp, joins = draft.parallel.tp, draft.domain_gpus
    if draft.training.tp_overlap and draft.num_gpus > joins and joins % tp:
        # TransformerEngine initialize_ub and torch's symmetric memory: peers write into each other's memory.
        joined = f"NVLink joins {joins} GPUs"
        if tp < joins:
            first = joins // tp * tp
            joined += f" of which ranks {first} to {first + tp - 1}, a group of tp={tp}, have {joins - first}"
        if draft.is_said("training.tp_overlap"):
            both = gcd(joins, draft.num_gpus, getattr(draft.model, "heads", 0))
            near = [f"tp={degree}" for degree in nearest_divisors(both, tp) if degree]
            raise InputError(
                f"{draft.where}: training.tp_overlap=True with tp={tp}: user buffers lie within one NVLink"
                f" domain, and {joined}; nearest: {' or '.join(near)}"
            )
        draft.assume("training.tp_overlap", False, f"user buffers lie within one NVLink domain, and {joined}")
    if draft.training.tp_overlap and not draft.parallel.sequence_parallel:
        if draft.is_said("training.tp_overlap") and draft.parallel.tp > 1:
            draft.warnings.append(
                "training.tp_overlap=True without parallel.sequence_parallel: sums of whole activations are"
                " not split beside products, so nothing overlaps"
            )
        draft.assume("training.tp_overlap", False, "no sequence parallelism whose exchanges it would split")


def casts_to_fp8(draft: Draft) -> None:
    """Whose scales fp8 has; parameters gathered in fp8 were cast by their owners, where products read fp8."""
    gathers, precision = draft.training.param_gather_dtype, draft.training.precision
    if precision == "fp8" and not draft.is_set("software.fp8_recipe"):
        draft.left("software.fp8_recipe", "Megatron-core's default: scales from the maxima of steps before")
    if gathers == "fp8" and precision != "fp8" and not draft.is_said("training.param_gather_dtype"):
        wide = {"tf32": "fp32", "nvfp4": "bf16"}.get(precision, precision)
        draft.assume("training.param_gather_dtype", wide, f"products are in {precision}")
    if draft.training.param_gather_dtype == "fp8" and not draft.is_said("software.fp8_weight_cast"):
        draft.assume("software.fp8_weight_cast", "never", "parameters are gathered in fp8: owners cast them")


#: Transformer Engine's own for its products, since Hopper and before (pytorch/module/base.py,
#: get_cublas_workspace_size_bytes).
_ENGINE_WIDE, _ENGINE = (32 << 20) + 1024, 4 << 20
#: Of these one for all products, one for each stream beside which user buffers are exchanged, and one for
#: each stream of grouped products (get_cublas_workspace of pytorch/cpp_extensions/gemm.py).
_EXCHANGE_STREAMS, _EXPERT_STREAMS = 3, 4


def workspaces(draft: Draft) -> None:
    """What libraries keep for products: not a tensor of the program, but of the allocator's memory."""
    if draft.is_set("software.workspace_bytes"):
        return
    software, generation = draft.software, draft.generation or "hopper"
    total = PRODUCT_THREADS * product_workspace(generation, same_bits=software.deterministic)
    if software.transformer_engine:
        one = _ENGINE if generation in ("volta", "ampere", "ada") else _ENGINE_WIDE
        overlaps = draft.training.tp_overlap and draft.parallel.tp > 1
        grouped = getattr(draft.model, "moe", None) is not None and software.moe_grouped_gemm
        total += one * (1 + _EXCHANGE_STREAMS * overlaps + _EXPERT_STREAMS * grouped)
    draft.assume("software.workspace_bytes", total, "what cuBLAS and Transformer Engine keep for products")


def contradictions(draft: Draft) -> None:
    """Warns of what the build does not have, or was never seen to run on; the job is simulated anyway."""
    if draft.training.precision == "int8" and draft.training.trainable != "none":
        draft.warnings.append(
            "training.precision=int8: products of integers are for inference (training.trainable=none);"
            " nobody trains so, and what casts would cost is left out"
        )
    parallel = draft.parallel
    loops = parallel.pipeline.loops and parallel.virtual_stages > 1
    schedule = "none" if parallel.pp == 1 else "interleaved" if loops else parallel.schedule
    asked = {
        "generation": ("GPUs of generation", draft.generation),
        "recompute": ("training.recompute", draft.training.recompute),
        "schedule": ("parallel.schedule", schedule),
    }
    supports = draft.preset.values("supports")
    for key, (called, value) in asked.items():
        known = supports.get(key, [value])
        if (
            value
            and value not in known
            and key == "generation"
            and value not in names("hardware_profiles", "cost")
        ):
            draft.warnings.append(
                f"software preset {draft.preset.name} was not tried on {called}={value}: it ran on"
                f" {', '.join(known)}; simulated all the same"
            )
        elif value and value not in known:
            draft.warnings.append(
                f"{called}={value} and software preset {draft.preset.name} contradict each other: the preset"
                f" {'ran on' if key == 'generation' else 'has'} {', '.join(known)}; simulated all the same"
            )


#: What an answer states of its question beside what rules decide.
_STATED: Final = (
    *(f"parallel.{key}" for key in ("tp", "cp", "pp", "dp", "ep")),
    *(f"training.{key}" for key in ("global_batch", "micro_batch", "precision", "recompute", "sharding")),
)


def what_is_left(draft: Draft) -> None:
    """Records what an answer states of its question and nobody has said."""
    for key in _STATED:
        section, _, name = key.partition(".")
        if not isinstance(draft.model, ModelSpec) and name in ("tp", "cp", "pp", "ep"):
            continue  # a list of blocks is not split along axes of transformers
        of_preset = name in draft.preset.values(section)
        draft.left(key, f"as preset {draft.preset.name} has it" if of_preset else "as nothing else is said")
    if draft.parallel.pp > 1:
        draft.left("parallel.schedule", f"the usual one of preset {draft.preset.name}")
        draft.left("parallel.virtual_stages", "as nothing else is said")


#: All of them, in order: a rule may rely on what those before it have settled.
RULES: Final[tuple[Rule, ...]] = (
    software_is_the_presets,
    length,
    precision,
    words_of_the_job,
    inner_level,
    strategies_of_transformers,
    schedule_of_one_stage,
    sequence_parallelism,
    data_parallelism,
    experts,
    layers_on_stages,
    optimizer_states,
    recomputation,
    fsdp_in_pipelines,
    batches,
    groups_of_microbatches,
    overlap_of_messages,
    overlap_of_experts,
    exchange_domain,
    overlap_of_tensor_parallelism,
    casts_to_fp8,
    what_goes_with_shards,
    workspaces,
    contradictions,
    what_is_left,
)
