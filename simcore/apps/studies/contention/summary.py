"""How near predictions come: shares within bounds by trace, kernel class and length, and as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simcore.apps.studies.contention.rows import BesideRow, ContentionRow, TraceRows
from simcore.interference import FEATURES
from simcore.records import dataclass
from simcore.units import PS_PER_US

BOUNDS = (0.05, 0.10, 0.15)
#: Echo's shares of kernels whose predicted slowdown lies within BOUNDS (arXiv 2412.12487).
ECHO = {"H800": (0.43, 0.52, 0.58), "A800": (0.61, 0.52, 0.75), "RTX 3090": (0.61, 0.74, 0.77)}
#: Bands of time alone, us: a profiler that rounds to 1 us is 10% off below 10 us.
BANDS_US = ((0, 10), (10, 50), (50, 1 << 30))
SHORT_US = 10

_HEAD = (
    f"{'':44}{'n':>6}{'5%':>6}{'10%':>6}{'15%':>6}{'median':>9}{'slow':>7}{'p90':>7}{'added':>8}{'pred.':>8}"
    f"{'lost/held':>11}"
)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """Errors of predicted times of ``num_kernels``; ``within`` are shares within :data:`BOUNDS`.

    ``recorded_excess`` and ``predicted_excess`` are the time added by communication relative to the time
    alone, over all kernels together.  ``lost_per_held`` is the median number of SMs whose loss would explain
    the recorded slowdown of work that spreads evenly, for each SM that communication held.
    """

    what: str
    num_kernels: int
    within: tuple[float, ...]
    median_error: float
    recorded_median: float
    recorded_p90: float
    recorded_excess: float
    predicted_excess: float
    lost_per_held: float


def score(what: str, rows: Sequence[ContentionRow], predicted_ps: Sequence[float]) -> Score:
    """Score predictions of at least one row."""
    recorded = np.array([row.kernel.recorded_ps for row in rows], dtype=np.float64)
    alone = np.array([row.kernel.alone_ps for row in rows], dtype=np.float64)
    predicted = np.array(predicted_ps, dtype=np.float64)
    error = predicted / recorded - 1
    median, p90 = np.quantile(recorded / alone, (0.5, 0.9))
    return Score(
        what, len(rows), within(error), float(np.median(error)), float(median), float(p90),
        float(recorded.sum() / alone.sum() - 1), float(predicted.sum() / alone.sum() - 1),
        _lost_per_held(rows),
    )  # fmt: skip


def _lost_per_held(rows: Sequence[ContentionRow]) -> float:
    size = FEATURES.index("num_sms")
    ratios = [row.features[size] * (1 - 1 / row.kernel.slowdown) / row.sms for row in rows if row.sms > 0]
    return float(np.median(ratios)) if ratios else 0.0


def within(errors: Floats) -> tuple[float, ...]:
    """Shares of ``errors`` within :data:`BOUNDS`."""
    return tuple(float((np.abs(errors) <= bound).mean()) for bound in BOUNDS)


def scores(trace: TraceRows, predicted_ps: Sequence[float]) -> list[Score]:
    """All kernels of a trace, those of at least 10 us, and groups by class and length."""
    rows = trace.rows
    if not rows:
        return []
    chosen: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        kernel = row.kernel
        chosen["all"].append(i)
        if kernel.alone_ps >= SHORT_US * PS_PER_US:
            chosen[f"at least {SHORT_US} us"].append(i)
            chosen[f"{kernel.category}, at least {SHORT_US} us"].append(i)
        low, high = next(band for band in BANDS_US if kernel.alone_ps < band[1] * PS_PER_US)
        chosen[f"{low}-{high} us" if high < 1 << 30 else f"{low} us and more"].append(i)
    first = ["all", f"at least {SHORT_US} us"]
    names = [name for name in first if name in chosen] + sorted(set(chosen) - set(first))
    return [
        score(name, [rows[i] for i in chosen[name]], [predicted_ps[i] for i in chosen[name]])
        for name in names
    ]


def noise_floor(trace: TraceRows) -> tuple[float, ...]:
    """Shares within :data:`BOUNDS` of kernels alone beside the same kernels alone: what repeats differ by."""
    differences = np.array([difference for difference, _ in trace.pairs.noise], dtype=np.float64)
    return within(differences) if len(differences) else ()


def overlap_scores(rows: Sequence[BesideRow]) -> dict[str, dict[str, Any]]:
    """Of a table's rows by trace, those of quality good and ok, and all of them: how near predictions are."""
    groups: dict[str, list[BesideRow]] = defaultdict(list)
    for row in rows:
        if row.quality in ("good", "ok"):
            groups[row.trace].append(row)
            groups["good and ok"].append(row)
        groups["all"].append(row)
    return {name: _overlap_score(members) for name, members in groups.items()}


