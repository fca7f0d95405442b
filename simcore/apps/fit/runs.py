"""Numbers of each die fitted to published runs, and what happens to a family that the fit did not see.

Note [Step time over the clock]
    A step is time that the clock does not touch (links, HBM, launches) and time that shrinks with it, and
    kernels change from one bound to the other in between: its logarithm is a smooth function of the clock's,
    nearly straight.  Each case is simulated at three clocks, and the parabola through their logarithms stands
    for all others; ``probe`` says how far it is from simulations in between.  Cases in fp8 are simulated once
    more with slower fp8 products, which adds a slope.
    Fits over rows, with any family left out, are then arithmetic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from simcore.apps.measured.runs.cache import StepTimes
from simcore.apps.measured.runs.predict import case_key
from simcore.apps.measured.runs.score import DescribedRow, describe_rows, predict_cases
from simcore.apps.progress import Countdown
from simcore.errors import InputError, nearest
from simcore.hardware import dies
from simcore.hardware.sustained import Sustained
from simcore.records import dataclass
from workloads.jobs.published import Case, RunRow

FloatArray = npt.NDArray[np.float64]

#: Clocks that are simulated, relative to the one in use.
STEPS: Final = (0.85, 1.0, 1.15)

#: Rate of fp8 products that is simulated, relative to the one in use.
FP8_STEP: Final = 0.9

#: Where the search looks: shares of the rated clock, and of the rate of fp8 products.
CLOCKS: Final = np.linspace(0.6, 1.05, 91)
FP8_RATES: Final = np.linspace(0.7, 1.0, 31)


@dataclass(frozen=True)
class ClockCurve:
    """Step times of one row's cases: ``log_s[case, point]`` at ``clocks[point]``, fp8 at the rate ``fp8``.

    ``fp8_slope[case]``: change of the logarithm with that of the rate of fp8 products.
    """

    described: DescribedRow
    clocks: FloatArray
    log_s: FloatArray
    fp8: float
    fp8_slope: FloatArray

    @property
    def family(self) -> str:
        """The row's family."""
        return self.described.row.family

    @property
    def die(self) -> str:
        """The die of the row's GPUs."""
        return self.described.band.cases[0].die

    def seconds(self, clock: FloatArray, fp8: FloatArray) -> FloatArray:
        """Step time of each case at each pair of numbers; see Note [Step time over the clock]."""
        x, at = np.log(self.clocks), np.log(np.asarray(clock, dtype=np.float64))
        weights = np.ones((len(x), len(at)))
        for k, own in enumerate(x):
            for other in np.delete(x, k):
                weights[k] *= (at - other) / (own - other)
        slower = self.fp8_slope[:, None] * np.log(np.asarray(fp8) / self.fp8)[None, :]
        return np.asarray(np.exp(self.log_s @ weights + slower))

    def errors(self, clock: FloatArray, fp8: FloatArray) -> FloatArray:
        """Signed relative error at each pair of numbers; 0 within the row's band."""
        times, measured = self.seconds(clock, fp8), self.described.measured_s
        low, high = times.min(axis=0), times.max(axis=0) * self.described.widened
        return np.asarray(np.clip(measured, low, high) / measured - 1)

    def band(self, numbers: Sustained) -> tuple[float, float]:
        """Shortest and longest step time of the row's cases by a die's numbers, seconds."""
        times = self.seconds(np.array([numbers.clock]), np.array([numbers.fp8]))
        return float(times.min()), float(times.max()) * self.described.widened

    def error(self, numbers: Sustained) -> float:
        """Signed relative error by a die's numbers."""
        return float(self.errors(np.array([numbers.clock]), np.array([numbers.fp8]))[0])


@dataclass(frozen=True)
class Fit:
    """Numbers by die, and by family the mean absolute errors: with it in the fit, and without.

    ``left_out_s``: by row the ends of its band, seconds, by the numbers fitted without its family.
    """

    numbers: dict[str, Sustained]
    rows: dict[str, int]
    inside: dict[str, float]
    outside: dict[str, float]
    numbers_without: dict[str, dict[str, Sustained]]
    left_out_s: dict[str, tuple[float, float]] = field(default_factory=dict)


def counts(entry: DescribedRow) -> bool:
    """Whether a fit uses the row: all inputs published, measured, not odd."""
    return entry.row.text("quality").upper() != "B" and not entry.odd and not entry.unscored


def curves(
    described: Sequence[DescribedRow], start: Mapping[str, Sustained], times: StepTimes | None = None
) -> list[ClockCurve]:
    """Every case of the rows that count, simulated at the clocks around ``start``; refused ones left out."""
    entries = [entry for entry in described if counts(entry) and entry.band.cases[0].die in start]
    cases = {case_key(case): case for entry in entries for case in entry.band.cases}
    points = [{die: replace(p, clock=p.clock * step) for die, p in start.items()} for step in STEPS]
    times_at = [
        predict_cases(cases, point, progress=Countdown(f"fit, clock x {step:g}"), times=times)
        for point, step in zip(points, STEPS, strict=True)
    ]
    slower = {die: replace(p, fp8=p.fp8 * FP8_STEP) for die, p in start.items()}
    in_fp8 = {key: case for key, case in cases.items() if case.training.precision == "fp8"}
    times_slower = predict_cases(in_fp8, slower, progress=Countdown("fit, fp8"), times=times)
    found = []
    for entry in entries:
        keys = [case_key(case) for case in entry.band.cases]
        # Another precision has no slope: as fast with slower fp8 products.
        known = [[*(at[key] for at in times_at), times_slower.get(key, times_at[1][key])] for key in keys]
        seconds = [row for row in known if not any(isinstance(value, str) for value in row)]
        if seconds:
            p = start[entry.band.cases[0].die]
            logs = np.log(np.array(seconds, dtype=np.float64))
            slope = (logs[:, 3] - logs[:, 1]) / np.log(FP8_STEP)
            found.append(ClockCurve(entry, p.clock * np.array(STEPS), logs[:, :3], p.fp8, slope))
    return found


