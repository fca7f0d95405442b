"""Rank order within sweeps, and errors beside what reports of one run differ by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from simcore.apps.measured.runs.score import RowScore
from simcore.apps.validate.runs.page.tables import percent, table
from simcore.apps.validate.runs.sweeps import RepeatedRuns, layouts, orders, repeats, scalings


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
                f"{mean / found.spread:.1f}" if found.spread else "-",
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
    heads = (
        "sweep", "rows", "tau", "without odd rows", "exact predictions", "pairs apart", "of pairs", "",
    )  # fmt: skip
    return [
        "## Rank order",
        "",
        "Kendall's tau-b of what a token costs (GPU seconds, measured and predicted): 1 is the same order, 0"
        ' none.  Of a band its geometric middle counts, which knows nothing of what was measured.  "Exact'
        ' predictions" is the tau to expect of predictions without error for the rows that are not odd, as'
        " measured times scatter by the spread above (the median family's where nothing was reported twice)."
        '  "Pairs apart" counts only pairs whose measured costs differ by more than two reports of one run'
        " do, the spread times the root of two.",
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


def _taus(
    sweeps: Mapping[str, Sequence[RowScore]], known: Mapping[str, RepeatedRuns]
) -> list[tuple[object, ...]]:
    alike = "all predicted alike: its columns do not say what differs"
    return [
        (
            found.sweep, found.rows, _shown(found.every.value), _shown(found.usual.value),
            _shown(found.reachable), _shown(found.apart.value), found.apart.pairs,
            alike if math.isnan(found.every.value) else "",
        )
        for found in orders(sweeps, known)
    ]  # fmt: skip


def _shown(tau: float) -> str:
    return "" if math.isnan(tau) else f"{tau:.2f}"
