"""Expert parallelism: experts on the ranks that dense layers have for tp, cp and dp (arXiv 2504.14960)."""

from __future__ import annotations

from simcore.errors import InputError
from workloads.models.model import AnyModel
from workloads.models.spec import ModelSpec
from workloads.parallel.axis import Axis, divides, only_whole, register
from workloads.parallel.spec import ParallelSpec, TrainingSpec


def _check(model: AnyModel, parallel: ParallelSpec, _: TrainingSpec) -> None:
    if not isinstance(model, ModelSpec):
        only_whole(model, "ep", parallel.ep)
        return
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
    if stage // etp % ep and stage % ep == 0 and not parallel.etp:
        raise InputError(
            f"parallel.ep={ep} x etp={etp} does not divide {stage} ranks of a pipeline stage (tp x cp x dp):"
            f" experts are cut by tp={etp}, too, as parallel.etp is not said; nearest: parallel.etp=1"
        )
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


register(Axis("ep", _check, is_dense=False))