def fit_numbers(rows: Sequence[ClockCurve]) -> Sustained:
    """The numbers with the least mean over families of the mean absolute error; rated ones without rows."""
    rates = FP8_RATES if any(row.fp8_slope.any() for row in rows) else np.ones(1)
    clock, fp8 = (grid.ravel() for grid in np.meshgrid(CLOCKS, rates))
    by_family: dict[str, list[FloatArray]] = defaultdict(list)
    for row in rows:
        by_family[row.family].append(np.abs(row.errors(clock, fp8)))
    if not by_family:
        return Sustained()
    cost = np.mean([np.mean(errors, axis=0) for errors in by_family.values()], axis=0)
    best = int(np.argmin(cost))
    return Sustained(round(float(clock[best]), 3), round(float(fp8[best]), 3))


def fit(rows: Sequence[ClockCurve]) -> Fit:
    """Numbers fitted to all rows, and each family's errors by numbers fitted with and without it."""
    dies_seen = sorted({row.die for row in rows})
    families = list(dict.fromkeys(row.family for row in rows))
    numbers = {die: fit_numbers([row for row in rows if row.die == die]) for die in dies_seen}
    without = {
        family: {
            die: fit_numbers([row for row in rows if row.die == die and row.family != family])
            for die in dies_seen
        }
        for family in families
    }
    members = {family: [row for row in rows if row.family == family] for family in families}
    return Fit(
        numbers,
        {family: len(found) for family, found in members.items()},
        {f: float(np.mean([abs(row.error(numbers[row.die])) for row in m])) for f, m in members.items()},
        {f: float(np.mean([abs(row.error(without[f][row.die])) for row in m])) for f, m in members.items()},
        without,
        {row.described.row.id: row.band(without[row.family][row.die]) for row in rows},
    )


def probe(
    rows: Sequence[ClockCurve], start: Mapping[str, Sustained], times: StepTimes | None = None
) -> float:
    """Largest relative distance of curves from simulations, over one row of each family.

    Simulated half-way between two of the clocks that the curves go through.
    """
    middle = (STEPS[0] * STEPS[1]) ** 0.5
    between = {die: replace(p, clock=p.clock * middle) for die, p in start.items()}
    sample = list({row.family: row for row in rows}.values())
    cases: dict[str, Case] = {}
    for row in sample:
        case = row.described.band.cases[0]
        cases[case_key(case)] = case
    found = predict_cases(cases, between, progress=Countdown("probe"), times=times)
    worst = 0.0
    for row in sample:
        simulated = found[case_key(row.described.band.cases[0])]
        if not isinstance(simulated, str):
            p = between[row.die]
            drawn = row.seconds(np.array([p.clock]), np.array([p.fp8]))[0, 0]
            worst = max(worst, abs(float(drawn) / simulated - 1))
    return worst


def print_runs_fit(
    die: str, rows: Sequence[RunRow], *, left_out: bool, times: StepTimes | None = None
) -> None:
    """Fit ``die`` ("all": every die) to published runs; print its numbers and errors by family.

    ``left_out``: also the error of each family by numbers fitted without it.  Errors: InputError for an
    unknown die, or rows of which none counts.
    """
    start = dies()
    if die not in ("all", *start):
        raise InputError(f"no die {die!r}{nearest(die, ('all', *start))}")
    described, _ = describe_rows(rows)
    chosen = {name: p for name, p in start.items() if die in ("all", name)}
    found = curves(described, chosen, times)
    if not found:
        raise InputError(f"no row of quality A on {die}")
    fitted = fit(found)
    for name, p in fitted.numbers.items():
        used = start[name]
        print(f"[{name}]  # in use: {used.clock:g}, {used.fp8:g}\nclock = {p.clock}\nfp8 = {p.fp8}")
    worst = probe(found, chosen, times)
    print(f"parabolas against simulations between their points: {100 * worst:.2f}% at most")
    print("\n".join(fit_lines(fitted, left_out=left_out)))


def fit_lines(fitted: Fit, *, left_out: bool) -> list[str]:
    """Errors by family, for a terminal."""
    lines = [f"{'family':22}{'n':>5}{'fitted %':>10}" + (f"{'left out %':>12}" if left_out else "")]
    for family, inside in fitted.inside.items():
        last = f"{100 * fitted.outside[family]:12.1f}" if left_out else ""
        lines.append(f"{family:22}{fitted.rows[family]:>5}{100 * inside:10.1f}{last}")
    inside, outside = (100 * float(np.mean(list(e.values()))) for e in (fitted.inside, fitted.outside))
    lines.append(f"{'mean over families':27}{inside:10.1f}" + (f"{outside:12.1f}" if left_out else ""))
    return lines
