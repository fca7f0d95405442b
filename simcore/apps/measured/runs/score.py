"""Published runs predicted in parallel and scored, row by row."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import field
from typing import Any

from simcore.apps.measured.runs.cache import StepTimes
from simcore.apps.measured.runs.predict import Physics, case_key, predict_case
from simcore.apps.measured.tables import ErrorTable, error_table
from simcore.apps.progress import Countdown
from simcore.apps.workers import each
from simcore.errors import InputError, SimcoreError
from simcore.hardware import GpuSpec, load_cluster
from simcore.records import dataclass
from workloads.jobs.published import (
    Band,
    Case,
    RunRow,
    causal_ratio,
    describe,
    measured_step_s,
    notes_of,
    oddity,
)
from workloads.models.model import AnyModel
from workloads.parallel.steady import shorter_counts


@dataclass(frozen=True)
class DescribedRow:
    """A row, its cases and what was measured, seconds per step.

    ``unscored``: why ``measured_s`` is not a number: nothing was measured, or in no known metric.
    """

    row: RunRow
    band: Band
    measured_s: float
    widened: float  # further factor by which the upper end may lie above (open conventions)
    odd: str
    unscored: str = ""


@dataclass(frozen=True)
class RowScore:
    """One prediction: ``predicted_s`` is the value of ``low_s``..``high_s`` nearest to ``measured_s``."""

    described: DescribedRow
    low_s: float
    high_s: float

    @property
    def measured_s(self) -> float:
        """What was measured, seconds per step."""
        return self.described.measured_s

    @property
    def predicted_s(self) -> float:
        """What is compared with it; the middle of the band where nothing was measured."""
        if self.described.unscored:
            return (self.low_s + self.high_s) / 2
        return min(max(self.measured_s, self.low_s), self.high_s)

    @property
    def error(self) -> float:
        """Relative, signed; 0 within the band."""
        return self.predicted_s / self.measured_s - 1

    @property
    def quality(self) -> str:
        """A: every input is published; B: some are not."""
        return self.described.row.text("quality").upper() or "A"


@dataclass
class Scored:
    """All rows of a table: scores, what could not be scored with the reason, and what of it was predicted."""

    scores: list[RowScore] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    unscored: list[RowScore] = field(default_factory=list)


def describe_rows(rows: Iterable[RunRow]) -> tuple[list[DescribedRow], list[dict[str, Any]]]:
    """Rows as cases, and the refused ones as ``{id, family, reason}``."""
    found, skipped = [], []
    for row in rows:
        try:
            band = describe(row)
            case = band.cases[0]
            gpu = load_cluster(case.cluster, case.overrides).gpu
            measured, unscored = _measured(row, case.model, gpu)
            ratio = causal_ratio(row, case.model)
            found.append(DescribedRow(row, band, measured, ratio, oddity(row), unscored))
        except SimcoreError as error:
            skipped.append({"id": row.id, "family": row.family, "reason": str(error)})
        except Exception as error:  # one row must not end a table of hundreds
            reason = f"bug: {type(error).__name__}: {error}"
            skipped.append({"id": row.id, "family": row.family, "reason": reason})
    return found, skipped


def _measured(row: RunRow, model: AnyModel, gpu: GpuSpec) -> tuple[float, str]:
    """Seconds per step, or NaN and why there are none."""
    try:
        return measured_step_s(row, model, gpu), ""
    except InputError as error:
        return math.nan, str(error)


def spread(rows: Sequence[RunRow], limit: int) -> list[RunRow]:
    """At most ``limit`` rows of each family, evenly over its rows; 0: all."""
    if not limit:
        return list(rows)
    families: dict[str, list[RunRow]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    return [row for found in families.values() for row in found[:: -(-len(found) // limit)]]


def score_rows(
    rows: Sequence[RunRow], physics: Physics | None = None, times: StepTimes | None = None
) -> Scored:
    """Predict and score ``rows`` on all cores; equal cases are simulated once.  Countdown goes to stderr.

    ``physics``: numbers of dies instead of the profiles'.  ``times``: step times that are known already.
    """
    described, skipped = describe_rows(rows)
    cases = {case_key(case): case for entry in described for case in entry.band.cases}
    predicted = predict_cases(cases, physics, progress=Countdown("runs"), times=times)
    return scored(described, skipped, predicted)


def scored(
    described: Iterable[DescribedRow],
    skipped: Sequence[Mapping[str, Any]],
    predicted: Mapping[str, float | str],
) -> Scored:
    """Scores from the step time (or the reason of a refusal) of each case by its key."""
    out = Scored(skipped=[dict(row) for row in skipped])
    for entry in described:
        results = [predicted[case_key(case)] for case in entry.band.cases]
        times = [result for result in results if not isinstance(result, str)]
        refusals = [result for result in results if isinstance(result, str)]
        bugs = [result for result in refusals if result.startswith("bug")]
        if bugs:  # what is refused leaves a band, what failed must not hide behind the other cases
            times, refusals = [], bugs
        if times:
            score = RowScore(entry, min(times), max(times) * entry.widened)
            (out.unscored if entry.unscored else out.scores).append(score)
        reason = entry.unscored if times else refusals[0]
        if reason:
            out.skipped.append({"id": entry.row.id, "family": entry.row.family, "reason": reason})
    return out


def predict_cases(
    cases: Mapping[str, Case], physics: Physics | None = None, *,
    progress: Callable[[int, int], None] | None = None, times: StepTimes | None = None,
) -> dict[str, float | str]:  # fmt: skip
    """Step time of every case, seconds, or why it has none; ``times`` knows earlier ones and learns these."""
    found: dict[str, float | str] = {}
    if times is not None:
        known = {key: times.get(times.key(key, case, physics)) for key, case in cases.items()}
        found = {key: result for key, result in known.items() if result is not None}
    # The long ones first, so that no core waits at the end.
    order = sorted(cases.items(), key=lambda item: -case_weight(item[1]))
    jobs = [(key, case, physics) for key, case in order if key not in found]
    with closing(_results(jobs)) as results:
        for done, (key, result) in enumerate(results, start=1):
            found[key] = result
            if times is not None:
                times.put(times.key(key, cases[key], physics), result)
            if progress is not None:
                progress(done, len(jobs))
    return found


_Job = tuple[str, Case, Physics | None]


def _results(jobs: Sequence[_Job]) -> Generator[tuple[str, float | str], None, None]:
    """Results as they come, from all cores."""
    workers = min(len(jobs), len(os.sched_getaffinity(0)))
    if workers > 1:
        yield from each(_job, jobs, workers, lambda job: _named(job[1]))
    else:
        yield from map(_job, jobs)


def _named(case: Case) -> str:
    degrees = case.parallel
    return f"{case.model.name} on {case.cluster}, tp {degrees.tp}, pp {degrees.pp}, dp {degrees.dp}"


def _job(job: _Job) -> tuple[str, float | str]:
    key, case, physics = job
    try:
        return key, predict_case(case, physics)
    except SimcoreError as error:
        return key, str(error)
    except Exception as error:
        return key, f"bug: {type(error).__name__}: {error}"


def case_weight(case: Case) -> float:
    """Rough number of kernels of the simulation; ranks of a context-parallel ring differ."""
    p = case.parallel
    rounds = sum(shorter_counts(p, case.microbatches) or (min(case.microbatches, 3 * p.pp + 2),))
    return float(rounds * case.model.num_layers * p.cp)


def table_of(scores: Sequence[RowScore], skipped: Sequence[dict[str, Any]] = ()) -> ErrorTable:
    """Errors by family and overall."""
    plain = [
        {"id": s.described.row.id, "family": s.described.row.family, "measured": s.measured_s,
         "predicted": s.predicted_s}
        for s in scores
    ]  # fmt: skip
    return error_table(plain, skipped)


def goals(scores: Sequence[RowScore]) -> dict[str, Any]:
    """What the project aims at, over rows of quality A that are not odd."""
    table = table_of([score for score in scores if score.quality == "A" and not score.described.odd])
    means = [summary["mape"] for summary in table.families.values()]
    large = {name: s["mape"] for name, s in table.families.items() if s["n"] >= 5 and s["mape"] > 0.12}
    return {
        **table.overall,
        "mean_over_families": sum(means) / len(means) if means else None,
        "families_above_12_percent": large,
    }


def row_objects(rows: Sequence[RunRow], scored: Scored) -> list[dict[str, Any]]:
    """One object for each of ``rows``, in their order; times are seconds per step, errors relative.

    ``predicted_step_s`` is the value of ``low_step_s``..``high_step_s`` nearest to what was measured, and
    ``middle_step_s`` the middle of that band, whatever was measured.  A row that cannot be predicted has no
    times, one without a measurement no error; ``skipped_reason`` says why.
    """
    scores = {id(score.described.row): score for score in (*scored.scores, *scored.unscored)}
    reasons = {entry["id"]: entry["reason"] for entry in scored.skipped}
    return [_object(row, scores.get(id(row)), reasons.get(row.id, "")) for row in rows]


def _object(row: RunRow, score: RowScore | None, reason: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": row.id, "family": row.family, "quality": row.text("quality").upper() or "A",
        "gpu_type": row.text("gpu_type"), "gpus": row.text("gpus"),
        "measured_step_s": None, "predicted_step_s": None, "error": None,
        "low_step_s": None, "middle_step_s": None, "high_step_s": None,
        "preset": "", "unpublished": [], "assumed": [], "odd_reason": "",
        "skipped_reason": reason if score is None or score.described.unscored else "",
    }  # fmt: skip
    if score is None:
        return found
    described = score.described
    found |= {
        "gpus": row.count("gpus"), "predicted_step_s": score.predicted_s, "low_step_s": score.low_s,
        "middle_step_s": (score.low_s + score.high_s) / 2, "high_step_s": score.high_s,
        "preset": described.band.preset, "unpublished": list(described.band.unpublished),
        "assumed": [*notes_of(row), *described.band.cases[0].warnings],
        "odd_reason": described.odd,
    }  # fmt: skip
    if not described.unscored:
        found |= {"measured_step_s": score.measured_s, "error": score.error}
    return found
