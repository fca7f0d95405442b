"""How often measured step times lie in the bands that other runs give them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from simcore.calibrate.runs_page.tables import percent, table
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
    """By name: "all", "quality A", "quality B", then families of :data:`LARGE` runs and more; odd ones apart."""
    evidence = Evidence(runs)
    apart, alone = evidence.within(level), evidence.within(level, alone=True)
    bands = [evidence.interval(run.features, level=level, without=run.family) for run in evidence.runs]
    rows = [
        (run, a, b, band.high_factor - band.low_factor)
        for run, a, b, band in zip(evidence.runs, apart, alone, bands, strict=True)
    ]

    def of(wanted: Callable[[MeasuredRun], bool]) -> Coverage:
        found = [row for row in rows if wanted(row[0])]
        shares = [float(np.mean([row[k] for row in found])) if found else 0.0 for k in (1, 2)]
        widths = [row[3] for row in found]
        return Coverage(len(found), shares[0], shares[1], float(np.median(widths)) if widths else 0.0)

    families = dict.fromkeys(run.family for run in runs if not run.odd)
    named = {
        "all": of(lambda run: True),
        "quality A": of(lambda run: run.quality != "B"),
        "quality B": of(lambda run: run.quality == "B"),
    }
    named |= {family: of(lambda run, family=family: run.family == family) for family in families}
    first = ("all", "quality A", "quality B")
    return {name: found for name, found in named.items() if name in first or found.runs >= LARGE}


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
        f" {LARGE} rows and more.  Left out are the numbers of the dies, too.  The first column is what a job"
        " of an unknown source can expect.  It cannot be near 80% in each family: nothing tells a family whose"
        " rows all miss by 1% from one whose rows all miss by 10% before one of its rows was measured.  The"
        " second column is for a job like measured ones.  Rows of quality B count with their distance to what"
        " their open inputs allow, odd rows not at all.  Width: upper less lower end over the prediction.",
        "",
        *table(heads, cells),
    ]
