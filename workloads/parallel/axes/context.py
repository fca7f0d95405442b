"""Context parallelism: tokens of a sequence, attended to over all ranks (``models/context_parallel.py``)."""

from __future__ import annotations

from workloads.models.model import AnyModel
from workloads.models.spec import ModelSpec
from workloads.parallel.axis import Axis, divides, only_whole, register
from workloads.parallel.spec import ParallelSpec, TrainingSpec


def _check(model: AnyModel, parallel: ParallelSpec, training: TrainingSpec) -> None:
    if not isinstance(model, ModelSpec):
        only_whole(model, "cp", parallel.cp)
        return
    cp = parallel.cp
    if cp == 1:
        return
    for seq in training.sequences(model):
        divides("tokens of a sequence", seq, cp, "parallel.cp")
    if parallel.cp_style == "ulysses":
        divides("attention heads of a rank", model.heads // parallel.tp, cp, "parallel.cp")
    if model.mamba is not None:
        divides("state-space heads of a rank", model.mamba.heads // parallel.tp, cp, "parallel.cp")
        groups = model.mamba.groups // parallel.tp
        if cp % groups:  # fewer groups than ranks: they are copied
            divides("groups of state-space heads of a rank", groups, cp, "parallel.cp")
    if model.delta is not None:
        heads = model.delta.key_heads // parallel.tp
        divides("key heads of delta-rule layers of a rank", heads, cp, "parallel.cp")


register(Axis("cp", _check))
