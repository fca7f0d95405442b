"""The band of a predicted step time: what predictions of measured runs like it have missed by.

Note [Bands]
    The miss of a run is the logarithm of its measured over its predicted step time, by numbers of the dies
    that were fitted without its family.  For a job, every measured run gets two weights: one that falls with
    its distance (``_NEAR``), and one that is the same for all families, however many runs they hold: a job
    is as a rule from no family of the table, and families differ in their mean more than their rows among
    each other.  The second part has a constant sum (``_ANY_FAMILY``), so it is what decides where no run is
    near.  The 10% and 90% quantiles of the misses by these weights, each at least ``_LEAST`` from zero, are
    the raw band; a bias of near runs stays inside it and is not corrected, as its sign changes from family to
    family.
    It widens with the distance of the nearest run beyond ``_FAR`` (nine of ten left-out runs have a nearer
    one), and with what no run on the job's framework has: a die, experts, a precision, or a number beyond the
    largest measured one, each by its term of the distance (``FeatureFeatureColumns.novelties``).
    A factor for all bands makes the level true: of all runs, each with the band that the *other* families
    give, the share ``level`` lies within (split conformal prediction with a scaled score; a run whose
    unpublished inputs leave a width counts less, ``_OPEN``).  It is the quantile of the runs' ``reach``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from simcore.elementary import exp, exp_of, plain_sum
from simcore.records import dataclass
from workloads.evidence.distance import FeatureColumns, differences
from workloads.evidence.features import JobFeatures
from workloads.evidence.runs import MeasuredRun, measured_runs

FloatArray = npt.NDArray[np.float64]

LEVEL: Final = 0.8

_NEAR: Final = 0.25  # distance at which a run's weight has fallen to 1/e
_ANY_FAMILY: Final = 0.25  # runs at distance 0 that all families together weigh as much as
_TAIL: Final = 0.1  # share of weight outside the raw band, at each end
_LEAST: Final = 0.005  # repeats of one measurement differ by this
_OPEN: Final = 0.05  # width of a run's open inputs at which it counts half
_FAR: Final = 1.0
_STRETCH: Final = 0.5  # a band widens by this share for each unit of distance beyond
_SHOWN: Final = 5


@dataclass(frozen=True)
class Near:
    """A measured run near a job; ``differs``: what it has that the job has not, what matters most first."""

    id: str
    family: str
    framework: str
    distance: float
    measured_s: float
    predicted_s: float
    differs: tuple[str, ...]


@dataclass(frozen=True)
class Stated:
    """``low_factor`` and ``high_factor`` times a predicted step time hold what is measured in ``level`` of
    all cases.

    ``runs``: number of measured runs that the band rests on, an effective one (of equal weights).
    ``widened``: by how much the band was widened, a factor.  ``reasons``: why, and what is not known.
    """

    low_factor: float
    high_factor: float
    level: float
    runs: float
    widened: float
    reasons: tuple[str, ...]
    nearest: tuple[Near, ...]


class Evidence:
    """Measured runs as a whole; odd ones, which contradict their own neighbours, are not used."""

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        # In one order whatever the file's, so that sums are the same to the last bit.
        self.runs = tuple(sorted((run for run in runs if not run.odd), key=lambda run: run.id))
        self._columns = FeatureColumns.of(self.runs)
        self._misses = np.array([run.miss for run in self.runs], dtype=np.float64)
        self._counts = np.array([_count(run) for run in self.runs], dtype=np.float64)
        names = {family: number for number, family in enumerate(sorted({run.family for run in self.runs}))}
        self._family = np.array([names[run.family] for run in self.runs], dtype=np.int64)
        self._names = names

    def interval(self, job: JobFeatures, *, level: float = LEVEL, without: str = "") -> Stated:
        """The band of ``job``, of a family ``without`` which it is made; see Note [Bands]."""
        used = self._family != self._names.get(without, -1)
        low, high, widened, distances, weights = self._raw(job, used)
        scale = self.scale(level)
        chosen = [self.runs[k] for k in np.flatnonzero(used)]
        order = np.argsort(distances, kind="stable")[:_SHOWN]
        return Stated(
            exp(scale * low), exp(scale * high), level,
            float(weights.sum() ** 2 / (weights**2).sum()) if len(weights) else 0.0, widened,
            self._reasons(job, used),
            tuple(_near(job, chosen[k], float(distances[k])) for k in order),
        )  # fmt: skip

    def scale(self, level: float) -> float:
        """Factor of all bands that makes ``level`` true; 1 where no run's reach is known."""
        reach = np.array([np.nan if run.reach is None else run.reach for run in self.runs], dtype=np.float64)
        known = ~np.isnan(reach)
        if not known.any():
            return 1.0
        return _quantile(reach[known], self._counts[known], level)

    def reaches(self) -> list[float]:
        """Of each of ``runs``: its miss over the half-width of the raw band of all other families."""
        return [self._reach(k, self._family != self._family[k]) for k in range(len(self.runs))]

    def within(self, level: float = LEVEL, *, alone: bool = False) -> list[bool]:
        """Of each of ``runs``: whether it lies in the band that all other families give it.

        ``alone``: in that of all other runs, its own family's among them.
        """
        scale, numbers = self.scale(level), np.arange(len(self.runs))
        return [
            self._reach(k, numbers != k if alone else self._family != self._family[k]) <= scale
            for k in range(len(self.runs))
        ]

    def _reasons(self, job: JobFeatures, used: npt.NDArray[np.bool_]) -> tuple[str, ...]:
        """What no measured run has, and what is not known of the job."""
        unknown = () if job.layers or job.is_list else ("the model's dimensions are not known",)
        return (*(text for _, text in self._columns.novelties(job, used)), *unknown)

    def _reach(self, k: int, used: npt.NDArray[np.bool_]) -> float:
        low, high, *_ = self._raw(self.runs[k].features, used)
        miss = float(self._misses[k])
        return miss / (high if miss > 0 else low)

    def _raw(
        self, job: JobFeatures, used: npt.NDArray[np.bool_]
    ) -> tuple[float, float, float, FloatArray, FloatArray]:
        """Ends of the raw band (logarithms), the widening in them, and distance and weight of each run."""
        distances = self._columns.distances(job)[used]
        counts, family, misses = self._counts[used], self._family[used], self._misses[used]
        of_family = np.maximum(np.bincount(family, weights=counts, minlength=len(self._names)), 1.0)
        everywhere = counts / of_family[family] if len(counts) else counts
        weights = counts * exp_of(-distances / _NEAR)
        if len(counts):
            weights = weights + _ANY_FAMILY * everywhere / everywhere.sum()
        new = plain_sum(term for term, _ in self._columns.novelties(job, used))
        nearest = float(distances.min()) if len(distances) else 2 * _FAR
        widened = 1 + _STRETCH * max(nearest - _FAR, new, 0.0)
        low, high = -_LEAST, _LEAST
        if len(misses):
            low = min(low, _quantile(misses, weights, _TAIL))
            high = max(high, -_quantile(-misses, weights, _TAIL))
        return low * widened, high * widened, widened, distances, weights


