"""torchtitan's keys and the settings that they are."""

from __future__ import annotations

from typing import Any, Final

from workloads.jobs.complete import Description
from workloads.jobs.launch.options import Option, Said, Settings, Words, number, whole
from workloads.jobs.launch.torchtitan.configs import config_for, config_of

_P: Final = "parallelism."
#: torch's names of schedules; "Interleaved1F1B" is 1F1B with chunks.
SCHEDULES_OF_TORCH: Final = {
    "1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "1f1b", "LoopedBFS": "gpipe",
    "InterleavedZeroBubble": "zero_bubble", "ZBVZeroBubble": "zb_v", "DualPipeV": "dualpipe_v",
}  # fmt: skip
_SINGLE: Final = ("1F1B", "GPipe")


def _read_model(said: Said) -> Settings:
    model = config_of(said).model
    if isinstance(model, str):
        return {"model.model": model}
    return {f"model.{key}": value for key, value in model.items()}


def _write_model(job: Description) -> Words:
    config = config_for(job)
    return {} if config is None else {"module": (config.module,), "config": (config.name,)}


def _read_data(said: Said) -> Settings:
    copies, shard = (
        said.number(f"{_P}data_parallel_replicate_degree", 1),
        said.number(f"{_P}data_parallel_shard_degree", -1),
    )
    found: dict[str, Any] = {"training.sharding": "ddp" if shard == 1 and copies > 1 else "fsdp2"}
    ways = {"default": None, "always": True, "never": False}
    again = said.meant(f"{_P}fsdp_reshard_after_forward", ways, None)
    found["training.reshard_after_forward"] = (
        said.count(f"{_P}pipeline_parallel_degree") == 1 if again is None else again
    )
    if copies > 1 and shard != 1:
        found["parallel.dp_shard"] = _replicas(said) // copies if shard == -1 else shard
    return found


