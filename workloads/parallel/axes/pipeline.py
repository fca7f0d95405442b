"""Pipeline parallelism: layers; who does what when is said in ``simcore/graph/schedules``."""

from __future__ import annotations

from simcore.errors import InputError
from workloads.models.listed import BlockModel
from workloads.models.model import AnyModel
from workloads.parallel.axis import Axis, only_whole, register
from workloads.parallel.spec import WHOLE_GRADIENTS, ParallelSpec, TrainingSpec


def _check(model: AnyModel, parallel: ParallelSpec, training: TrainingSpec) -> None:
    if isinstance(model, BlockModel):
        only_whole(model, "pp", parallel.pp)
    virtual = parallel.virtual_stages
    parallel.pipeline.check_chunks(virtual)
    if parallel.pp == 1 and virtual > 1:
        raise InputError(
            f"parallel.virtual_stages={virtual}: model chunks need a pipeline; nearest: virtual_stages=1"
        )
    if parallel.copies > 1 and training.sharding not in WHOLE_GRADIENTS:
        raise InputError(
            f"training.sharding={training.sharding}: {parallel.schedule} keeps two whole copies of the"
            " parameters; nearest: zero1"
        )


register(Axis("pp", _check))
