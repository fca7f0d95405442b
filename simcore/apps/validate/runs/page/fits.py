"""Numbers of each die, families left out of their fit, and what each piece of physics is worth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from simcore.apps.fit.runs import Fit
from simcore.apps.measured.runs.score import RowScore
from simcore.apps.validate.runs.ablations import Miss, Worth
from simcore.apps.validate.runs.page.tables import percent, strategy, table
from simcore.hardware import dies
from simcore.hardware.sustained import Sustained

#: Groups with a larger mean error are looked at; at most so many.
_FAR: Final = 0.1
_MOST: Final = 6


def physics_lines() -> list[str]:
    """The numbers in use."""
    rows = [(die, f"{p.clock:g}", percent(p.spread), f"{p.fp8:g}") for die, p in dies().items()]
    heads = ("die", "mean clock under load / rated", "spread between GPUs, %", "fp8 products / twice bf16")
    return ["Numbers by die:", "", *table(heads, rows)]


def left_out_lines(fitted: Fit) -> list[str]:
    """In-sample and left-out errors side by side."""
    rows: list[tuple[object, ...]] = []
    for family, inside in fitted.inside.items():
        moved = {b: p for b, p in fitted.numbers_without[family].items() if p != fitted.numbers[b]}
        outside = percent(fitted.outside[family])
        rows.append((family, fitted.rows[family], percent(inside), outside, _said(moved) or "the same"))
    means = [float(np.mean(list(errors.values()))) for errors in (fitted.inside, fitted.outside)]
    count = sum(fitted.rows.values())
    rows.append(("mean over families", count, percent(means[0]), percent(means[1]), ""))
    return [
        "## Families left out",
        "",
        "Quality A, n rows of each family.  Numbers (clock, and rate of fp8) fitted to all families:"
        f" {_said(fitted.numbers)}; to all but one: last column.  Goal for families left out: a mean of 8%.",
        "",
        *table(("", "n", "in the fit, mean %", "left out, mean %", "numbers without it"), rows),
    ]


def worth_lines(worths: Sequence[Worth]) -> list[str]:
    """Errors without each piece of physics."""
    seen = list(worths[0].errors)
    base = worths[0].errors
    rows = [
        (
            worth.name,
            *(percent(worth.errors[die]) for die in seen),
            *(percent(worth.errors[die] - base[die], signed=True) for die in seen),
            _said(worth.numbers),
        )
        for worth in worths
    ]
    heads = [
        "",
        *(f"{die}, mean %" for die in seen),
        *(f"{die}, worth" for die in seen),
        "clocks",
    ]
    return [
        "## What each piece is worth",
        "",
        "Mean error over families, on some rows of each, with one piece of physics switched off and the"
        " numbers of the dies fitted again.",
        "",
        *table(heads, rows),
    ]


def far_off(scores: Sequence[RowScore]) -> dict[str, RowScore]:
    """The groups (family and strategy, odd rows apart) that miss most, each with a typical row."""
    groups: dict[str, list[RowScore]] = defaultdict(list)
    for score in scores:
        if not score.described.odd:
            groups[f"{score.described.row.family}, {strategy(score)}"].append(score)
    means = {name: float(np.mean([abs(s.error) for s in found])) for name, found in groups.items()}
    worst = sorted((name for name in groups if means[name] > _FAR), key=lambda name: -means[name])[:_MOST]
    typical = {name: sorted(groups[name], key=lambda s: abs(s.error)) for name in worst}
    return {name: found[len(found) // 2] for name, found in typical.items()}


def miss_lines(misses: Sequence[Miss]) -> list[str]:
    """Where predictions are farthest off: the error without each piece."""
    names = list(misses[0].without)
    rows: list[tuple[object, ...]] = [
        ("error % as predicted", *(percent(miss.error, signed=True) for miss in misses)),
        *((name, *(_error(miss.without[name]) for miss in misses)) for name in names),
    ]
    return [
        "## Where predictions miss",
        "",
        f"Families by strategy with a mean error above {100 * _FAR:.0f}% (odd rows apart), at most"
        f" {_MOST}, one typical row of each: the error of its nearest case as predicted, and with one piece"
        " of physics switched off or changed; empty where that changes nothing.  A change that brings the"
        " error near zero is a suspect, no proof.",
        "",
        *(f"{k}. {miss.group}: {miss.row}" for k, miss in enumerate(misses, start=1)),
        "",
        *table(("", *(str(k) for k in range(1, len(misses) + 1))), rows),
    ]


def _error(error: float | None) -> str:
    return "" if error is None else percent(error, signed=True)


def _said(numbers: Mapping[str, Sustained]) -> str:
    return ", ".join(
        f"{die} {p.clock:g}" + (f" and {p.fp8:g}" if p.fp8 != 1 else "") for die, p in numbers.items()
    )
