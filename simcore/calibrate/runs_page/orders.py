"""Rank order within sweeps, and errors beside what reports of one run differ by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from simcore.calibrate.runs_page.tables import percent, table
from simcore.calibrate.runs_score import RowScore
from simcore.calibrate.runs_sweeps import Repeats, Tau, layouts, orders, repeats, scalings


def repeat_lines(scores: Sequence[RowScore]) -> list[str]:
    """How far reports of the same run lie apart, beside the error of their family."""
    known = repeats(scores)
    if not known:
        return []
    rows = []
    for family, found in known.items():
        errors = [abs(s.error) for s in scores if s.described.row.family == family and not s.described.odd]
        mean = float(np.mean(errors))
        rows.append(
            (
                family,
                found.runs,
                found.rows,
                percent(found.spread),
                percent(mean),
                f"{mean / found.spread:.1f}",
            )
        )
    return [
        "## Errors beside the noise of measurements",
        "",
        "Some runs were reported more than once: rows (odd ones left out) whose columns describe one and the"
        " same job, at other dates or with another release of the same software.  No prediction can be nearer"
        " to all of them than their spread, the standard deviation of a report about its run's mean.",
        "",
        *table(("", "runs", "rows", "spread %", "mean error %", "error / spread"), rows),
    ]


def order_lines(scores: Sequence[RowScore]) -> list[str]:
    """Kendall's tau of each sweep."""
    known = repeats(scores)
    heads = ("sweep", "rows", "tau", "without odd rows", "apart by more than noise", "of pairs", "")
    return [
        "## Rank order",
        "",
        "Kendall's tau-b of what a token costs (GPU seconds, measured and predicted): 1 is the same order, 0"
        " none.  Of a band its geometric middle counts, which knows nothing of what was measured.  The fourth"
        " number counts only pairs of rows (without odd ones) whose measured costs differ by more than two"
        " reports of one run do: the spread above times the root of two, the median family's where nothing"
        " was reported twice.",
        "",
        "Layouts: one model, batch, precision and number of GPUs, spread differently (TP, PP, DP, micro"
        " batch, recomputation).",
        "",
        *table(heads, _taus(layouts(scores), known)),
        "Scaling: one model, sequence length and precision over numbers of GPUs, with whatever else differs"
        " (releases, batch, layouts); DGXC has one layout per model and release, so its sweeps are here."
        "  At equal work per GPU costs differ by little, and order is hard.",
        "",
        *table(heads, _taus(scalings(scores), known)),
    ]


def _taus(sweeps: Mapping[str, Sequence[RowScore]], known: Mapping[str, Repeats]) -> list[tuple[object, ...]]:
    alike = "all predicted alike: its columns do not say what differs"
    return [
        (
            found.sweep, found.rows, *(_shown(tau) for tau in (found.every, found.usual, found.apart)),
            found.apart.pairs, alike if math.isnan(found.every.value) else "",
        )
        for found in orders(sweeps, known)
    ]  # fmt: skip


def _shown(tau: Tau) -> str:
    return "" if math.isnan(tau.value) else f"{tau.value:.2f}"
