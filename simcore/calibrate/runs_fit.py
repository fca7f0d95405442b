"""Two numbers per board fitted to published runs, and what happens to a family that the fit did not see.

Note [Linear in the inverses]
    A step is time that no number touches (links, latencies, launches), time that shrinks with the clock and
    time that shrinks with HBM bandwidth: T(c, h) = a + b / c + d / h.  The three come from three simulations
    of each row; kernels that change from one bound to the other make this a first-order expansion, so the
    fitted numbers are simulated again for the tables that are reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simcore.calibrate.runs import case_key
from simcore.calibrate.runs_score import Described, Progress, describe_rows, predict_cases
from simcore.errors import InputError, nearest
from workloads.published import BoardPhysics, RunRow, board_physics, read_run_rows

FloatArray = npt.NDArray[np.float64]

#: Where the search looks: shares of the rated clock and of peak bandwidth.
CLOCKS = np.linspace(0.6, 1.05, 91)
BANDWIDTHS = np.linspace(0.6, 0.95, 36)


@dataclass(frozen=True)
class Expansion:
    """T = ``fixed`` + ``by_clock`` / clock + ``by_hbm`` / hbm, seconds, of a row's cases."""

    described: Described
    fixed: FloatArray
    by_clock: FloatArray
    by_hbm: FloatArray

    @property
    def family(self) -> str:
        """The row's family."""
        return self.described.row.family

    @property
    def board(self) -> str:
        """The row's board group."""
        return self.described.band.cases[0].board

    @property
    def counts(self) -> bool:
        """Whether a fit uses the row: all inputs published, not odd."""
        return self.described.row.text("quality").upper() != "B" and not self.described.odd

    def errors(self, clock: FloatArray, hbm: FloatArray) -> FloatArray:
        """Signed relative error at each pair of numbers; 0 within the row's band."""
        times = (
            self.fixed[:, None]
            + self.by_clock[:, None] / clock[None, :]
            + self.by_hbm[:, None] / hbm[None, :]
        )
        measured = self.described.measured_s
        low, high = times.min(axis=0), times.max(axis=0) * self.described.widened
        return np.asarray(np.clip(measured, low, high) / measured - 1)

    def at(self, p: BoardPhysics) -> float:
        """Signed relative error by one pair of numbers."""
        return float(self.errors(np.array([p.clock]), np.array([p.hbm_efficiency]))[0])


def expand(rows: Sequence[RunRow], start: Mapping[str, BoardPhysics]) -> list[Expansion]:
    """Three simulations of every case: at ``start``, at a lower clock, at a lower bandwidth."""
    described, _ = describe_rows(rows)
    cases = {case_key(case): case for entry in described for case in entry.band.cases}
    step = 0.9
    points = [
        dict(start),
        {name: replace(p, clock=p.clock * step) for name, p in start.items()},
        {name: replace(p, hbm_efficiency=p.hbm_efficiency * step) for name, p in start.items()},
    ]
    times = [predict_cases(cases, point, progress=Progress("fit")) for point in points]
    expansions = []
    for entry in described:
        keys = [case_key(case) for case in entry.band.cases]
        triples = [[found[key] for found in times] for key in keys]
        kept = [t for t in triples if not any(isinstance(value, str) for value in t)]
        if kept:
            base, slow, narrow = np.array(kept, dtype=np.float64).T
            p = start[entry.band.cases[0].board]
            by_clock = (slow - base) * p.clock / (1 / step - 1)
            by_hbm = (narrow - base) * p.hbm_efficiency / (1 / step - 1)
            fixed = base - by_clock / p.clock - by_hbm / p.hbm_efficiency
            expansions.append(Expansion(entry, fixed, by_clock, by_hbm))
    return expansions


def fit_board(rows: Sequence[Expansion]) -> BoardPhysics:
    """Numbers with the least mean over families of the mean absolute error."""
    clock, hbm = (grid.ravel() for grid in np.meshgrid(CLOCKS, BANDWIDTHS))
    by_family: dict[str, list[FloatArray]] = defaultdict(list)
    for row in rows:
        if row.counts:
            by_family[row.family].append(np.abs(row.errors(clock, hbm)))
    if not by_family:
        return BoardPhysics(1.0, 0.9)
    cost = np.mean([np.mean(errors, axis=0) for errors in by_family.values()], axis=0)
    best = int(np.argmin(cost))
    return BoardPhysics(round(float(clock[best]), 3), round(float(hbm[best]), 3))


def fit_all(rows: Sequence[Expansion]) -> dict[str, BoardPhysics]:
    """A fit for every board that has rows."""
    return {board: fit_board([r for r in rows if r.board == board]) for board in {r.board for r in rows}}


def leave_one_out(rows: Sequence[Expansion]) -> dict[str, FloatArray]:
    """Absolute errors of each family's rows by numbers fitted without it (of its own board: all others')."""
    found: dict[str, list[float]] = defaultdict(list)
    for family in sorted({row.family for row in rows}):
        for board in {row.board for row in rows if row.family == family}:
            others = [row for row in rows if row.board == board and row.family != family]
            if not any(row.counts for row in others):
                # A board that only this family used: numbers of the nearest board of its generation.
                others = [row for row in rows if row.board[:4] == board[:4] and row.family != family]
            p = fit_board(others)
            for row in rows:
                if row.family == family and row.board == board and row.counts:
                    found[family].append(abs(row.at(p)))
    return {family: np.array(errors) for family, errors in found.items()}


def print_runs_fit(board: str, path: str, *, left_out: bool) -> None:
    """Fit ``board`` ("all": every board) to the runs of ``path`` and print TOML tables and errors by family.

    ``left_out``: also the error of each family by numbers fitted without it.  Errors: InputError for an
    unknown board or a bad file.
    """
    start = board_physics()
    if board not in ("all", *start):
        raise InputError(f"no board {board!r}{nearest(board, ('all', *start))}")
    rows = [row for row in expand(read_run_rows(path), start) if board in ("all", row.board)]
    fitted = fit_all(rows)
    for name, p in sorted(fitted.items()):
        print(f"[{name}]\nclock = {p.clock}\nhbm_efficiency = {p.hbm_efficiency}")
    without = leave_one_out(rows) if left_out else {}
    print(f"{'family':22}{'n':>5}{'fitted %':>10}" + (f"{'left out %':>12}" if left_out else ""))
    means = []
    for family in sorted({row.family for row in rows if row.counts}):
        errors = [abs(row.at(fitted[row.board])) for row in rows if row.counts and row.family == family]
        other = without.get(family)
        means.append((float(np.mean(errors)), float(np.mean(other)) if other is not None else 0.0))
        last = f"{100 * means[-1][1]:12.1f}" if left_out else ""
        print(f"{family:22}{len(errors):>5}{100 * means[-1][0]:10.1f}{last}")
    if means:
        fitted_mean, other_mean = (100 * value for value in np.mean(means, axis=0))
        print(f"{'mean over families':27}{fitted_mean:10.1f}" + (f"{other_mean:12.1f}" if left_out else ""))
