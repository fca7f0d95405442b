"""How often measured step times lie in the bands that other runs give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simcore.apps.validate.runs.page.tables import percent, table
from simcore.records import dataclass
from workloads.evidence import LEVEL, Evidence, MeasuredRun

#: A family of so many rows says something about coverage within it.
LARGE: Final = 10


@dataclass(frozen=True)
class Coverage:
    """Shares of runs within their band: made from other families, and from all other runs.

    ``width``: median of upper less lower end over the prediction, with other families.
    """

    runs: int
    apart: float
    alone: float
    width: float


def coverage(runs: Sequence[MeasuredRun], level: float = LEVEL) -> dict[str, Coverage]:
    """By name: "all", "quality A" and "B", then families of :data:`LARGE` runs and more; odd runs apart."""
    evidence = Evidence(runs)
    rows: dict[str, list[tuple[bool, bool, float]]] = {"all": [], "quality A": [], "quality B": []}
    rows |= {run.family: [] for run in runs}
    apart, alone = evidence.within(level), evidence.within(level, alone=True)
    for run, *inside in zip(evidence.runs, apart, alone, strict=True):
        band = evidence.interval(run.features, level=level, without=run.family)
        row = (inside[0], inside[1], band.high_factor - band.low_factor)
        for name in ("all", "quality B" if run.quality == "B" else "quality A", run.family):
            rows[name].append(row)
    general = list(rows)[:3]
    return {
        name: _summed(np.array(found, dtype=np.float64))
        for name, found in rows.items()
        if found and (name in general or len(found) >= LARGE)
    }


def _summed(rows: npt.NDArray[np.float64]) -> Coverage:
    apart, alone, _ = rows.mean(axis=0).tolist()
    return Coverage(len(rows), apart, alone, float(np.median(rows[:, 2])))


def coverage_object(runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    """:func:`coverage` as plain values."""
    return {name: vars(found) for name, found in coverage(runs).items()}


def band_lines(runs: Sequence[MeasuredRun]) -> list[str]:
    """The section of the page."""
    found = coverage(runs)
    cells = [
        (name, one.runs, percent(one.apart), percent(one.alone), percent(one.width))
        for name, one in found.items()
    ]
    heads = ("", "n", "of other families, %", "of other rows, %", "median width, %")
    return [
        "## Bands",
        "",
        f"Rows whose measured step time lies in the {LEVEL:.0%} band that `run_sim.py` would state for them"
        " ([bands.md](bands.md)), made from other families alone, and from all other rows; families of"
        f" {LARGE} rows and more.  Predictions are those by numbers of the dies fitted without the family."
        "  The first column is what a job of an unknown source can expect.  It cannot be near 80% within each"
        " family: before one of its rows is measured, nothing tells a family whose rows all miss by 1% from"
        " one whose rows all miss by 10%.  The second column is for a job like measured ones.  Rows of"
        " quality B count with their distance to what their open inputs allow, odd rows not at all.  Width:"
        " upper less lower end over the prediction, by other families.",
        "",
        *table(heads, cells),
    ]