def _replicas(said: Said) -> int:
    inner = 1
    for axis in ("tensor", "pipeline", "context"):
        inner *= said.count(f"{_P}{axis}_parallel_degree")
    return max(1, said.num_gpus // inner)


def _write_data(job: Description) -> Words:
    p = job.parallel
    shard = 1 if job.training.sharding == "ddp" else p.dp_shard or p.dp
    policy = "always" if job.training.reshard_after_forward else "never"
    return {
        f"{_P}data_parallel_replicate_degree": (str(p.dp // shard),),
        f"{_P}data_parallel_shard_degree": (str(shard),),
        f"{_P}fsdp_reshard_after_forward": (policy,),
    }


def _read_batch(said: Said) -> Settings:
    local, pp = said.number("training.local_batch_size", 8), said.count(f"{_P}pipeline_parallel_degree")
    batch = said.number("training.global_batch_size", -1)
    replicas = _replicas(said)
    if batch <= 0:
        batch = local * replicas
    if pp > 1 and batch > local * replicas:
        said.notes.append("gradients of several runs of the pipeline are accumulated: taken as one long run")
    micro = said.number(f"{_P}pipeline_parallel_microbatch_size", 1) if pp > 1 else local
    return {
        "training.micro_batch": micro, "training.global_batch": batch,
        "training.seq": said.number("training.seq_len", 2048),
    }  # fmt: skip


def _write_batch(job: Description) -> Words:
    training, p = job.training, job.parallel
    found = {
        "training.global_batch_size": (str(training.global_batch),),
        "training.seq_len": (str(training.seq),),
    }
    if p.pp == 1:
        return {**found, "training.local_batch_size": (str(training.micro_batch),)}
    local = training.global_batch // p.dp
    return {
        **found, "training.local_batch_size": (str(local),),
        f"{_P}pipeline_parallel_microbatch_size": (str(training.micro_batch),),
    }  # fmt: skip


def _read_pipeline(said: Said) -> Settings:
    pp = said.count(f"{_P}pipeline_parallel_degree")
    if pp == 1:
        return {"parallel.pp": 1}
    word = said.text(f"{_P}pipeline_parallel_schedule", "1F1B")
    schedule = said.meant(f"{_P}pipeline_parallel_schedule", SCHEDULES_OF_TORCH, "1f1b")
    layers = config_of(said).spec().layers
    first, last = (
        said.number(f"{_P}pipeline_parallel_{end}_stage_less_layers", 1) for end in ("first", "last")
    )
    each = said.number(f"{_P}pipeline_parallel_layers_per_stage", 0)
    stages = -(-(layers + first + last) // each) if each > 0 else pp * (1 if word in _SINGLE else 2)
    found: dict[str, Any] = {"parallel.pp": pp, "parallel.schedule": schedule}
    if not 0 <= min(first, last) <= max(first, last) <= layers or stages % pp or stages > 3 * layers:
        raise said.wrong(
            f"{_P}pipeline_parallel_layers_per_stage", f"{stages} stages of {layers} layers and {pp} ranks"
        )
    return {**found, "parallel.virtual_stages": stages // pp, **_dealt(layers, stages, first, last)}


def _dealt(layers: int, stages: int, first: int, last: int) -> Settings:
    """Layers of stages: the ends weigh as so many; what is left over goes to the first stages, one each."""
    ends = {"parallel.embedding_as_layer": first == 1, "parallel.head_as_layer": last == 1}
    least, more = divmod(layers + first + last, stages)
    counts = [least + (stage < more) for stage in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    if not more and {first, last} <= {0, 1}:
        return {**ends, "parallel.stage_layers": ()}
    return {**dict.fromkeys(ends, False), "parallel.stage_layers": tuple(counts)}


def _write_pipeline(job: Description) -> Words:
    p = job.parallel
    found: dict[str, tuple[str, ...]] = {f"{_P}pipeline_parallel_degree": (str(p.pp),)}
    if p.pp == 1:
        return found
    chunks = p.virtual_stages
    kind = "1f1b" if p.schedule == "interleaved" else p.schedule
    words = [word for word, meaning in SCHEDULES_OF_TORCH.items() if meaning == kind]
    if words:
        word = words[-1] if chunks > 1 else words[0]
        found[f"{_P}pipeline_parallel_schedule"] = (word,)
    first, last = int(p.embedding_as_layer), int(p.head_as_layer)
    if p.stage_layers:  # some are dealt as they would be with other weights of the ends
        weights = [(first, last) for first in range(3) for last in range(3)]
        dealt = [
            _dealt(job.transformer.layers, p.pp * chunks, *ends)["parallel.stage_layers"] for ends in weights
        ]
        first, last = weights[dealt.index(p.stage_layers)] if p.stage_layers in dealt else (1, 1)
    found[f"{_P}pipeline_parallel_first_stage_less_layers"] = (str(first),)
    found[f"{_P}pipeline_parallel_last_stage_less_layers"] = (str(last),)
    each = -(-(job.transformer.layers + first + last) // (p.pp * chunks))
    return {**found, f"{_P}pipeline_parallel_layers_per_stage": (str(each),)}


def _read_experts(said: Said) -> Settings:
    if config_of(said).spec().moe is None:
        return {}
    ep = said.number(f"{_P}expert_parallel_degree", 1)
    etp = said.number(f"{_P}expert_tensor_parallel_degree", 1)
    return {"parallel.ep": ep, "parallel.etp": etp if ep > 1 else 0}


def _write_experts(job: Description) -> Words:
    return {f"{_P}expert_parallel_degree": (str(job.parallel.ep),)} if job.transformer.moe is not None else {}


def _read_recompute(said: Said) -> Settings:
    kinds = {"none": "none", "full": "full", "selective": "ops"}
    how = said.meant("activation_checkpoint.mode", kinds, "ops")
    option = said.text("activation_checkpoint.selective_ac_option", "op")
    if how != "ops" or option == "op":
        return {"training.recompute": how, "training.recompute_layers": -1}
    each = whole(option)
    if each is None or not 0 < each < 10_000:
        raise said.wrong("activation_checkpoint.selective_ac_option", "op, or each n-th layer")
    stages = max(1, said.count(f"{_P}pipeline_parallel_degree"))
    layers = config_of(said).spec().layers // stages // each
    said.notes.append(f"each {option}. layer is computed again: taken as {layers} of each stage")
    return {"training.recompute": "full", "training.recompute_layers": layers}


def _write_recompute(job: Description) -> Words:
    words = {"none": "none", "full": "full", "ops": "selective"}
    return {"activation_checkpoint.mode": (words.get(job.training.recompute, "selective"),)}


def _read_precision(said: Said) -> Settings:
    converters = [word for text in said.words.get("model.converters", ()) for word in text.split(",")]
    others = [word for word in converters if word not in ("float8", "")]
    if others:
        said.notes.append(f"model.converters: taken as if without {', '.join(others)[:80]}")
    kinds = {"bfloat16": "bf16", "float32": "fp32"}
    wide = said.meant("training.mixed_precision_param", kinds, "bf16")
    if "float8" not in converters:
        return {"training.precision": wide, "training.param_gather_dtype": wide}
    narrow = said.truth("quantize.linear.float8.enable_fsdp_float8_all_gather", default=False)
    recipes = {"tensorwise": "current", "rowwise": "rowwise"}
    recipe = said.meant("quantize.linear.float8.recipe_name", recipes, "current")
    return {
        "training.precision": "fp8", "training.param_gather_dtype": "fp8" if narrow else wide,
        "software.fp8_recipe": recipe,
    }  # fmt: skip


def _write_precision(job: Description) -> Words:
    return {
        "training.mixed_precision_param": ("float32" if job.training.precision == "fp32" else "bfloat16",)
    }


def _read_overlap(said: Said) -> Settings:
    new = said.truth("compile.enable_async_tensor_parallel", default=False)
    old = said.truth(f"{_P}enable_async_tensor_parallel", default=False)
    return {"training.tp_overlap": new or old}


def _write_overlap(job: Description) -> Words:
    return {"compile.enable_async_tensor_parallel": (str(job.training.tp_overlap).lower(),)}


def _read_sequence(said: Said) -> Settings:
    if said.count(f"{_P}tensor_parallel_degree") == 1:
        return {}
    return {"parallel.sequence_parallel": said.truth(f"{_P}enable_sequence_parallel", default=True)}


def _write_sequence(job: Description) -> Words:
    on = job.parallel.sequence_parallel
    return {f"{_P}enable_sequence_parallel": (str(on).lower(),)} if job.parallel.tp > 1 else {}


def compiles(words: Words) -> bool:
    """Whether the blocks of the model are compiled."""
    components = ",".join(words.get("compile.components", ("model",)))
    return words.get("compile.enable", ("false",))[0].lower() == "true" and "model" in components


def _read_compiled(said: Said) -> Settings:
    said.truth("compile.enable", default=False)
    found: dict[str, Any] = {"software.compiled": compiles(said.words)}
    if "config" in said.words:  # of 0.3.0, which captures what it can
        off = said.truth("training.disable_cuda_graphs", default=False)
        found["software.cuda_graphs"] = not off and said.count(f"{_P}pipeline_parallel_degree") == 1
    return found


def _write_compiled(job: Description) -> Words:
    graphs = job.software.cuda_graphs
    return {
        "compile.enable": (str(job.software.compiled).lower(),),
        "training.disable_cuda_graphs": (str(not graphs).lower(),),
    }


TABLE: Final = (
    Option(("module", "config", "model.name", "model.flavor"), _read_model, _write_model),
    number(f"{_P}tensor_parallel_degree", "parallel.tp", 1, always=True),
    number(f"{_P}context_parallel_degree", "parallel.cp", 1, always=True),
    Option((f"{_P}enable_sequence_parallel",), _read_sequence, _write_sequence),
    Option(
        tuple(
            f"{_P}{name}"
            for name in (
                "data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward",
            )
        ),
        _read_data, _write_data,
    ),
    Option(
        tuple(
            f"{_P}pipeline_parallel_{name}"
            for name in (
                "degree", "schedule", "first_stage_less_layers", "last_stage_less_layers", "layers_per_stage",
            )
        ),
        _read_pipeline, _write_pipeline,
    ),
    Option(
        (f"{_P}expert_parallel_degree", f"{_P}expert_tensor_parallel_degree"), _read_experts, _write_experts
    ),
    Option(
        (
            "training.local_batch_size", "training.global_batch_size", "training.seq_len",
            f"{_P}pipeline_parallel_microbatch_size",
        ),
        _read_batch, _write_batch,
    ),
    Option(
        ("activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"),
        _read_recompute, _write_recompute,
    ),
    Option(
        (
            "training.mixed_precision_param", "model.converters",
            "quantize.linear.float8.enable_fsdp_float8_all_gather", "quantize.linear.float8.recipe_name",
        ),
        _read_precision, _write_precision,
    ),
    Option(
        ("compile.enable_async_tensor_parallel", f"{_P}enable_async_tensor_parallel"),
        _read_overlap, _write_overlap,
    ),
    Option(
        ("compile.enable", "compile.components", "training.disable_cuda_graphs"),
        _read_compiled, _write_compiled,
    ),
)  # fmt: skip
