"""Whether predictions order runs as measurements do, and how far reports of one run differ."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from simcore.apps.measured.runs.predict import case_key
from simcore.apps.measured.runs.score import RowScore
from simcore.records import dataclass

#: A sweep needs this many rows for its order to say something.
SMALLEST_SWEEP: Final = 4


@dataclass(frozen=True)
class Tau:
    """Kendall's tau-b and the number of pairs that it counts."""

    value: float
    pairs: int


class _JobSize(NamedTuple):
    """What a row ran, as it was understood: a column may be missing that the case supplies."""

    gpus: int
    batch: float
    seq: int


def _job_size(score: RowScore) -> _JobSize:
    case = score.described.band.cases[0]
    batch = case.microbatches * case.training.micro_batch * case.parallel.dp
    return _JobSize(case.parallel.world_size, batch, case.training.seq)


def gpu_s_per_token(score: RowScore, step_s: float) -> float:
    """What a token costs, in seconds of one GPU, where a step takes ``step_s``."""
    job = _job_size(score)
    return step_s * job.gpus / (job.batch * job.seq)


def middle_s(score: RowScore) -> float:
    """Seconds per step to compare rows by: the (geometric) middle of the band, whatever was measured."""
    return math.sqrt(score.low_s * score.high_s)


def kendall_tau(scores: Sequence[RowScore], *, apart: float = 0.0) -> Tau:
    """Rank correlation (tau-b) of measured and predicted cost per token; 1 is the same order.

    ``apart``: pairs whose measured costs differ by no more than this share are not counted.
    """
    values = [
        (gpu_s_per_token(score, score.measured_s), gpu_s_per_token(score, middle_s(score)))
        for score in scores
    ]
    agree = tied_measured = tied_predicted = pairs = 0
    for (m1, p1), (m2, p2) in itertools.combinations(values, 2):
        if apart and abs(math.log(m1 / m2)) <= math.log1p(apart):
            continue
        pairs += 1
        agree += int(np.sign(m1 - m2) * np.sign(p1 - p2))
        tied_measured += m1 == m2
        tied_predicted += p1 == p2
    below = math.sqrt((pairs - tied_measured) * (pairs - tied_predicted))
    return Tau(agree / below if below else math.nan, pairs)


def tau_of_exact_predictions(scores: Sequence[RowScore], noise: float) -> float:
    """The tau to expect of predictions without any error, as measured times scatter.

    ``noise``: standard deviation of the logarithm of two rows' ratio about the true one.  A pair that is
    ``d`` apart (of the logarithm; what was measured stands for the truth) is measured in its true order with
    probability Phi(d / noise), and counts 2 Phi - 1 = erf(d / (noise sqrt 2)).  NaN for fewer than two rows.
    """
    costs = [math.log(gpu_s_per_token(score, score.measured_s)) for score in scores]
    apart = [abs(a - b) for a, b in itertools.combinations(costs, 2) if a != b]
    if not apart:
        return math.nan
    return float(np.mean([math.erf(d / (noise * math.sqrt(2))) if noise else 1.0 for d in apart]))


def layouts(scores: Iterable[RowScore]) -> dict[str, list[RowScore]]:
    """Rows that differ in how one model is spread: the same family, model, GPUs, batch and precision."""

    def key(score: RowScore) -> tuple[str, ...]:
        row, job = score.described.row, _job_size(score)
        return row.text("model"), f"{job.gpus} GPUs", f"batch {job.batch:g}", row.text("precision")

    return _grouped(scores, key)


def scalings(scores: Iterable[RowScore]) -> dict[str, list[RowScore]]:
    """Rows over numbers of GPUs, whatever else differs: the same family, model, sequence and precision."""

    def key(score: RowScore) -> tuple[str, ...]:
        row = score.described.row
        return row.text("model"), f"{_job_size(score).seq} tokens", row.text("precision")

    found = _grouped(scores, key)
    return {name: rows for name, rows in found.items() if len({_job_size(score).gpus for score in rows}) > 1}


def _grouped(
    scores: Iterable[RowScore], key: Callable[[RowScore], tuple[str, ...]]
) -> dict[str, list[RowScore]]:
    found: dict[str, list[RowScore]] = defaultdict(list)
    for score in scores:
        stated = ", ".join(part for part in key(score) if part)
        found[f"{score.described.row.family}: {stated}"].append(score)
    return {name: rows for name, rows in found.items() if len(rows) >= SMALLEST_SWEEP}


@dataclass(frozen=True)
class Order:
    """How well a sweep's rows are ordered.

    ``every`` row, the ``usual`` ones (odd rows left out), and of those the pairs whose measured costs lie
    ``apart`` by more than two reports of one run; ``reachable``: what exact predictions of the usual rows
    are expected to reach.
    """

    sweep: str
    rows: int
    every: Tau
    usual: Tau
    apart: Tau
    reachable: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a tau is undefined."""
        found = {
            "tau": self.every.value, "tau_without_odd": self.usual.value, "tau_apart": self.apart.value,
            "tau_reachable": self.reachable,
        }  # fmt: skip
        taus = {name: None if math.isnan(tau) else tau for name, tau in found.items()}
        return {"sweep": self.sweep, "rows": self.rows, **taus, "pairs_apart": self.apart.pairs}


def orders(sweeps: Mapping[str, Sequence[RowScore]], known: Mapping[str, RepeatedRuns]) -> list[Order]:
    """Taus of each sweep whose rows were not all measured alike, by name."""
    out = []
    for name, found in sorted(sweeps.items()):
        if len({score.measured_s for score in found}) > 1:
            usual = [score for score in found if not score.described.odd]
            differ = noise(known, found[0].described.row.family)
            apart, reachable = kendall_tau(usual, apart=differ), tau_of_exact_predictions(usual, differ)
            out.append(Order(name, len(found), kendall_tau(found), kendall_tau(usual), apart, reachable))
    return out


@dataclass(frozen=True)
class RepeatedRuns:
    """Runs that were reported more than once: how many, in how many rows, and how far apart.

    ``spread``: standard deviation of one report about its run's geometric mean, as a share.
    """

    runs: int
    rows: int
    spread: float


def repeats(scores: Iterable[RowScore]) -> dict[str, RepeatedRuns]:
    """By family: rows without oddity whose columns describe one and the same run."""
    runs: dict[tuple[str, tuple[str, ...]], list[float]] = defaultdict(list)
    for score in scores:
        described = score.described
        if not described.odd:
            cases = tuple(case_key(case) for case in described.band.cases)
            runs[described.row.family, cases].append(math.log(described.measured_s))
    by_family: dict[str, list[list[float]]] = defaultdict(list)
    for (family, _), logs in runs.items():
        if len(logs) > 1:
            by_family[family].append(logs)
    return {family: _repeats(sets) for family, sets in by_family.items()}


def _repeats(sets: Sequence[Sequence[float]]) -> RepeatedRuns:
    rows = sum(len(logs) for logs in sets)
    squares = sum(float(np.var(logs)) * len(logs) for logs in sets)
    return RepeatedRuns(len(sets), rows, math.expm1(math.sqrt(squares / (rows - len(sets)))))


def noise(known: Mapping[str, RepeatedRuns], family: str) -> float:
    """How far two reports of one run differ (standard deviation), as a share.

    The median family's where none of this family was reported twice.
    """
    spreads = [found.spread for found in known.values()]
    own = known[family].spread if family in known else float(np.median(spreads)) if spreads else 0.0
    return math.sqrt(2) * own
