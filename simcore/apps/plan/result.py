"""What a plan says: a table of 80 columns, why the best beats the default, and the JSON object."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcore.apps.plan.planning import Planned
from simcore.apps.progress import StageTimer
from simcore.planning.search import Trial
from simcore.planning.ties import LEVEL, complexity, first_is_fastest
from simcore.planning.words import short_form
from simcore.units import GIB
from workloads.evidence import siblings

_SHOWN = 10


@dataclass(frozen=True)
class Explained:
    """A candidate run as ``run_sim.py`` runs it: what ``--json`` shows of it."""

    trial: Trial
    shown: dict[str, Any]


def explained(trial: Trial, file: Path, cluster: str) -> Explained:
    """Run the job of ``file`` for its breakdown and its band."""
    from simcore.apps.run.scenario import resolve_scenario
    from simcore.apps.run.simulation import run_scenario
    from simcore.report import json_object
    from simcore.timeline.schema import TIMELINE_FILE

    scenario = resolve_scenario(str(file), cluster=cluster, settings={})
    with tempfile.TemporaryDirectory() as scratch:
        done = run_scenario(scenario, Path(scratch) / "run", StageTimer(), perfetto=False)
        shown = json_object(done.info, done.analysis, done.run_dir / TIMELINE_FILE, 0.0)
    return Explained(trial, {key: value for key, value in shown.items() if key != "timeline"})


def candidate_object(plan: Planned, trial: Trial, best: Explained | None) -> dict[str, Any]:
    """A candidate for ``--json``."""
    job = plan.question.completed(trial.settings)
    found: dict[str, Any] = {
        "strategy": short_form(job),
        "settings": dict(trial.settings),
        "step_time_s": trial.step_s,
        "bound_s": trial.bound_s,
        "peak_memory_bytes": trial.appraised.peak_bytes,
        "tight": plan.question.is_tight(trial.appraised.peak_bytes),
    }
    if best is not None and trial.step_s and best.trial.step_s:
        faster = best.trial.step_s / trial.step_s  # all have the same tokens and model flops on the same GPUs
        found["mfu"] = best.shown["mfu"] * faster
        found["tokens_per_s_per_gpu"] = best.shown["tokens_per_s"] / best.shown["gpus"] * faster
    return found


def json_of(
    plan: Planned, ranked: Sequence[Trial], told: Sequence[Explained], wall_s: float
) -> dict[str, Any]:
    """The object of ``--json``."""
    search = plan.search
    best = told[0] if told else None
    jobs = [candidate_object(plan, trial, best) for trial in ranked]
    first = None
    if best is not None:
        job = plan.question.completed(best.trial.settings)
        first = {
            **jobs[0],
            "job": {
                "model": job.model.model_dump(mode="json", exclude_none=True),
                "parallel": job.parallel.model_dump(mode="json"),
                "training": job.training.model_dump(mode="json"),
                "software": job.software.name,
                "cluster": plan.question.cluster.name,
            },
            "band": best.shown["band"],
            "breakdown_s": best.shown["breakdown_s"],
        }
    return {
        "best": first,
        "default": candidate_object(plan, plan.default, best) if plan.default is not None else None,
        "candidates": jobs,
        "num_simulated": search.num_simulated if search is not None else 0,
        **plan.census.as_object(),
        "certificate": search.certificate().as_object() if search is not None and ranked else None,
        "ties": ties(plan, ranked).as_object() if ranked else None,
        "interrupted": plan.interrupted,
        "seconds": plan.seconds,
        "wall_s": wall_s,
    }


def table(plan: Planned, ranked: Sequence[Trial], best: Explained) -> list[str]:
    """The fastest, one line of at most 80 columns each."""
    lines = [f"{'':>2} {'strategy':<36} {'step s':>8} {'tok/s/GPU':>9} {'MFU':>6} {'GiB':>6} {'slower':>7}"]
    for rank, trial in enumerate(ranked[:_SHOWN], start=1):
        lines.append(_line(plan, str(rank), trial, best))
    if plan.default is not None and plan.default.step_s is not None and plan.default not in ranked[:_SHOWN]:
        lines.append(_line(plan, "=", plan.default, best))
        lines.append("=: the job as it is by default")
    if any(plan.question.is_tight(trial.appraised.peak_bytes) for trial in ranked[:_SHOWN]):
        lines.append("*: fits by less than predictions of memory miss")
    return lines


def _line(plan: Planned, rank: str, trial: Trial, best: Explained) -> str:
    row = candidate_object(plan, trial, best)
    tight = "*" if row["tight"] else " "
    slower = (trial.step_s or 0.0) / (best.trial.step_s or 1.0) - 1
    return (
        f"{rank:>2} {row['strategy'][:36]:<36} {row['step_time_s']:8.4g} {row['tokens_per_s_per_gpu']:9.1f}"
        f" {row['mfu']:6.1%} {row['peak_memory_bytes'] / GIB:5.1f}{tight} {slower:+7.1%}"
    )


def proof(plan: Planned) -> str:
    """The certificate in a sentence."""
    search = plan.search
    assert search is not None
    found = search.certificate()
    what = (
        f"{search.num_simulated} of {plan.census.num_candidates:,} simulated; in this model no other legal"
        f" candidate is more than {found.gap:.1%} faster"
    )
    if found.exhaustive:
        return what
    why = "interrupted" if plan.interrupted else "the budget is spent"
    return f"{what} ({why}: {search.num_below()} candidates are open; ask again to go on)"


@dataclass(frozen=True)
class Ties:
    """What measured runs say of the order: ``within`` the ratio that they do not tell apart ``equal`` lie.

    ``simplest``: of those.  ``first_is_fastest``: a probability, among all that were simulated.
    """

    within: float
    equal: tuple[Trial, ...]
    simplest: Trial
    first_is_fastest: float
    num_pairs: int

    def as_object(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "ratio": self.within,
            "num_equal": len(self.equal),
            "simplest": dict(self.simplest.settings),
            "first_is_fastest": self.first_is_fastest,
            "measured_pairs": self.num_pairs,
        }

    def line(self, ranked: Sequence[Trial]) -> str:
        """For the terminal."""
        said = (
            f"{len(self.equal)} within {self.within - 1:.1%}: so close, fewer than {LEVEL:.0%} of"
            f" {self.num_pairs}"
            " measured pairs come in\nthe order that was predicted; the first is the fastest of all simulated"
            f" with {self.first_is_fastest:.0%}"
        )
        place = ranked.index(self.simplest) + 1
        return said if place == 1 else f"{said};\nnumber {place} is the simplest of them"


def ties(plan: Planned, ranked: Sequence[Trial]) -> Ties:
    """Of what was simulated, the fastest first."""
    known = siblings()
    within = known.ratio_of(LEVEL)
    steps_s = [trial.step_s or 0.0 for trial in ranked]
    equal = tuple(
        trial for trial, step_s in zip(ranked, steps_s, strict=True) if step_s <= steps_s[0] * within
    )

    def order(trial: Trial) -> tuple[object, ...]:
        job = plan.question.completed(trial.settings)
        return (*complexity(job), trial.appraised.peak_bytes)

    simplest = min(equal, key=order)
    return Ties(within, equal, simplest, first_is_fastest(steps_s, known), len(known.errors))


def why(best: Explained, default: Explained) -> str:
    """What the best has less of than the default, in shares of the default's step."""
    if best.trial is default.trial:
        return "the job is at its best by default"
    step_s = default.shown["step_time_s"]
    gains = []
    for name, said in (
        ("exposed_compute", "compute"), ("overlapped", "compute beside communication"),
        ("exposed_communication", "exposed communication"), ("idle", "bubble and other idleness"),
    ):  # fmt: skip
        change = (best.shown["breakdown_s"][name] - default.shown["breakdown_s"][name]) / step_s
        if abs(change) >= 0.001:
            gains.append(f"{abs(change):.1%} {'less' if change < 0 else 'more'} {said}")
    total = 1 - best.shown["step_time_s"] / step_s
    return f"{total:.1%} less time than the default's {step_s:.4g} s: {', '.join(gains)}"
