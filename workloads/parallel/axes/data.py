"""Data parallelism: samples; ``dp_shard`` ranks share parameters among them, others hold copies."""

from __future__ import annotations

from simcore.errors import InputError
from workloads.models.model import AnyModel
from workloads.parallel.axis import Axis, all_axes, divides, register
from workloads.parallel.spec import ParallelSpec, TrainingSpec


def _check(_: AnyModel, parallel: ParallelSpec, training: TrainingSpec) -> None:
    if parallel.dp_shard:
        divides("data-parallel ranks", parallel.dp, parallel.dp_shard, "parallel.dp_shard")
    each = training.micro_batch * parallel.batch_ways
    if training.global_batch % each:
        lower = training.global_batch // each * each
        near = f"{lower} or {lower + each}" if lower else str(each)
        ways = [(axis.name, parallel.degree(axis.name)) for axis in all_axes() if axis.splits_batch]
        shown = "".join(f" x {name} {ways}" for name, ways in ways if name == "dp" or ways > 1)
        raise InputError(
            f"training.global_batch={training.global_batch} is no multiple of micro_batch"
            f" {training.micro_batch}{shown} = {each}; nearest: {near}"
        )


register(Axis("dp", _check, splits_batch=True))
