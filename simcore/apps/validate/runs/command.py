"""``validate.py --runs``: published training runs predicted, summarised and written down."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simcore.apps.fit.runs import Fit, counts, curves, fit, fit_lines
from simcore.apps.measured.runs.cache import StepTimes
from simcore.apps.measured.runs.score import (
    DescribedRow,
    RowScore,
    Scored,
    goals,
    row_objects,
    score_rows,
    spread,
    table_of,
)
from simcore.apps.measured.tables import ErrorTable, summary_head, summary_line
from simcore.apps.validate.runs.ablations import Worth, ablate, explain
from simcore.apps.validate.runs.asked import ask
from simcore.apps.validate.runs.page import Extras, coverage_object, drawings, far_off, report
from simcore.apps.validate.runs.ranking import search
from simcore.apps.validate.runs.residuals import beside, left_out_of, left_out_table, measured_runs_of
from simcore.apps.validate.runs.sweeps import layouts, orders, repeats, scalings
from simcore.errors import InputError, nearest
from simcore.files import whole_text
from simcore.hardware import dies
from simcore.outside import printable
from simcore.records import dataclass
from workloads.evidence import MeasuredRun, write_runs
from workloads.jobs.published import RunRow, read_run_rows


def validate_runs(
    path: str, *, family: str = "", limit: int = 0, worst: int = 10, as_json: bool = False, page: str = "",
    cache: str = "", leave_one_out: bool = False, sample: int = 0, ablations: int = 0, residuals: str = "",
) -> None:  # fmt: skip
    """Predict the rows of ``path`` (of one ``family``, ``limit`` of each family) and print errors.

    ``page``: file that the report is written to.  ``cache``: file of step times simulated before.
    ``leave_one_out``: also each family by numbers fitted to the others, on ``sample`` rows of each (0: all).
    ``ablations``: also so many rows of each family without each piece of physics.  ``residuals``: file that
    the rows are written to as evidence for bands, with ``leave_one_out``; other families there stay.

    Errors: InputError for a bad file or unknown family, for ``residuals`` without ``leave_one_out``, and for
    a page where a user is told something else.
    """
    if residuals and not leave_one_out:
        raise InputError("--residuals are what predictions without a family miss by: add --leave-one-out")
    rows = read_run_rows(path)
    if family:
        known = sorted({row.family for row in rows})
        if family not in known:
            raise InputError(f"no family {family!r}{nearest(family, known)}")
        rows = [row for row in rows if row.family == family]
    rows = spread(rows, limit)
    times = StepTimes(Path(cache)) if cache else None
    began = time.monotonic()
    scored = score_rows(rows, times=times)
    wall_s = time.monotonic() - began
    described = [score.described for score in scored.scores]
    chosen = _sampled(described, sample)
    fitted = fit(curves(chosen, dies(), times)) if leave_one_out else None
    left_out = left_out_of(scored, fitted, times) if fitted is not None else {}
    evidence = measured_runs_of(scored, left_out) if fitted is not None else []
    if residuals:
        whole_text(Path(residuals), write_runs(beside(evidence, Path(residuals))))
        print(f"written: {residuals}", file=sys.stderr)
    # Rows of the fit: their step times over the clock are known by then.
    worths = _ablate(_sampled(chosen, ablations), times) if ablations else []
    table = table_of(scored.scores, scored.skipped)
    if page:
        _refuse_differences(scored)
        parts = [f"family {family}"] if family else []
        parts += [f"at most {limit} rows of each family, evenly spread"] if limit else []
        scope = f"Only a part of the table was predicted for this page: {', '.join(parts)}." if parts else ""
        misses = explain(far_off(scored.scores), dies(), times) if ablations else []
        extras = Extras(scope, fitted, worths, misses, search(times=times), evidence)
        _write_page(Path(page), scored, extras)
    found = _Found(rows, scored, table, fitted, left_out, evidence, worths, wall_s)
    print(json.dumps(found.as_object()) if as_json else found.text(worst))


@dataclass(frozen=True)
class _Found:
    """What a validation found; ``fitted``, ``left_out``, ``evidence``: where families were left out."""

    rows: Sequence[RunRow]
    scored: Scored
    table: ErrorTable
    fitted: Fit | None
    left_out: Mapping[str, tuple[float, float]]
    evidence: Sequence[MeasuredRun]
    worths: Sequence[Worth]
    wall_s: float

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        scores, table = self.scored.scores, self.table
        found = {
            "rows": row_objects(self.rows, self.scored), "families": table.families,
            "overall": table.overall, "quality_a": goals(scores), "rank_order": rank_order(scores),
            "skipped": table.skipped, "wall_s": self.wall_s,
        }  # fmt: skip
        if self.fitted is not None:
            numbers = {die: asdict(p) for die, p in self.fitted.numbers.items()}
            found["bands"] = coverage_object(self.evidence)
            found["left_out"] = {
                "numbers": numbers, "in_fit": self.fitted.inside, "left_out": self.fitted.outside,
                "by_size": left_out_table(scores, self.left_out),
            }  # fmt: skip
        if self.worths:
            found["ablations"] = [asdict(worth) for worth in self.worths]
        return found

    def text(self, worst: int) -> str:
        """For the terminal, with so many of the ``worst`` rows."""
        lines = [printable(text(self.scored, self.table, worst))]
        if self.fitted is not None:
            lines += fit_lines(self.fitted, left_out=True)
            lines.append(f"{'family, quality, GPUs':44}{'n':>5}{'predicted %':>13}{'left out %':>12}")
            for one in left_out_table(self.scored.scores, self.left_out):
                name = f"{one['family']}, {one['quality']}, {one['gpus']}"
                lines.append(
                    f"{name:44}{one['n']:>5}{100 * one['predicted']:13.1f}{100 * one['left_out']:12.1f}"
                )
        for worth in self.worths:
            errors = "".join(f"  {die} {100 * error:.1f}%" for die, error in worth.errors.items())
            lines.append(f"{worth.name:60}{errors}")
        return "\n".join([*lines, f"{len(self.rows)} rows in {self.wall_s:.0f} s"])


def _refuse_differences(scored: Scored) -> None:
    """InputError when a user is told something else than what was validated."""
    told = [asked for asked in ask(scored.scores) if asked.differs]
    if told:
        lines = "; ".join(
            f"{asked.row}: {asked.reason or f'{asked.told_s:.4f} s, validated {asked.validated_s:.4f} s'}"
            for asked in told
        )
        raise InputError(f"the page is not written: run_sim answers otherwise for {lines}")


def _ablate(described: Sequence[DescribedRow], times: StepTimes | None) -> list[Worth]:
    return ablate(curves(described, dies(), times), dies(), times)


def _sampled(described: Sequence[DescribedRow], limit: int) -> list[DescribedRow]:
    """At most ``limit`` rows of each family among those that a fit uses; 0: all."""
    by_row = {entry.row.id: entry for entry in described if counts(entry)}
    return [by_row[row.id] for row in spread([entry.row for entry in by_row.values()], limit)]


def _write_page(target: Path, scored: Scored, extras: Extras) -> None:
    for name, drawing in drawings(scored, extras).items():
        whole_text(target.parent / "images" / f"{name}.svg", drawing)
    whole_text(target, report(scored, extras))  # last: it shows them
    print(f"written: {target}", file=sys.stderr)


def rank_order(scores: Sequence[RowScore]) -> list[dict[str, Any]]:
    """Kendall's tau of every sweep, over layouts and over numbers of GPUs."""
    known = repeats(scores)
    kinds = {"layouts": layouts(scores), "scaling": scalings(scores)}
    return [
        {"kind": kind, **found.as_dict()} for kind, sweeps in kinds.items() for found in orders(sweeps, known)
    ]


