"""Scaling published as a curve, beside what is predicted: a plot and its numbers."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from simcore.apps.measured.runs.score import RowScore
from simcore.apps.validate.runs.page.svg import (
    MEASURED,
    PREDICTED,
    Frame,
    bar,
    dot,
    line,
    text,
    ticks,
    turned,
)
from simcore.apps.validate.runs.page.tables import percent, table
from simcore.hardware import load_cluster
from simcore.records import dataclass
from workloads.models.flops import model_flops
from workloads.models.spec import transformer_of


@dataclass(frozen=True)
class ScalingCurve:
    """Rows of one publication over the number of GPUs.

    ``family`` and ``model`` are patterns that a row's columns match, ignoring case.
    """

    name: str
    title: str
    family: str
    model: str = ""

    def rows(self, scores: Sequence[RowScore]) -> list[RowScore]:
        """Matching scores by number of GPUs."""
        found = [
            score
            for score in scores
            if re.search(self.family, score.described.row.family, re.IGNORECASE)
            and re.search(self.model, score.described.row.text("model"), re.IGNORECASE)
            and "ablation" not in score.described.row.id
        ]
        return sorted(found, key=lambda score: score.described.row.count("gpus"))


CURVES: Final = (
    ScalingCurve("megascale", "MegaScale's Megatron-LM, GPT-175B: strong scaling", "^megascale$", "175"),
    ScalingCurve("sc21", "SC'21 weak scaling, 1.7B to 530B", "^sc21$"),
    ScalingCurve("mlperf", "MLPerf GPT-3 175B, 512 to 11,616 H100", "^mlperf(40|_gpt3)$"),
)


class Point(NamedTuple):
    """One run: model Tflop/s per GPU as measured, and the ends of what is predicted."""

    gpus: int
    model: str
    batch: float
    measured: float
    low: float
    high: float


def points(curve: ScalingCurve, scores: Sequence[RowScore]) -> list[Point]:
    """The curve's runs by number of GPUs."""
    return [
        Point(
            score.described.row.count("gpus"), score.described.row.text("model"),
            score.described.row.number("global_batch"), flops_per_gpu(score, score.measured_s),
            flops_per_gpu(score, score.high_s), flops_per_gpu(score, score.low_s),
        )
        for score in curve.rows(scores)
    ]  # fmt: skip


def flops_per_gpu(score: RowScore, seconds: float) -> float:
    """Model Tflop/s per GPU, attention in full (Megatron's convention), of a step of ``seconds``."""
    row = score.described.row
    model = transformer_of(score.described.band.cases[0].model, "this page")
    flops = model_flops(model, row.count("seq"), causal_once=False) * row.number("global_batch")
    return flops / seconds / row.count("gpus") / 1e12


def peak_tflops(curve: ScalingCurve, scores: Sequence[RowScore]) -> float:
    """Dense 16-bit Tflop/s of the curve's GPU, by its datasheet."""
    case = curve.rows(scores)[0].described.band.cases[0]
    return load_cluster(case.cluster, case.overrides).gpu.peak_flops["bf16"] / 1e12


def plot(curve: ScalingCurve, scores: Sequence[RowScore]) -> str:
    """An SVG: measured as dots (joined where model and batch are the same), predicted as bars over the band.

    The axis on the right is MFU: the share of the dense 16-bit peak.
    """
    found, peak = points(curve, scores), peak_tflops(curve, scores)
    low = math.log2(min(point.gpus for point in found)) - 0.3
    high = math.log2(max(point.gpus for point in found)) + 0.3
    frame = Frame(curve.title, "model Tflop/s per GPU", 1.2 * max(max(p.measured, p.high) for p in found))
    left, right = frame.inner

    def x(gpus: float) -> float:
        return left + (math.log2(gpus) - low) / (high - low) * (right - left)

    marks = [
        text(right + 6, frame.y(share / 100 * peak) + 4, f"{share:g}", anchor="start")
        for share in ticks(100 * frame.top / peak)
    ]
    marks.append(turned(frame.width - 8, frame.height / 2, "MFU, % of the 16-bit peak", degrees=90))
    marks += [bar(x(p.gpus), frame.y(p.low), frame.y(p.high), PREDICTED) for p in found]
    marks += [
        line(x(a.gpus), frame.y(a.measured), x(b.gpus), frame.y(b.measured), MEASURED)
        for a, b in itertools.pairwise(found)
        if (a.model, a.batch) == (b.model, b.batch) and a.gpus < b.gpus
    ]
    marks += [dot(x(p.gpus), frame.y(p.measured), MEASURED) for p in found]
    labelled = -math.inf
    for point in found:
        if x(point.gpus) - labelled > 34:
            labelled = x(point.gpus)
            marks.append(text(labelled, frame.height - frame.bottom + 15, f"{point.gpus:,}"))
    return frame.document(
        marks,
        x_title="GPUs",
        legend=((MEASURED, "measured (joined: same model and batch)"), (PREDICTED, "predicted")),
    )


def curve_lines(curve: ScalingCurve, scores: Sequence[RowScore]) -> list[str]:
    """The plot and its numbers as Markdown."""
    peak = peak_tflops(curve, scores)
    rows = []
    for score, p in zip(curve.rows(scores), points(curve, scores), strict=True):
        shares = sorted({percent(p.low / peak), percent(p.high / peak)}, key=float)
        rows.append(
            (
                f"{p.gpus:,}", p.model, f"{p.batch:g}", f"{p.measured:.0f}",
                percent(p.measured / peak), " to ".join(shares), percent(score.error, signed=True),
            )
        )  # fmt: skip
    heads = (
        "GPUs",
        "model",
        "batch",
        "measured Tflop/s",
        "MFU %",
        "predicted MFU %",
        "error of the step time %",
    )
    return [f"![{curve.title}](images/{curve.name}.svg)", "", *table(heads, rows)]
