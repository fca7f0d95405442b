"""Tensor parallelism: heads and columns of layers (arXiv 1909.08053; of sequences: 2205.05198)."""

from __future__ import annotations

from simcore.errors import InputError
from workloads.models.model import AnyModel
from workloads.models.spec import ModelSpec
from workloads.parallel.axis import Axis, divides, only_whole, register
from workloads.parallel.spec import ParallelSpec, TrainingSpec


def _check(model: AnyModel, parallel: ParallelSpec, training: TrainingSpec) -> None:
    if not isinstance(model, ModelSpec):
        only_whole(model, "tp", parallel.tp)
        return
    tp = parallel.tp
    divides("attention heads", model.heads, tp, "parallel.tp")
    if tp % model.num_kv_heads:  # fewer heads of keys than ranks: they are copied
        divides("key and value heads", model.num_kv_heads, tp, "parallel.tp")
    divides("columns of the feed-forward block", model.ffn, tp, "parallel.tp")
    if model.moe is not None and model.moe.shared_ffn:
        divides("columns of the shared experts", model.moe.shared_ffn, tp, "parallel.tp")
    if model.mamba is not None:
        divides("state-space heads", model.mamba.heads, tp, "parallel.tp")
        divides("groups of state-space heads", model.mamba.groups, tp, "parallel.tp")
    if model.delta is not None:
        divides("key heads of delta-rule layers", model.delta.key_heads, tp, "parallel.tp")
    if parallel.sequence_parallel and tp > 1:
        for seq in training.sequences(model):
            tokens = seq // parallel.cp
            if tokens % tp:
                lower = max(d for d in range(1, tp) if tokens % d == 0)
                raise InputError(
                    f"parallel.tp={tp} does not divide {tokens} tokens of a context-parallel rank; nearest:"
                    f" parallel.tp={lower}, or parallel.sequence_parallel=false"
                )


register(Axis("tp", _check))