def _overlap_score(rows: Sequence[BesideRow]) -> dict[str, Any]:
    return nearness(
        [row.alone_us for row in rows], [row.recorded_us for row in rows], [row.predicted_us for row in rows]
    )


def nearness(alone: Sequence[float], recorded: Sequence[float], predicted: Sequence[float]) -> dict[str, Any]:
    """How near times of kernels come, and what communication adds to them; any unit."""
    free, true, found = (np.array(times, dtype=np.float64) for times in (alone, recorded, predicted))
    return {
        "rows": len(free),
        "within": list(within(found / true - 1)),
        "no_contention_within": list(within(free / true - 1)),
        "recorded_added": float(true.sum() / free.sum() - 1),
        "predicted_added": float(found.sum() / free.sum() - 1),
    }


def step_effect(trace: TraceRows, predicted_ps: Sequence[float]) -> dict[str, float]:
    """What communication adds to all compute time of the trace, recorded and predicted, and the error."""
    total = trace.pairs.compute_ps
    if not total:
        return {}
    recorded = sum(row.kernel.recorded_ps for row in trace.rows)
    alone = sum(row.kernel.alone_ps for row in trace.rows)
    return {
        "recorded_added": (recorded - alone) / total,
        "predicted_added": (sum(predicted_ps) - alone) / total,
        "compute_error": (sum(predicted_ps) - recorded) / total,
    }


def study_text(study: Mapping[str, Any]) -> str:
    """Tables of published rows, then of each trace."""
    lines = ["Published slowdowns", f"  {'':58}{'recorded':>12}{'predicted':>11}{'one wave':>10}{'error':>8}"]
    for row in study["published"]:
        low, high = row["recorded_low"], row["recorded_high"]
        recorded = f"{low:.2f}" if low == high else f"{low:.2f}-{high:.2f}"
        lines.append(
            f"  {row['what']:58}{recorded:>12}{row['predicted']:>11.3f}{row['predicted_one_wave']:>10.2f}"
            f"{row['error']:>8.1%}"
        )
    echo = ", ".join(f"{name} {_shares(shares)}" for name, shares in study["echo_within"].items())
    lines += ["", f"Echo's shares of kernels within 5/10/15%: {echo}", f"Learned: {study['learned']}"]
    if study["rows"]:
        lines += ["", *_overlap_lines(study["overlap"])]
    for name, agreed in study["agreement"].items():
        lines.append(
            f"  {name}: {agreed['found']} of {agreed['rows']} good rows are in the traces, nine tenths within"
            f" {agreed['alone']:.1%} alone, {agreed['beside']:.1%} beside"
        )
    for what, found in study["left_out"].items():
        if found:
            lines += ["", f"Numbers fitted without the trace, {what}", *_overlap_lines(found)[1:]]
            lines += [f"  {name}: {_fitted(score['fitted'])}" for name, score in found.items()]
    for what, found in study["worth"].items():
        if found:
            lines += ["", *_worth_lines(what, found)]
    for trace in study["traces"]:
        lines += ["", *_trace_lines(trace)]
    refused: dict[str, list[str]] = defaultdict(list)
    for line in study["skipped"]:
        refused[line["reason"]].append(str(line["trace"]) if "trace" in line else f"row {line['id']}")
    for reason, what in refused.items():
        others = f" and {len(what) - 1} more" if len(what) > 1 else ""
        lines.append(f"left out {what[0]}{others}: {reason}")
    return "\n".join(lines)


