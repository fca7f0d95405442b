"""Whether a job can be laid out as described.  Each refusal names the rule and the nearest valid value."""

from __future__ import annotations

from typing import Final

from simcore.errors import InputError, nearest
from simcore.graph.size import refuse_too_large
from simcore.outside import found_in
from workloads.models.listed import KINDS, BlockModel
from workloads.models.model import AnyModel
from workloads.models.offload import OF_EXPERTS
from workloads.models.pieces import LayerClass, ModelPieces
from workloads.models.recompute import RecomputeModule
from workloads.models.spec import ModelSpec
from workloads.parallel.axis import AXES, ORDER, all_axes
from workloads.parallel.spec import ParallelSpec, TrainingSpec

#: More leave a schedule any memory.
MOST_MICROBATCHES = 1 << 16


def check_job(model: AnyModel, parallel: ParallelSpec, training: TrainingSpec) -> None:
    """InputError for degrees that cannot be; layers and microbatches are checked where they are dealt."""
    _check_size(model, parallel, training)
    check_order(parallel)
    _check_recomputed(model, training)
    _check_strategy(model, parallel, training)
    _check_offloaded(model, training)
    for axis in all_axes():
        axis.check(model, parallel, training)


def _check_size(model: AnyModel, parallel: ParallelSpec, training: TrainingSpec) -> None:
    count = training.global_batch // (training.micro_batch * parallel.batch_ways)
    if count > MOST_MICROBATCHES:
        most = MOST_MICROBATCHES * training.micro_batch * parallel.batch_ways
        raise InputError(
            f"training.global_batch={training.global_batch}: {count} microbatches are more than can be"
            f" simulated; nearest: {most}"
        )
    # The least that any layer does for a microbatch, forwards and backwards, are so many ops.
    ops = 16 * model.num_layers * max(count, 1)
    refuse_too_large(f"model {model.name!r}", ranks=parallel.world_size, ops=ops)
    if training.recompute_layers > (layers := model.num_layers):
        raise InputError(
            f"training.recompute_layers={training.recompute_layers}: the model has {layers} layers;"
            f" nearest: {layers}, or -1 for all"
        )
    if parallel.dp % parallel.norm_group:
        near = max(size for size in range(1, parallel.norm_group) if parallel.dp % size == 0)
        raise InputError(
            f"parallel.norm_group={parallel.norm_group} does not divide dp={parallel.dp}; nearest: {near}"
        )
    if training.trainable == "lora" and not training.lora_rank:
        raise InputError("training.lora_rank=0: adapters have at least one row; nearest: 1")
    if training.trainable == "all" and training.lora_rank:
        raise InputError(
            f"training.lora_rank={training.lora_rank} where all parameters train; nearest: 0, or"
            " training.trainable=lora"
        )
    if training.trainable not in ("all", "none", "lora"):
        found_in(training.trainable, (), "training.trainable")
    if training.frozen and isinstance(model, ModelSpec):
        raise InputError(
            f"training.frozen: classes of layers are frozen of lists of blocks, {model.name!r} is a"
            " transformer; nearest: training.trainable, a regular expression over parameter names"
        )


def _check_strategy(model: AnyModel, parallel: ParallelSpec, training: TrainingSpec) -> None:
    strategy, ranks = parallel.strategy, parallel.world_size
    if not strategy.is_said:
        return
    if isinstance(model, ModelSpec):
        raise InputError(
            f"parallel.strategy: {model.name!r} is a transformer, whose degrees say who shares what; nearest:"
            " parallel.tp, parallel.dp_shard and training.sharding"
        )
    assert isinstance(model, BlockModel)
    local = min(strategy.local or 8, ranks)
    if ranks % local:
        near = max(size for size in range(1, local + 1) if ranks % size == 0)
        raise InputError(f"strategy.local={local} does not divide {ranks} ranks; nearest: {near}")
    layers: LayerClass
    for layers in ("dense", "transformer"):
        if "tp" in (strategy.words(layers) or ()) and not any(
            KINDS[block.block].splits and KINDS[block.block].layer_class == layers for block in model.blocks
        ):
            raise InputError(
                f"strategy.{layers}={getattr(strategy, layers)}: {model.name!r} has no {layers} layers whose"
                f" products split; nearest: strategy.{layers}=fsdp"
            )
    if strategy.has_levels and training.sharding != "ddp":
        raise InputError(
            f"training.sharding={training.sharding} beside strategies of classes, which say what is in"
            " shards; nearest: strategy.dense=fsdp"
        )