def text(scored: Scored, table: ErrorTable, worst: int) -> str:
    """Tables for a terminal."""
    lines = [f"{summary_head('family', 22, 5)}{'bias':>9}"]
    bias: dict[str, list[float]] = {}
    for score in scored.scores:
        bias.setdefault(score.described.row.family, []).append(score.error)
    bias["overall"] = [score.error for score in scored.scores]
    for name, s in [*table.families.items(), ("overall", table.overall)]:
        if s["n"]:
            mean = sum(bias[name]) / len(bias[name])
            lines.append(f"{summary_line(name, s, 22, 5)}{100 * mean:+9.1f}")
    found = goals(scored.scores)
    if found["n"]:
        lines.append(
            f"quality A, odd rows apart: n {found['n']}, mean over families"
            f" {100 * found['mean_over_families']:.1f}%, over rows {100 * found['mape']:.1f}%, median"
            f" {100 * found['median']:.1f}%, p90 {100 * found['p90']:.1f}%, families above 12%:"
            f" {', '.join(found['families_above_12_percent']) or 'none'}"
        )
    lines.extend(_order_line(kind, rank_order(scored.scores)) for kind in ("layouts", "scaling"))
    lines.append(f"skipped: {len(scored.skipped)}")
    lines.extend(f"  {row['id']}: {row['reason'][:150]}" for row in scored.skipped)
    lines.extend(_row_line(score) for score in sorted(scored.scores, key=lambda s: -abs(s.error))[:worst])
    return "\n".join(lines)


def _order_line(kind: str, found: Sequence[dict[str, Any]]) -> str:
    taus = [row["tau_apart"] for row in found if row["kind"] == kind and row["tau_apart"] is not None]
    mean = f"mean tau {sum(taus) / len(taus):.2f}, least {min(taus):.2f}" if taus else "none"
    return f"rank order over {kind}, pairs apart by more than noise: {len(taus)} sweeps, {mean}"


def _row_line(score: RowScore) -> str:
    row = score.described.row
    columns = " ".join(
        f"{name} {row.text(name)}" for name in ("gpus", "tp", "pp", "micro_batch") if row.text(name)
    )
    band = f" [{score.low_s:.3f}, {score.high_s:.3f}]" if score.high_s > score.low_s else ""
    odd = f" ODD: {score.described.odd}" if score.described.odd else ""
    return (
        f"{row.id:42} measured {score.measured_s:8.3f} s, predicted {score.predicted_s:8.3f}{band}"
        f" ({100 * score.error:+.1f}%) {columns}{odd}"
    )
