"""``calibrate.py all --clocks CSV``: laws of the clock fitted, and held against what the fit did not see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from simcore.calibrate.clocks.laws import LAWS, FloatArray, Law, Row
from simcore.calibrate.clocks.points import REFERENCES, key_of, measure_all
from simcore.calibrate.runs_fit import counts
from simcore.calibrate.runs_score import Described, describe_rows
from simcore.errors import InputError
from workloads.published import RunRow


def print_clock_laws(rows: Sequence[RunRow], limit: int, cache: Path) -> None:
    """Print errors of each law: in the fit, families, boards and dies left out.

    ``limit``: rows of each family and board (0: all).  ``cache``: file of what was simulated before.
    Errors: InputError where no row counts.
    """
    described, _ = describe_rows(rows)
    chosen = sample([entry for entry in described if counts(entry)], limit)
    cases = {key_of(entry.band.cases[0]): entry.band.cases[0] for entry in chosen}
    found = measure_all(cases, cache)
    held = []
    for entry in chosen:
        key = key_of(entry.band.cases[0])
        if (key, False) in found:
            held.append(Row(entry, found[key, False], found.get((key, True), found[key, False])))
    if not held:
        raise InputError("no row of quality A on a die that has numbers")
    print("\n".join(lines(held)))


def sample(entries: Sequence[Described], limit: int) -> list[Described]:
    """``limit`` rows of each family and board on dies of ``REFERENCES``, spread over precision and size."""
    groups: dict[tuple[str, str], list[Described]] = defaultdict(list)
    for entry in entries:
        case = entry.band.cases[0]
        if case.board in REFERENCES:
            groups[entry.row.family, case.cluster.rpartition("-")[0]].append(entry)
    chosen = []
    for _, group in sorted(groups.items()):
        group.sort(key=_spread)
        count = min(limit or len(group), len(group))
        chosen += [group[i] for i in sorted({round(i) for i in np.linspace(0, len(group) - 1, count)})]
    return chosen


def _spread(entry: Described) -> tuple[str, int, str]:
    case = entry.band.cases[0]
    return case.training.precision, case.parallel.world_size, entry.row.id


class _Errors:
    """A law's signed errors of some rows at each value of its number."""

    def __init__(self, rows: Sequence[Row], law: Law, numbers: FloatArray) -> None:
        self.rows, self.numbers = rows, numbers
        self._errors = np.array([row.error(law(row, numbers)) for row in rows])

    def means(self, wanted: Callable[[Row], bool]) -> FloatArray:
        """Mean over families of the mean absolute error of the wanted rows."""
        by_family: dict[str, list[FloatArray]] = defaultdict(list)
        for row, errors in zip(self.rows, self._errors, strict=True):
            if wanted(row):
                by_family[row.described.row.family].append(np.abs(errors))
        return np.asarray(np.mean([np.mean(found, axis=0) for found in by_family.values()], axis=0))

    def fitted(self, wanted: Callable[[Row], bool]) -> int:
        """Index of the best number for the wanted rows."""
        return int(np.argmin(self.means(wanted)))


def lines(rows: Sequence[Row]) -> list[str]:
    """The table of all laws, for a terminal."""
    dies = [die for die in REFERENCES if any(row.die == die for row in rows)]
    out = [", ".join(f"{die}: {sum(row.die == die for row in rows)} rows" for die in dies)]
    out.append(f"{'mean over families, %':36}" + "".join(f"{_title(die):>44}" for die in dies))
    for name, law, numbers in LAWS:
        errors = _Errors(rows, law, numbers)
        cells = [_cell(errors, die, next((other for other in dies if other != die), "")) for die in dies]
        out.append(f"{name:36}" + "".join(f"{cell:>44}" for cell in cells))
    out += ["", f"{'a board by the other boards of its die':42}{'n':>4}{'one clock':>24}{'by its limit':>24}"]
    for board in sorted({row.board for row in rows}):
        out += _board_line(rows, board)
    return out


def _title(die: str) -> str:
    return f"{die}: number, in fit, family out, die out"


def _cell(errors: _Errors, die: str, other: str) -> str:
    """Best number of a die, and errors: in the fit, each family by the others, all by the other die's."""
    best = errors.fitted(lambda row: row.die == die)
    inside = errors.means(lambda row: row.die == die)
    outside = []
    for family in {row.described.row.family for row in errors.rows if row.die == die}:
        mine = [row for row in errors.rows if row.die == die and row.described.row.family != family]
        if mine:
            kept = {id(row) for row in mine}
            index = errors.fitted(lambda row, kept=kept: id(row) in kept)  # type: ignore[misc]
            apart = errors.means(
                lambda row, family=family: row.die == die and row.described.row.family == family  # type: ignore[misc]
            )
            outside.append(float(apart[index]))
    left_out = 100 * float(np.mean(outside)) if outside else float("nan")
    carried = 100 * float(inside[errors.fitted(lambda row: row.die == other)]) if other else float("nan")
    return f"{errors.numbers[best]:.3f}  {100 * inside[best]:.2f}  {left_out:.2f}  {carried:.2f}"


def _board_line(rows: Sequence[Row], board: str) -> list[str]:
    """Errors of a board by a clock fitted to the other boards of its die, mean absolute and signed."""
    die = next(row.die for row in rows if row.board == board)
    members = [row for row in rows if row.board == board]
    if all(row.board == board for row in rows if row.die == die):
        return []
    text = f"{board:42}{len(members):>4}"
    for _, law, numbers in (LAWS[0], LAWS[3]):
        errors = _Errors(rows, law, numbers)
        best = errors.fitted(lambda row: row.die == die and row.board != board)
        # Without what its profile says of its limit: products as on the reference board.
        alike = [replace(row, own=row.like_reference) for row in members]
        found = np.array([row.error(law(row, numbers[best : best + 1]))[0] for row in alike])
        text += f"{100 * np.mean(np.abs(found)):>14.1f} ({100 * np.mean(found):+.1f})"
    return [text]
