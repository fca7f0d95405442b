"""Scaling published as a curve, beside what is predicted: small SVG plots without a plotting library."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from simcore.calibrate.runs_score import RowScore
from workloads.models.flops import model_flops

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 460, 240, 60, 36, 26


@dataclass(frozen=True)
class Curve:
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
        ]
        return sorted(found, key=lambda score: score.described.row.count("gpus"))


CURVES = (
    Curve("megascale", "MegaScale's Megatron-LM, GPT-175B", "^megascale$", "175"),
    Curve("sc21", "SC'21 weak scaling, 1.7B to 530B", "^sc21$"),
    Curve("mlperf", "MLPerf GPT-3 175B, 512 to 11,616 H100", "^mlperf(40|_gpt3)$"),
)


def flops_per_gpu(score: RowScore, seconds: float) -> float:
    """Model Tflop/s per GPU, attention in full (Megatron's convention), of a step of ``seconds``."""
    row, model = score.described.row, score.described.band.cases[0].model
    flops = model_flops(model, row.count("seq"), causal_once=False) * row.number("global_batch")
    return flops / seconds / row.count("gpus") / 1e12


def plot(curve: Curve, scores: Sequence[RowScore]) -> str:
    """An SVG: measured as dots, predicted as bars from the low to the high end of the band."""
    rows = curve.rows(scores)
    points = [
        (
            score.described.row.count("gpus"), flops_per_gpu(score, score.measured_s),
            flops_per_gpu(score, score.high_s), flops_per_gpu(score, score.low_s),
        )
        for score in rows
    ]  # fmt: skip
    low = math.log2(min(gpus for gpus, *_ in points)) - 0.3
    high = math.log2(max(gpus for gpus, *_ in points)) + 0.3
    top = 1.15 * max(max(values) for _, *values in points)

    def x(gpus: float) -> float:
        return _LEFT + (math.log2(gpus) - low) / (high - low) * (_WIDTH - _LEFT - 10)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _BOTTOM - _TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        ' font-size="11"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_WIDTH / 2}" y="15" text-anchor="middle">{escape(curve.title)}: model Tflop/s per'
        " GPU</text>",
    ]
    step = 10 ** math.floor(math.log10(top))
    step = step if top / step >= 3 else step / 2
    ticks = [(k * step, y(k * step)) for k in range(int(top / step) + 1)]
    parts += [
        f'<line x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>'
        f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>'
        for value, at in ticks
    ]
    labelled = -math.inf
    for gpus, measured, slow, fast in points:
        centre = x(gpus)
        height = max(2.0, y(slow) - y(fast))
        parts.append(
            f'<rect x="{centre - 7:.1f}" y="{y(fast):.1f}" width="14" height="{height:.1f}" fill="#9cc3e6"/>'
            f'<circle cx="{centre:.1f}" cy="{y(measured):.1f}" r="3.5" fill="#c0392b"/>'
        )
        if centre - labelled > 34:
            parts.append(f'<text x="{centre:.1f}" y="{_HEIGHT - 20}" text-anchor="middle">{gpus}</text>')
            labelled = centre
    parts.append(
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 5}" text-anchor="middle">GPUs; dots measured, bars predicted'
        "</text></svg>"
    )
    return "\n".join(parts) + "\n"
