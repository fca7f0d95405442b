"""Scored rows as evidence for other jobs: what is predicted of each without its family, and its features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from simcore.apps.fit.runs import Fit
from simcore.apps.measured.runs.cache import StepTimes
from simcore.apps.measured.runs.predict import case_key
from simcore.apps.measured.runs.score import RowScore, Scored, predict_cases
from simcore.apps.progress import Countdown
from simcore.hardware import dies, load_cluster
from simcore.hardware.sustained import Sustained
from workloads.evidence import JobFeatures, MeasuredRun, job_features, read_runs, with_reaches
from workloads.jobs.published import Case

#: GPUs of a usual node.
_NODE: Final = 8


def left_out_of(
    scored: Scored, fitted: Fit, times: StepTimes | None = None
) -> dict[str, tuple[float, float]]:
    """By row the ends of its band, seconds, by the numbers fitted without its family.

    Rows of the fit have them from it.  Others of their families (quality B, odd ones, those beyond a sample)
    are simulated.  Families that no fit has seen have none.
    """
    return {**_simulated(_beside(scored.scores, fitted), times), **fitted.left_out_s}


def left_out_table(
    scores: Sequence[RowScore], left_out: Mapping[str, tuple[float, float]]
) -> list[dict[str, Any]]:
    """Mean errors, as predicted and left out, by family, quality (odd rows apart) and size of the job."""
    groups: dict[tuple[str, str, bool], list[tuple[float, float]]] = {}
    for score in scores:
        row = score.described.row
        if row.id in left_out:
            low, high = left_out[row.id]
            apart = min(max(score.measured_s, low), high) / score.measured_s - 1
            quality = f"{score.quality} odd" if score.described.odd else score.quality
            key = row.family, quality, row.count("gpus") > _NODE
            groups.setdefault(key, []).append((abs(score.error), abs(apart)))
    return [
        {
            "family": family, "quality": quality, "gpus": f"over {_NODE}" if many else f"to {_NODE}",
            "n": len(errors), "predicted": fmean(one for one, _ in errors),
            "left_out": fmean(one for _, one in errors),
        }
        for (family, quality, many), errors in sorted(groups.items())
    ]  # fmt: skip


def measured_runs_of(scored: Scored, left_out: Mapping[str, tuple[float, float]]) -> list[MeasuredRun]:
    """A :class:`MeasuredRun` for each scored row, in their order, each with its reach.

    ``left_out``: as :func:`left_out_of` has it; rows without it stand as they are.
    Rows of lists of blocks whose inputs were not published say nothing: no band of inputs is known of them.
    """
    found = [_measured(score, left_out) for score in scored.scores]
    return with_reaches([one for one in found if one.quality == "A" or not one.features.is_list])


def beside(runs: Sequence[MeasuredRun], path: Path) -> list[MeasuredRun]:
    """``runs`` and those of other families that the file at ``path`` has, each with its reach among all."""
    families = {run.family for run in runs}
    before = read_runs(path.read_text(encoding="utf-8"), str(path)) if path.exists() else ()
    return with_reaches([*(run for run in before if run.family not in families), *runs])


def row_features(score: RowScore) -> JobFeatures:
    """Features of a row: of the first of its cases, where inputs are open."""
    band = score.described.band
    case = band.cases[0]
    board = load_cluster(case.cluster).gpu.name
    return job_features(
        case.model.model_dump(), case.parallel.model_dump(), case.training.model_dump(),
        framework=band.preset, source="row", board=board, die=case.die or board,
    )  # fmt: skip


def _measured(score: RowScore, left_out: Mapping[str, tuple[float, float]]) -> MeasuredRun:
    row = score.described.row
    low, high = left_out.get(row.id, (score.low_s, score.high_s))
    return MeasuredRun(
        id=row.id, family=row.family, quality=score.quality, features=row_features(score),
        measured_s=score.measured_s, predicted_s=score.predicted_s,
        left_out_s=min(max(score.measured_s, low), high),
        low_s=score.low_s, high_s=score.high_s, odd=score.described.odd,
    )  # fmt: skip


def _beside(scores: Sequence[RowScore], fitted: Fit) -> dict[str, list[tuple[RowScore, Sustained]]]:
    """By family: rows that the fit has no left-out time of, and the numbers of their die without it."""
    found: dict[str, list[tuple[RowScore, Sustained]]] = {}
    for score in scores:
        row, die = score.described.row, score.described.band.cases[0].die
        numbers = fitted.numbers_without.get(row.family, {}).get(die)
        if row.id not in fitted.left_out_s and numbers is not None:
            found.setdefault(row.family, []).append((score, numbers))
    return found


def _simulated(
    beside: Mapping[str, Sequence[tuple[RowScore, Sustained]]], times: StepTimes | None
) -> dict[str, tuple[float, float]]:
    """Ends of each row's band by its numbers."""
    found: dict[str, tuple[float, float]] = {}
    for family, rows in beside.items():
        physics = dict(dies())
        cases: dict[str, Case] = {}
        for score, numbers in rows:
            die = score.described.band.cases[0].die
            physics[die] = replace(physics[die], clock=numbers.clock, fp8=numbers.fp8)
            cases |= {case_key(case): case for case in score.described.band.cases}
        predicted = predict_cases(cases, physics, progress=Countdown(f"without {family}"), times=times)
        for score, _ in rows:
            seconds = [predicted[case_key(case)] for case in score.described.band.cases]
            known = [value for value in seconds if not isinstance(value, str)]
            if known:
                found[score.described.row.id] = min(known), max(known) * score.described.widened
    return found