def _check_recomputed(model: AnyModel, training: TrainingSpec) -> None:
    if not isinstance(model, ModelSpec):
        if training.recompute_modules:
            raise InputError(
                f"training.recompute_modules: {model.name!r} is a list of blocks, of which none has modules"
                " that may run again alone; nearest: training.recompute=full"
            )
        return
    there = recomputable(model)
    for name in training.recompute_modules:
        if name not in there:
            close = "core_attn" if name == "mla_up_proj" else "moe" if "moe" in there else "mlp"
            raise InputError(
                f"training.recompute_modules: {model.name!r} has no {name}, which is of {_PARTS[name]};"
                f" nearest: {close}, of {', '.join(there)}"
            )


#: What models have that have these modules.
_PARTS: Final[dict[RecomputeModule, str]] = {
    "moe_act": "experts", "mla_up_proj": "latent attention", "shared_experts": "shared experts",
    "mlp": "layers without experts", "moe": "experts",
}  # fmt: skip


def recomputable(model: ModelSpec) -> tuple[RecomputeModule, ...]:
    """Modules of ``model`` that may run again alone, those that take the least time first, about."""
    sparse = [model.has_experts(index) for index in range(model.layers)]
    shares = model.moe is not None and model.moe.shared_ffn > 0
    there: dict[RecomputeModule, bool] = {
        "layernorm": True, "moe_act": any(sparse), "mla_up_proj": model.mla is not None, "core_attn": True,
        "shared_experts": any(sparse) and shares, "mlp": _has_dense(model, sparse), "moe": any(sparse),
    }  # fmt: skip
    return tuple(name for name, has in there.items() if has)


def _has_dense(model: ModelSpec, sparse: list[bool]) -> bool:
    return "-" in model.layer_pattern if model.layer_pattern else not all(sparse)


def _check_offloaded(model: AnyModel, training: TrainingSpec) -> None:
    if training.optimizer_offload and (
        training.optimizer != "adam"
        or training.engine != "megatron"
        or training.sharding not in ("ddp", "zero1")
    ):
        raise InputError(
            f"training.optimizer_offload={training.optimizer_offload:g}: the host updates what"
            " Adam of Megatron-Core leaves it, not"
            f" {training.optimizer} with sharding={training.sharding} of {training.engine}; nearest:"
            " training.sharding=zero1"
        )
    if not isinstance(model, ModelSpec) or model.moe is not None:
        return
    lacking = [name for name in training.offload if name in OF_EXPERTS]
    if lacking:
        raise InputError(
            f"training.offload: {model.name!r} has no experts, whose {lacking[0]} could wait in the host's"
            " memory; nearest: core_attn, or layer for all that a layer keeps"
        )


def check_trains(training: TrainingSpec, pieces: ModelPieces) -> None:
    """InputError when what shall train is no parameter of the model."""
    if training.trainable in ("all", "none"):
        return
    parameters = [parameter for piece in pieces.all_pieces for parameter in piece.parameters]
    if any(parameter.trainable for parameter in parameters):
        return
    if training.trainable == "lora":
        raise InputError(
            f"training.lora_targets={training.lora_targets!r} matches no linear layer; they are called"
            " linear_qkv, linear_proj, linear_fc1, linear_fc2 and the like"
        )
    first = ", ".join(list(dict.fromkeys(parameter.name for parameter in parameters))[:4])
    raise InputError(
        f"training.trainable={training.trainable!r} matches no parameter; they are called {first} and so on,"
        " or say all, none or lora"
    )


def check_order(parallel: ParallelSpec) -> None:
    """InputError for an order that does not name each axis once, with the nearest."""
    if sorted(parallel.axes) != sorted(AXES):
        for axis in parallel.axes:
            if axis not in AXES:
                raise InputError(f"parallel.order: unknown axis {axis!r}{nearest(axis, AXES)}")
        raise InputError(
            f"parallel.order {parallel.order!r} must name each of {', '.join(ORDER.split('-'))} once;"
            f" Megatron's is {ORDER}"
        )
