"""Scored rows as evidence for other jobs: what is predicted of each without its family, and its features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from simcore.apps.fit.runs import Fit
from simcore.apps.measured.runs.cache import StepTimes
from simcore.apps.measured.runs.predict import case_key
from simcore.apps.measured.runs.score import RowScore, Scored, predict_cases
from simcore.apps.progress import Countdown
from simcore.hardware import dies, load_cluster
from simcore.hardware.sustained import Sustained
from workloads.evidence import JobFeatures, MeasuredRun, job_features, read_runs, with_reaches
from workloads.jobs.published import Case


def measured_runs_of(scored: Scored, fitted: Fit, times: StepTimes | None = None) -> list[MeasuredRun]:
    """A :class:`MeasuredRun` for each scored row, in their order, each with its reach.

    Rows of the fit have their left-out times from it.  Others of their families (quality B, those beyond a
    sample) are simulated by the numbers without the family.  Rows of families that no fit has seen stand as
    they are, and so do odd rows, which no band uses.  Rows of lists of blocks whose inputs were not
    published say nothing: no band of inputs is known of them.
    """
    left_out = {**_simulated(_beside(scored.scores, fitted), times), **fitted.left_out_s}
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
        if row.id not in fitted.left_out_s and not score.described.odd and numbers is not None:
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
