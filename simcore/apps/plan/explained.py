"""Candidates run as ``run_sim.py`` runs them: where their step goes, and the band that it is stated with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from simcore.apps.plan.journal import Journal
from simcore.apps.run.outcome import PARTS, Outcome, outcome_of
from simcore.apps.run.scenario import resolve_scenario
from simcore.apps.workers import each
from simcore.errors import InputError
from simcore.planning.search import Trial
from simcore.records import dataclass
from workloads.evidence import LEVEL


@dataclass(frozen=True)
class Explained:
    """A candidate and all that is known of its simulation, which is done."""

    trial: Trial
    outcome: Outcome

    def number(self, name: str) -> float:
        """A number of the outcome, ``step_time_s`` say."""
        return float(getattr(self.outcome, name) or 0.0)

    @property
    def step_s(self) -> float:
        """Its step, seconds."""
        return self.number("step_time_s")

    @property
    def breakdown_s(self) -> dict[str, float]:
        """Parts of its step, seconds, the mean of all ranks."""
        return {part: self.number(f"{part}_s") for part in PARTS}

    @property
    def band(self) -> dict[str, float]:
        """What measured steps of such jobs lie within, seconds, with the share of them that does."""
        return {"low_s": self.number("band_low_s"), "high_s": self.number("band_high_s"), "level": LEVEL}


def explained(trials: Sequence[tuple[Trial, Path]], cluster: str, journal: Journal) -> list[Explained]:
    """Run the job file of each trial on ``cluster``, on all cores; in the order asked.

    What ``journal`` knows of a trial is taken from there.
    """
    found = {number: journal.whole(trial.settings) for number, (trial, _) in enumerate(trials)}
    files = [(number, file) for number, (_, file) in enumerate(trials) if found[number] is None]
    count = max(1, min(len(files), len(os.sched_getaffinity(0))))
    with closing(each(_Running(cluster), files, count, lambda job: f"{job[1]}")) as results:
        for number, outcome in results:
            if outcome.status != "done":
                raise InputError(f"{trials[number][1]}: {outcome.reason}")
            journal.note_whole(trials[number][0].settings, outcome)
            found[number] = outcome
    return [
        Explained(trial, outcome)
        for (trial, _), outcome in zip(trials, found.values(), strict=True)
        if outcome is not None
    ]


@dataclass(frozen=True)
class _Running:
    cluster: str

    def __call__(self, job: tuple[int, Path]) -> tuple[int, Outcome]:
        number, file = job
        return number, outcome_of(resolve_scenario(str(file), cluster=self.cluster, settings={}))
