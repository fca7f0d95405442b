"""Whether a job can be laid out as described.  Each refusal names the rule and the nearest valid value."""

from __future__ import annotations

import re

from simcore.errors import InputError, nearest
from workloads.models.pieces import ModelPieces
from workloads.models.spec import ModelSpec
from workloads.parallel.spec import ParallelSpec, TrainingSpec

_AXES = ("tp", "cp", "ep", "dp", "pp")

#: Largest values: beyond them flops and bytes of a step leave 64-bit integers, or a schedule any memory.
_MOST = {
    "model": {"layers": 10_000, "hidden": 1 << 20, "heads": 1 << 14, "ffn": 1 << 22, "vocab": 1 << 24},
    "parallel": {"pp": 1024, "virtual_stages": 1024},
    "training": {"micro_batch": 1 << 16, "seq": 1 << 24},
}
_MOST_MICROBATCHES = 1 << 16


def check_job(model: ModelSpec, parallel: ParallelSpec, training: TrainingSpec) -> None:
    """InputError for degrees that cannot be; layers and microbatches are checked where they are dealt."""
    _check_size(model, parallel, training)
    _check_order(parallel)
    _check_tensor(model, parallel, training)
    _check_context(model, parallel, training)
    _check_experts(model, parallel)
    _check_pipeline(parallel)
    _check_data(parallel, training)


def _check_size(model: ModelSpec, parallel: ParallelSpec, training: TrainingSpec) -> None:
    for section, spec in (("model", model), ("parallel", parallel), ("training", training)):
        for key, most in _MOST[section].items():
            value = getattr(spec, key)
            if value > most:
                raise InputError(f"{section}.{key}={value} is more than can be simulated; nearest: {most}")
    count = training.global_batch // (training.micro_batch * parallel.dp)
    if count > _MOST_MICROBATCHES:
        most = _MOST_MICROBATCHES * training.micro_batch * parallel.dp
        raise InputError(
            f"training.global_batch={training.global_batch}: {count} microbatches are more than can be"
            f" simulated; nearest: {most}"
        )
    if training.recompute_layers > (layers := model.layers + model.decoder_layers):
        raise InputError(
            f"training.recompute_layers={training.recompute_layers}: the model has {layers} layers;"
            f" nearest: {layers}, or -1 for all"
        )
    if training.trainable == "lora" and not training.lora_rank:
        raise InputError("training.lora_rank=0: adapters have at least one row; nearest: 1")
    if training.trainable == "all" and training.lora_rank:
        raise InputError(
            f"training.lora_rank={training.lora_rank} where all parameters train; nearest: 0, or"
            " training.trainable=lora"
        )
    try:
        re.compile(training.trainable)
    except re.error as error:
        raise InputError(
            f"training.trainable={training.trainable!r} is no regular expression: {error}"
        ) from None


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


def divides(what: str, value: int, degree: int, axis: str) -> None:
    """InputError unless ``degree`` divides ``value``; the nearest degrees that do are named."""
    if value % degree:
        lower = max(d for d in range(1, degree) if value % d == 0)
        upper = next((d for d in range(degree + 1, value + 1) if value % d == 0), None)
        near = f"{axis}={lower}" + (f" or {upper}" if upper else "")
        raise InputError(f"{axis}={degree} does not divide {value} {what}; nearest: {near}")


def _check_order(parallel: ParallelSpec) -> None:
    if sorted(parallel.axes) != sorted(_AXES):
        for axis in parallel.axes:
            if axis not in _AXES:
                raise InputError(f"parallel.order: unknown axis {axis!r}{nearest(axis, _AXES)}")
        raise InputError(
            f"parallel.order {parallel.order!r} must name each of {', '.join(_AXES)} once; Megatron's is"
            " tp-cp-ep-dp-pp"
        )


