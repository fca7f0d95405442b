"""``validate.py --strategies``: what choosing a strategy by predictions costs where several were measured.

Note [Loss]
    Of a group (one model, machine, batch and precision, spread in several ways) the strategy that is
    predicted fastest is chosen, and the choice costs what was measured of it over the best that was measured,
    less one.  A plan chooses among those that fit as predicted alone.  Reports of one strategy count as one,
    by their geometric mean.  Even exact predictions lose: the best measured is in part the luckiest.  Their
    loss is drawn, what was measured standing for the truth: every time is measured anew with the
    scatter of reports, and they choose the truly best.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from simcore.apps.measured.runs.cache import StepTimes
from simcore.apps.measured.runs.predict import case_key
from simcore.apps.measured.runs.score import DescribedRow, RowScore, describe_rows, predict_cases, scored
from simcore.apps.progress import Countdown
from simcore.apps.validate.runs.sweeps import (
    RepeatedRuns,
    gpu_s_per_token,
    kendall_tau,
    layouts,
    middle_s,
    noise,
    repeats,
    tau_of_exact_predictions,
)
from simcore.errors import InputError
from simcore.hardware import load_cluster
from simcore.outside import csv_rows
from simcore.planning.ties import LEVEL, complexity
from simcore.records import dataclass
from simcore.run import outside_on
from workloads.evidence import siblings
from workloads.jobs.published import RunRow, read_run_rows
from workloads.parallel.communicators import outside_holders
from workloads.parallel.job import Job
from workloads.parallel.memory import peak_bytes

#: Columns of a table of measured strategies; one without ``group`` is a table of published runs.
_GROUP: Final = "group"
_COLUMNS: Final = {
    "params_b": "params_b", "layers": "layers", "hidden": "hidden", "heads": "heads", "seq_len": "seq",
    "num_gpus": "gpus", "gpu": "gpu_type", "tp": "tp", "pp": "pp", "dp": "dp", "micro_batch": "micro_batch",
    "global_batch": "global_batch", "precision": "precision", "quality": "quality", "id": "id",
}  # fmt: skip
#: What a source says of all its runs outside the table: vTrain's in its config/validation.
_OF_SOURCE: Final[Mapping[str, Mapping[str, str]]] = {
    "VIA-Research/vTrain": {
        "family": "vtrain_multi", "vocab": "50257", "vpp": "1", "cp": "1", "ep": "1",
        "sp": "no (not stated)", "recompute": "full", "precision": "16-bit mixed (not stated in repo)",
        "overlap_notes": "1F1B; inter-node 800 Gb/s per node, 8 GPU/node", "quality": "A",
    }
}  # fmt: skip
_UNITS: Final = {"ms/iteration": 1e-3, "s/iteration": 1.0}
_DRAWS: Final = 2_000
#: What ``plan.py`` proves by default: the simplest of what is predicted so close to the fastest is its first.
_GAP: Final = 0.02


@dataclass(frozen=True)
class ChosenStrategy:
    """A group: reports and strategies in it; losses, see Note [Loss]; Kendall's tau of all reports.

    ``chosen`` and ``best``: the rows predicted and measured fastest.  ``planned``: the one predicted fastest
    of those that fit as predicted ("" where none does), ``planned_loss`` what it costs; ``not_fitting``: rows
    of strategies that do not.  ``simplest_loss``: what the simplest costs of those predicted as good, which
    plans put first; ``equal_loss``: of those that measured siblings do not tell apart, which plans mark.
    """

    group: str
    rows: int
    strategies: int
    chosen: str
    best: str
    loss: float
    exact_loss: float
    tau: float
    exact_tau: float
    planned: str
    planned_loss: float
    simplest_loss: float
    equal_loss: float
    not_fitting: tuple[str, ...]


def choices(scores: Iterable[RowScore], known: Mapping[str, RepeatedRuns]) -> list[ChosenStrategy]:
    """One for each group of ``scores`` whose predictions tell strategies apart; odd rows are left out.

    ``known``: how far reports of one run differ, by family.
    """
    out = []
    for name, members in sorted(layouts(score for score in scores if not score.described.odd).items()):
        alike: dict[tuple[str, ...], list[RowScore]] = defaultdict(list)
        for score in members:
            alike[_strategy(score.described)].append(score)
        if len(alike) < 2:
            continue
        between = noise(known, members[0].described.row.family)
        measured = [
            math.exp(sum(math.log(gpu_s_per_token(one, one.measured_s)) for one in same) / len(same))
            for same in alike.values()
        ]
        predicted = [gpu_s_per_token(same[0], middle_s(same[0])) for same in alike.values()]
        firsts = [same[0].described for same in alike.values()]
        ids = [first.row.id for first in firsts]
        chosen, best = predicted.index(min(predicted)), measured.index(min(measured))
        losses = [time / min(measured) - 1 for time in measured]
        simplicity = [_complexity(first) for first in firsts]
        simplest = _simplest(predicted, simplicity, 1 / (1 - _GAP))
        of_equals = _simplest(predicted, simplicity, siblings().ratio_of(LEVEL))
        fits = [_fits(first) for first in firsts]
        planned = min((k for k, one in enumerate(fits) if one), key=predicted.__getitem__, default=-1)
        out.append(
            ChosenStrategy(
                name, len(members), len(alike), ids[chosen], ids[best],
                loss=losses[chosen],
                exact_loss=_loss_of_exact(measured, between / math.sqrt(2)),
                tau=kendall_tau(members).value,
                exact_tau=tau_of_exact_predictions(members, between),
                planned=ids[planned] if planned >= 0 else "",
                planned_loss=losses[planned] if planned >= 0 else math.nan,
                simplest_loss=losses[simplest],
                equal_loss=losses[of_equals],
                not_fitting=tuple(one for one, fit in zip(ids, fits, strict=True) if not fit),
            )
        )  # fmt: skip
    return out


def _strategy(described: DescribedRow) -> tuple[str, ...]:
    return tuple(case_key(case) for case in described.band.cases)


def _simplest(predicted: Sequence[float], simplicity: Sequence[tuple[int, ...]], ratio: float) -> int:
    """Place of the simplest of those predicted within ``ratio`` of the fastest."""
    as_good = [k for k, time in enumerate(predicted) if time <= min(predicted) * ratio]
    return min(as_good, key=simplicity.__getitem__)


def _complexity(described: DescribedRow) -> tuple[int, ...]:
    case = described.band.cases[0]
    return complexity(case.parallel, case.training)


def _fits(described: DescribedRow) -> bool:
    """Whether any case of a row fits its GPUs as predicted, by the rule of plans."""
    for case in described.band.cases:
        cluster, job = load_cluster(case.cluster, case.overrides), Job.of(case)
        outside = outside_on(cluster, {}, outside_holders(job))
        if peak_bytes(job) <= outside.available_bytes(cluster.gpu):
            return True
    return False


def _loss_of_exact(measured: Sequence[float], scatter: float) -> float:
    """See Note [Loss]; ``scatter``: of the logarithm of one report."""
    draw = random.Random(0)
    truly = measured.index(min(measured))
    total = 0.0
    for _ in range(_DRAWS):
        again = [time * math.exp(draw.gauss(0.0, scatter)) for time in measured]
        total += again[truly] / min(again) - 1
    return total / _DRAWS


def validate_strategies(paths: Sequence[str], *, cache: str = "") -> tuple[dict[str, Any], list[str]]:
    """Choices in the tables ``paths``, each group predicted as :func:`score_rows` does.

    Returns the JSON object and lines for people.  ``cache``: file of step times simulated before.  Errors:
    InputError for a bad table, or where no group has enough rows.
    """
    usable, skipped = _described(paths)
    # Groups and repeated reports are known before anything is predicted; no more is simulated than they need.
    waiting = [RowScore(entry, math.nan, math.nan) for entry in usable]
    known = repeats(waiting)
    groups = layouts(score for score in waiting if not score.described.odd)
    members = [score.described for group in groups.values() for score in group]
    if not members:
        raise InputError(f"{', '.join(paths)}: no four strategies of one model, machine, batch and precision")
    cases = {case_key(case): case for entry in members for case in entry.band.cases}
    times = StepTimes(Path(cache)) if cache else None
    predicted = predict_cases(cases, progress=Countdown("strategies"), times=times)
    done = scored(members, skipped, predicted)
    found = choices(done.scores, known)
    mean = _mean([one.loss for one in found])
    return {
        "groups": [asdict(one) for one in found],
        "mean_loss": mean,
        "mean_planned_loss": _mean([one.planned_loss for one in found if one.planned]),
        "mean_simplest_loss": _mean([one.simplest_loss for one in found]),
        "mean_equal_loss": _mean([one.equal_loss for one in found]),
        "mean_exact_loss": _mean([one.exact_loss for one in found]),
        "skipped": done.skipped,
    }, _lines(found)


def read_rows(path: str) -> list[RunRow]:
    """Training runs of a table of strategies (column ``group``) in the words of published ones, or those."""
    first = list(csv_rows(Path(path), "measured strategies", ("model", "global_batch")))
    if not first or _GROUP not in first[0][1]:
        return read_run_rows(path)
    return [_run_row(line, columns) for line, columns in first if columns.get("phase") == "train"]


def _run_row(line: int, columns: Mapping[str, str]) -> RunRow:
    unit, source = columns.get("unit", ""), columns.get("source", "")
    if unit not in _UNITS:
        raise InputError(f"line {line}: unit {unit!r} is none of {', '.join(_UNITS)}")
    found = {ours: columns.get(theirs, "") for theirs, ours in _COLUMNS.items()}
    row = RunRow(line, columns)
    found |= {
        "model": f"{columns.get('model', '')} ({columns.get('engine', '')})",
        "source_repo_or_paper": source,
        "params_b": f"{row.number('params_b'):.1f}",
        "metric": "step_time_s",
        "value": f"{row.number('value') * _UNITS[unit]:.6g}",
        "family": columns[_GROUP],
        **_OF_SOURCE.get(source, {}),
    }
    return RunRow(line, found)


def _described(paths: Sequence[str]) -> tuple[list[DescribedRow], list[dict[str, Any]]]:
    """Rows with a step time, but for those that a table before has too: the same run with the same time."""
    usable: list[DescribedRow] = []
    skipped: list[dict[str, Any]] = []
    before: set[tuple[object, ...]] = set()
    for path in paths:
        described, refused = describe_rows(read_rows(path))
        skipped += refused
        own = [
            ((_strategy(entry), f"{entry.measured_s:.4g}"), entry)
            for entry in described
            if not entry.unscored
        ]
        usable += [entry for report, entry in own if report not in before]
        before |= {report for report, _ in own}
    return usable, skipped


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _lines(found: Sequence[ChosenStrategy]) -> list[str]:
    out = [
        f"{'reports':>9}{'strategies':>12}{'loss':>7}{'simplest':>10}{'equal':>7}{'planned':>9}{'exact':>7}{'tau':>6}"
        f"{'exact':>7}{'no room':>9}"
    ]
    for one in found:
        planned = f"{one.planned_loss:.1%}" if one.planned else "none fits"
        out += [
            one.group,
            f"{one.rows:>9}{one.strategies:>12}{one.loss:>7.1%}{one.simplest_loss:>10.1%}"
            f"{one.equal_loss:>7.1%}{planned:>9}"
            f"{one.exact_loss:>7.1%}{one.tau:>6.2f}{one.exact_tau:>7.2f}{len(one.not_fitting):>9}",
        ]
    lost, exact = _mean([one.loss for one in found]), _mean([one.exact_loss for one in found])
    of_plans = [one.planned_loss for one in found if one.planned]
    right = sum(one.loss == 0 for one in found)
    out.append(
        f"groups: {len(found)}; what is predicted fastest is {lost:.1%} slower than the best measured on"
        f" average (by exact predictions {exact:.1%}), and the best itself in {right}"
    )
    simplest, equal = _mean([one.simplest_loss for one in found]), _mean([one.equal_loss for one in found])
    out.append(
        f"the simplest of what is predicted within {_GAP:.0%} of the fastest: {simplest:.1%} slower; within"
        f" the {siblings().ratio_of(LEVEL) - 1:.1%} that measured siblings do not tell apart: {equal:.1%}"
    )
    out.append(
        f"of those that fit as predicted, as plans choose: {_mean(of_plans):.1%} slower, the best itself in"
        f" {of_plans.count(0.0)} of {len(of_plans)}"
    )
    return out