@cache
def evidence(*, lists: bool = False) -> Evidence:
    """The runs that come with the project: of transformers, or of lists of blocks."""
    return Evidence(measured_runs(lists=lists))


def interval(job: JobFeatures, *, level: float = LEVEL) -> Stated:
    """The band of ``job`` from the runs that come with the project."""
    return evidence(lists=job.is_list).interval(job, level=level)


def with_reaches(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """``runs`` with their ``reach``, in their order; odd ones have none."""
    found = Evidence(runs)
    known = {run.id: reach for run, reach in zip(found.runs, found.reaches(), strict=True)}
    return [replace(run, reach=known.get(run.id) if not run.odd else None) for run in runs]


def _count(run: MeasuredRun) -> float:
    return 1.0 / (1.0 + (run.open_inputs / _OPEN) ** 2)


def _quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    """The least value at or below which at least ``share`` of the weight lies."""
    order = np.argsort(values, kind="stable")
    summed = np.cumsum(weights[order])
    return float(
        values[order][min(int(np.searchsorted(summed, share * summed[-1] * (1 - 1e-12))), len(values) - 1)]
    )


def _near(job: JobFeatures, run: MeasuredRun, distance: float) -> Near:
    return Near(
        run.id, run.family, run.features.framework, distance, run.measured_s, run.predicted_s,
        differences(job, run.features),
    )  # fmt: skip