def _check_tensor(model: ModelSpec, parallel: ParallelSpec, training: TrainingSpec) -> None:
    tp = parallel.tp
    divides("attention heads", model.heads, tp, "parallel.tp")
    if tp % model.num_kv_heads:  # fewer heads of keys than ranks: they are copied
        divides("key and value heads", model.num_kv_heads, tp, "parallel.tp")
    divides("columns of the feed-forward block", model.ffn, tp, "parallel.tp")
    if parallel.sequence_parallel and tp > 1:
        for seq in _sequences(model, training):
            tokens = seq // parallel.cp
            if tokens % tp:
                lower = max(d for d in range(1, tp) if tokens % d == 0)
                raise InputError(
                    f"parallel.tp={tp} does not divide {tokens} tokens of a context-parallel rank; nearest:"
                    f" parallel.tp={lower}, or parallel.sequence_parallel=false"
                )


def _sequences(model: ModelSpec, training: TrainingSpec) -> tuple[int, ...]:
    """Tokens of a sample: an encoder-decoder has two sequences, an image its patches and a class token."""
    seq = model.sequence(training.seq)
    return (seq, training.decoder_seq or seq) if model.decoder_layers else (seq,)


def _check_context(model: ModelSpec, parallel: ParallelSpec, training: TrainingSpec) -> None:
    cp = parallel.cp
    if cp == 1:
        return
    for seq in _sequences(model, training):
        divides("tokens of a sequence", seq, cp, "parallel.cp")
    if parallel.cp_style == "ulysses":
        divides("attention heads of a rank", model.heads // parallel.tp, cp, "parallel.cp")


def _check_experts(model: ModelSpec, parallel: ParallelSpec) -> None:
    ep, etp = parallel.ep, parallel.etp or parallel.tp
    if model.moe is None:
        if ep > 1:
            raise InputError(f"parallel.ep={ep}: the model has no experts; nearest: parallel.ep=1")
        return
    divides("experts", model.moe.num_experts, ep, "parallel.ep")
    divides("columns of an expert", model.moe.ffn, etp, "parallel.etp")
    stage = parallel.tp * parallel.cp * parallel.dp
    if etp > 1:
        divides("ranks of a pipeline stage (tp x cp x dp)", stage, etp, "parallel.etp")
    divides("ranks of a pipeline stage (tp x cp x dp) by etp", stage // etp, ep, "parallel.ep")
    if parallel.pp > 1 and parallel.axes[-1] != "pp":
        inner = {"tp": parallel.tp, "cp": parallel.cp, "dp": parallel.dp}
        ahead = parallel.axes[: parallel.axes.index("pp")]
        dense = 1
        for axis in ahead:
            dense *= inner.get(axis, 1)
        sizes = {"tp": etp, "ep": ep, "dp": stage // (etp * ep)}
        folded = 1
        for axis in ahead:
            folded *= sizes.get(axis, 1)
        if dense != folded:
            raise InputError(
                f"parallel.order {parallel.order!r}: dense layers have {dense} ranks inside a stage's stride,"
                f" experts {folded}; put pp last"
            )


def _check_pipeline(parallel: ParallelSpec) -> None:
    virtual, schedule = parallel.virtual_stages, parallel.schedule
    if parallel.placement == "v" and virtual != 2:
        raise InputError(
            f"parallel.virtual_stages={virtual}: {schedule} has two chunks per stage; nearest: 2"
        )
    if parallel.placement == "both_ways" and virtual != 1:
        raise InputError(
            f"parallel.virtual_stages={virtual}: {schedule} has one chunk of each copy per stage; nearest: 1"
        )
    if parallel.pp == 1 and virtual > 1:
        raise InputError(
            f"parallel.virtual_stages={virtual}: model chunks need a pipeline; nearest: virtual_stages=1"
        )


def _check_data(parallel: ParallelSpec, training: TrainingSpec) -> None:
    if parallel.copies > 1 and training.sharding not in ("ddp", "zero1"):
        raise InputError(
            f"training.sharding={training.sharding}: {parallel.schedule} keeps two whole copies of the"
            " parameters; nearest: zero1"
        )
    if parallel.dp_shard:
        divides("data-parallel ranks", parallel.dp, parallel.dp_shard, "parallel.dp_shard")
    each = training.micro_batch * parallel.dp
    if training.global_batch % each:
        lower = training.global_batch // each * each
        near = f"{lower} or {lower + each}" if lower else str(each)
        raise InputError(
            f"training.global_batch={training.global_batch} is no multiple of micro_batch"
            f" {training.micro_batch} x dp {parallel.dp} = {each}; nearest: {near}"
        )
