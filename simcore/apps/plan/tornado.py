"""``--tornado``: how the best strategy's step answers to one step along each axis, and to other hardware."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from simcore.apps.plan.asking import PlanRequest
from simcore.apps.plan.planning import Planned
from simcore.apps.run.tornado import HARDWARE, STEP, changed_cluster
from simcore.apps.workers import each
from simcore.errors import InputError
from simcore.hardware import ClusterSpec
from simcore.planning.appraisal import Appraiser, Simulated
from simcore.planning.ground import Settings
from simcore.planning.search import Trial
from simcore.planning.space import step_between
from simcore.records import dataclass

#: Neighbours simulated, those with the lowest bounds; of the others the bound is told.
_NEIGHBOURS: Final = 10
#: Neighbours within this share of the best make a basin.
_NEAR: Final = 0.03


@dataclass(frozen=True)
class OneStepOff:
    """A candidate one step along ``axis`` from the best: its step, or where it is None what bounds it."""

    axis: str
    strategy: str
    bound_s: float
    step_s: float | None


@dataclass(frozen=True)
class Tornado:
    """``hardware``: (what, step with a tenth less of it, with a tenth more), seconds, the strongest first."""

    best_s: float
    hardware: tuple[tuple[str, float, float], ...]
    neighbours: tuple[OneStepOff, ...]

    def as_object(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "hardware": [
                {"what": what, "step_time_s_less": less, "step_time_s_more": more}
                for what, less, more in self.hardware
            ],
            "neighbours": [
                {
                    "axis": one.axis,
                    "strategy": one.strategy,
                    "bound_s": one.bound_s,
                    "step_time_s": one.step_s,
                }
                for one in self.neighbours
            ],
        }

    def lines(self) -> list[str]:
        """For the terminal."""
        out = [f"{'step time of the best with 10% of':<36} {'less':>8} {'more':>8}"]
        out += [
            f"  {what:<34} {less / self.best_s - 1:+8.1%} {more / self.best_s - 1:+8.1%}"
            for what, less, more in self.hardware
        ]
        out.append("one step along an axis")
        for one in self.neighbours:
            said = f"{(one.step_s or one.bound_s) / self.best_s - 1:+.1%}"
            out.append(
                f"  {one.axis:<12} {one.strategy[:44]:<44} {said if one.step_s else f'{said} or more':>16}"
            )
        near = sum((one.step_s or one.bound_s) <= self.best_s * (1 + _NEAR) for one in self.neighbours)
        shape = "a broad basin" if near >= 3 else "a sharp peak"
        out.append(f"{near} of {len(self.neighbours)} neighbours within {_NEAR:.0%}: {shape}")
        return out


def tornado(ask: PlanRequest, found: Planned, ranked: Sequence[Trial]) -> Tornado:
    """Simulate the first candidate of ``ranked`` on changed hardware, and its nearest that fit.

    What it was polished to is none: it differs from all candidates along finer axes.
    """
    assert found.search is not None
    candidates = {id(trial) for trial in found.search.trials}
    best = next(trial for trial in ranked if id(trial) in candidates)
    assert best.step_s is not None
    clusters = {
        (what, sign): changed_cluster(
            ask.cluster, ask.hardware, ask.question.cluster, part, key, 1 + sign * STEP
        )
        for what, part, key in HARDWARE
        for sign in (-1, 1)
    }
    near = sorted(neighbours(best.settings, found.search.trials), key=lambda pair: pair[1].bound_s)
    asked = [pair[1] for pair in near if pair[1].step_s is None][:_NEIGHBOURS]
    jobs: list[tuple[object, Settings, ClusterSpec]] = [
        *((key, best.settings, cluster) for key, cluster in clusters.items()),
        *((id(trial), trial.settings, ask.question.cluster) for trial in asked),
    ]
    steps: dict[object, float] = {}
    work = _Simulating(Appraiser(ask.question))
    count = max(1, len(os.sched_getaffinity(0)))
    with closing(each(work, jobs, count, lambda job: f"{job[0]}")) as results:
        for key, done in results:
            if done.reason:
                raise InputError(f"{key}: {done.reason}")
            steps[key] = done.step_s
    hardware = [(what, steps[what, -1], steps[what, 1]) for what, _, _ in HARDWARE]
    hardware.sort(key=lambda row: -abs(row[1] - row[2]))
    return Tornado(
        best.step_s,
        tuple(hardware),
        tuple(
            OneStepOff(
                axis, ask.question.named(trial.settings), trial.bound_s,
                trial.step_s if trial.step_s is not None else steps.get(id(trial)),
            )
            for axis, trial in near
        ),
    )  # fmt: skip


def neighbours(best: Settings, trials: Sequence[Trial]) -> list[tuple[str, Trial]]:
    """(axis, candidate) of those that differ from ``best`` along one axis alone."""
    steps = [(step_between(best, trial.settings), trial) for trial in trials]
    return [(axis.name, trial) for axis, trial in steps if axis is not None]


@dataclass(frozen=True)
class _Simulating:
    appraiser: Appraiser

    def __call__(self, job: tuple[object, Settings, ClusterSpec]) -> tuple[object, Simulated]:
        key, settings, cluster = job
        question = replace(self.appraiser.question, cluster=cluster)
        return key, Appraiser(question).simulated(settings)