def _overlap_lines(scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = [
        "Table of kernels alone and beside communication: shares within 5/10/15%, time added",
        f"  {'':42}{'rows':>5}{'predicted':>16}{'no contention':>16}{'recorded':>10}{'predicted':>11}",
    ]
    for name, score in scores.items():
        predicted, without = _shares(score["within"]), _shares(score["no_contention_within"])
        lines.append(
            f"  {name[:42]:42}{score['rows']:>5}{predicted:>16}{without:>16}{score['recorded_added']:>10.1%}"
            f"{score['predicted_added']:>11.1%}"
        )
    return lines


def _worth_lines(what: str, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """By trace and mechanism: shares within bounds and added time without it."""
    lines = [f"Without each mechanism, {what}: shares within 5/10/15%, time added"]
    for trace, score in found[""].items():
        lines.append(f"  {trace}: {score['recorded_added']:.1%} added as recorded")
        lines += [
            f"    {name or 'everything there':44}{_shares(scores[trace]['within']):>16}"
            f"{scores[trace]['predicted_added']:>8.1%}"
            for name, scores in found.items()
        ]
    return lines


def _fitted(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in numbers.items())


def _trace_lines(trace: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{trace['trace']} on {trace['gpu']}: {trace['kernels']} kernels beside communication;"
        f" {trace['never_alone']} more never seen alone, {trace['beside_compute']} beside compute too",
        f"  repeats of the same kernels alone within 5/10/15%: {_shares(trace['repeats_within'])}",
    ]
    for name, found in trace["scores"].items():
        lines += [f"  {name}", f"  {_HEAD}"]
        for row in found:
            shares = "".join(f"{share:>6.0%}" for share in row["within"])
            lines.append(
                f"  {row['what']:44}{row['num_kernels']:>6}{shares}{row['median_error']:>9.1%}"
                f"{row['recorded_median']:>7.2f}{row['recorded_p90']:>7.2f}{row['recorded_excess']:>8.1%}"
                f"{row['predicted_excess']:>8.1%}{row['lost_per_held']:>11.2f}"
            )
    if grids := trace["grids"]:
        lines.append(
            f"  grids of {grids['products']} products by their shapes: {grids['equal']:.0%} as recorded,"
            f" {grids['one_choice']:.0%} within one choice of tiles"
        )
    for name, lengths in trace["bands"].items():
        lines += [
            f"  {name}, {length}: bands of other traces, x {band['factor']:.2f}, hold {band['inside']:.0%}"
            for length, band in lengths.items()
        ]
    for name, effect in trace["step_effect"].items():
        if effect:
            lines.append(
                f"  all compute time, {name}: communication adds {effect['recorded_added']:.2%} recorded,"
                f" {effect['predicted_added']:.2%} predicted; error {effect['compute_error']:+.2%}"
            )
    if trace["transfers"]:
        lines.append("  collectives, from when the last rank comes (us): alone, beside compute, NCCL alone")
    for row in trace["transfers"]:
        alone, beside, predicted = (_us(row[name]) for name in ("alone_us", "beside_us", "predicted_us"))
        lines.append(
            f"  {row['collective']:16}{row['bytes']:>12} bytes{row['ranks']:>4} ranks"
            f"{row['alone']:>4} x{alone:>8}{row['beside']:>4} x{beside:>8}{predicted:>9}"
        )
    for step in trace["steps"]:
        if "error" in step:
            lines.append(f"  steps: {step['error']}")
        else:
            recorded, predicted = step["recorded_s"], step["predicted_s"]
            lines.append(
                f"  rank {step['rank']} step {step['step']}: {recorded * 1e3:.2f} ms recorded,"
                f" {predicted * 1e3:.2f} ms predicted ({predicted / recorded - 1:+.1%})"
            )
    return lines


def _us(time: float | None) -> str:
    return f"{time:.1f}" if time is not None else "-"


def _shares(shares: Sequence[float]) -> str:
    return "/".join(f"{share:.0%}" for share in shares) if shares else "not known"
