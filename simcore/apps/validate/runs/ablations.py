"""What each piece of physics is worth: rows predicted without it, the die's numbers fitted again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from simcore.apps.fit.runs import ClockCurve, fit
from simcore.apps.measured.runs.cache import StepTimes
from simcore.apps.measured.runs.predict import case_key
from simcore.apps.measured.runs.score import RowScore, predict_cases
from simcore.apps.progress import Countdown
from simcore.hardware import load_cluster
from simcore.hardware.sustained import Sustained
from simcore.records import dataclass
from workloads.jobs.published import Case


@dataclass(frozen=True)
class Ablation:
    """``without``: a case with the piece switched off; the same case where it plays no part.

    ``numbers``: a die's numbers with the piece switched off.
    """

    name: str
    without: Callable[[Case], Case] = lambda case: case
    numbers: Callable[[Sustained], Sustained] = lambda numbers: numbers

    def of(self, physics: Mapping[str, Sustained]) -> dict[str, Sustained]:
        """Numbers of every die with the piece switched off."""
        return {die: self.numbers(numbers) for die, numbers in physics.items()}


@dataclass(frozen=True)
class Worth:
    """Mean error over the families of each die, with the numbers fitted again."""

    name: str
    errors: dict[str, float]
    numbers: dict[str, Sustained]


@dataclass(frozen=True)
class Miss:
    """A row that is predicted badly: signed relative error, and after each change (None: the same)."""

    group: str
    row: str
    error: float
    without: dict[str, float | None]


def _training(case: Case, **changes: Any) -> Case:
    return replace(case, training=case.training.model_copy(update=changes))


def _software(case: Case, **changes: Any) -> Case:
    return replace(case, software=case.software.model_copy(update=changes))


def _one_attention(case: Case) -> Case:
    return case if case.software.attention == "unfused" else _software(case, attention="flash2")


def _fused_attention(case: Case) -> Case:
    return _software(case, attention="flash2") if case.software.attention == "unfused" else case


def _no_overlap(case: Case) -> Case:
    return _training(
        case, overlap_grad_reduce=False, overlap_param_gather=False, overlap_p2p=False, tp_overlap=False,
        prefetch=0,
    )  # fmt: skip


def _not_interleaved(case: Case) -> Case:
    parallel = case.parallel
    if parallel.virtual_stages == 1 or case.model.num_layers % parallel.pp or parallel.embedding_as_layer:
        return case
    return replace(case, parallel=parallel.model_copy(update={"virtual_stages": 1, "stage_layers": ()}))


def _all_fused(case: Case) -> Case:
    return _software(
        case, bias_activation_fusion=True, bias_dropout_fusion=True, softmax_fusion=True, norm_fusion=True,
        rope_fusion=True, swiglu_fusion=True, grad_accumulation_fusion=True, cross_entropy="fused",
        moe_permute_fusion=True,
    )  # fmt: skip


def _nothing_fused(case: Case) -> Case:
    return _software(
        case, bias_activation_fusion=False, bias_dropout_fusion=False, softmax_fusion=False,
        norm_fusion=False, rope_fusion=False, swiglu_fusion=False, grad_accumulation_fusion=False,
        cross_entropy="unfused", moe_permute_fusion=False,
    )  # fmt: skip


def _half_network(case: Case) -> Case:
    rate = load_cluster(case.cluster, case.overrides).nic_efficiency / 2
    kept = tuple(o for o in case.overrides if o[0] != "cluster.nic_efficiency")
    return replace(case, overrides=(*kept, ("cluster.nic_efficiency", f"{rate:g}")))


def _short_gradients(case: Case) -> Case:
    if case.training.precision not in ("fp16", "bf16", "fp8"):
        return case
    short = "fp16" if case.training.precision == "fp16" else "bf16"
    return _training(case, grad_dtype=short, grad_reduce_dtype=short)


def _no_head(case: Case) -> Case:
    vocab = case.software.vocab_multiple * case.parallel.tp
    return replace(case, model=case.model.model_copy(update={"vocab": vocab}))


def _instant_starts(case: Case) -> Case:
    kept = tuple(o for o in case.overrides if o[0] not in ("gpu.launch_overhead_s", "gpu.kernel_gap_s"))
    starts = (("gpu.launch_overhead_s", "0"), ("gpu.kernel_gap_s", "0"))
    return replace(_software(case, host_us_per_kernel=0.0), overrides=(*kept, *starts))


ABLATIONS: Final = (
    Ablation("every fused attention kernel of FlashAttention-2's class", _one_attention),
    Ablation("unfused attention as if fused", _fused_attention),
    Ablation("nothing recomputed", lambda case: _training(case, recompute="none")),
    Ablation("no communication overlaps with compute", _no_overlap),
    Ablation("pipelines not interleaved", _not_interleaved),
    Ablation("every chain of elementwise kernels fused", _all_fused),
    Ablation("gradients of 16 bits", _short_gradients),
    Ablation("no vocabulary head", _no_head),
    Ablation("kernels start at once, the host costs nothing", _instant_starts),
    Ablation("GPUs of one type keep one clock", numbers=lambda numbers: replace(numbers, spread=0.0)),
)


#: Changes that make a row slower, for those that are predicted too fast.
SUSPECTS: Final = (
    Ablation("everything recomputed", lambda case: _training(case, recompute="full", recompute_layers=-1)),
    Ablation("no chain of elementwise kernels fused", _nothing_fused),
    Ablation("30 us of the host per kernel", lambda case: _software(case, host_us_per_kernel=30.0)),
    Ablation("half of the network's rate", _half_network),
)


def ablate(
    rows: Sequence[ClockCurve], physics: Mapping[str, Sustained], times: StepTimes | None = None
) -> list[Worth]:
    """Errors of ``rows`` with everything, at the rated clock, and without each of ``ABLATIONS``.

    A row without a piece is simulated once, by ``physics``; over the clock it is taken to change
    as the whole row does.
    """
    rated = dict.fromkeys(physics, Sustained())
    found = [_worth("nothing switched off", rows), _at("rated clocks and fp8", rows, rated)]
    for ablation in ABLATIONS:
        changed = [[ablation.without(case) for case in row.described.band.cases] for row in rows]
        cases = {case_key(case): case for row in changed for case in row}
        seconds = predict_cases(cases, ablation.of(physics), progress=Countdown(ablation.name), times=times)
        moved = []
        for row, own in zip(rows, changed, strict=True):
            known = [seconds[case_key(case)] for case in own]
            if len(known) == len(row.log_s) and not any(isinstance(value, str) for value in known):
                p = physics[row.die]
                here = row.seconds(np.array([p.clock]), np.array([p.fp8]))[:, 0]
                shift = np.log(np.array(known, dtype=np.float64) / here)
                moved.append(replace(row, log_s=row.log_s + shift[:, None]))
        found.append(_worth(ablation.name, moved))
    return found


def explain(
    rows: Mapping[str, RowScore], physics: Mapping[str, Sustained], times: StepTimes | None = None
) -> list[Miss]:
    """Errors of ``rows`` (by group) after each of ``ABLATIONS`` and ``SUSPECTS``, by ``physics`` as it is.

    Of a band, the case nearest to what was measured.
    """
    bands = {case_key(case): case for row in rows.values() for case in row.described.band.cases}
    known = _known(predict_cases(bands, physics, progress=Countdown("where predictions miss"), times=times))
    nearest = {group: _nearest(row, known) for group, row in rows.items()}
    after: dict[str, dict[str, float | None]] = {group: {} for group in rows}
    for change in (*ABLATIONS, *SUSPECTS):
        numbers = change.of(physics)
        keys = {
            group: (case_key(without), without)
            for group, case in nearest.items()
            if case_key(without := change.without(case)) != case_key(case) or numbers != dict(physics)
        }
        cases = dict(keys.values())
        seconds = _known(predict_cases(cases, numbers, progress=Countdown(change.name), times=times))
        for group, row in rows.items():
            found = seconds.get(keys[group][0]) if group in keys else None
            after[group][change.name] = None if found is None else found / row.measured_s - 1
    return [
        Miss(
            group, row.described.row.id, known[case_key(nearest[group])] / row.measured_s - 1,
            after[group],
        )
        for group, row in rows.items()
    ]  # fmt: skip


def _nearest(row: RowScore, known: Mapping[str, float]) -> Case:
    found = [case for case in row.described.band.cases if case_key(case) in known]
    return min(found, key=lambda case: abs(known[case_key(case)] / row.measured_s - 1))


def _known(found: Mapping[str, float | str]) -> dict[str, float]:
    return {key: value for key, value in found.items() if not isinstance(value, str)}


def _worth(name: str, rows: Sequence[ClockCurve]) -> Worth:
    return _at(name, rows, fit(rows).numbers)


def _at(name: str, rows: Sequence[ClockCurve], numbers: Mapping[str, Sustained]) -> Worth:
    errors = {}
    for die in sorted({row.die for row in rows}):
        by_family: dict[str, list[float]] = {}
        for row in rows:
            if row.die == die:
                by_family.setdefault(row.family, []).append(abs(row.error(numbers[die])))
        errors[die] = float(np.mean([np.mean(found) for found in by_family.values()]))
    return Worth(name, errors, dict(numbers))
