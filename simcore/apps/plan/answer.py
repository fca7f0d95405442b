"""One question answered: planned, its files written, the best few and the default looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Final

from simcore.apps.plan.asking import PlanRequest
from simcore.apps.plan.explained import Explained, explained
from simcore.apps.plan.files import BEST, JOURNAL, TRIALS, write_best, write_launches, write_trials
from simcore.apps.plan.journal import Journal
from simcore.apps.plan.planning import Planned, planned
from simcore.apps.plan.result import ties
from simcore.apps.plan.table import DEFAULT, ROOMY, SIMPLEST, leaner, proof, table, why
from simcore.apps.prices import PriceList
from simcore.apps.run.identity import outcome_version
from simcore.apps.workers import chosen_workers
from simcore.files import whole_folder
from simcore.planning import polish
from simcore.planning.ground import SearchAxis
from simcore.planning.question import Question
from simcore.planning.search import Trial
from simcore.planning.ties import simplest_first
from simcore.planning.usual import usual_settings
from simcore.records import dataclass
from simcore.units import GIB

#: Strategies that get a file and a line.
_BEST: Final = 5


@dataclass(frozen=True)
class Answer:
    """``ranked``: what was simulated, in the order of ``simplest_first``; ``best``: its first few, looked at.

    ``beside``: others, by their mark (``table.MARKS``).  ``default``: the job as it is by default, where that
    is a candidate and fits; else ``default_refused`` says why not.  ``unpolished``: why the best are left as
    the search found them; "" where not.
    """

    planned: Planned
    folder: Path
    ranked: list[Trial]
    best: list[Explained]
    beside: Mapping[str, Explained] = field(default_factory=dict)
    default: Explained | None = None
    default_refused: str = ""
    unpolished: str = ""

    @property
    def cluster(self) -> str:
        """What it is planned for."""
        return self.planned.question.cluster.name

    @property
    def told(self) -> list[Explained]:
        """What was looked at, the best first."""
        return [*self.best, *self.beside.values()]

    def lines(self, prices: PriceList | None) -> list[str]:
        """For the terminal."""
        plan, out = self.planned, self.planned.census.lines()
        if self.best:
            out += table(plan, self.best, self.beside, prices)
            out += leaner(self.ranked)
            out += polish.lines(plan.polished, plan.question)
            out += [f"not polished: {self.unpolished}"] if self.unpolished else []
            out += [proof(plan, self.ranked), ties(plan, self.ranked).line(self.ranked)]
            if self.default is not None:
                out.append(why(self.best[0], self.default))
        if self.default_refused:
            out.append(f"the job as it is by default cannot be: {self.default_refused}")
        return out


def answered(
    ask: PlanRequest,
    axes: Sequence[tuple[SearchAxis, Sequence[str]]],
    folder: Path,
    *,
    gap: float,
    budget_s: float,
    emit: str = "",
    unpolished: str = "",
    ray: str | None = None,
) -> Answer:
    """Plan, and leave in ``folder`` what is found, for the framework ``emit``, too.

    ``unpolished``: why the best are not moved along finer axes, those among ``axes`` aside; "": they are.
    ``ray``: the address of a Ray cluster to simulate on.  InputError where the folder cannot be written or
    nobody answers there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder / JOURNAL, ask.question)
    searched = {key for axis, _ in axes if axis.fine for key in axis.keys}
    if ask.question.ground.classes and not unpolished:
        unpolished = "a list of blocks has no finer axes"
    kept = None if unpolished else {*ask.kept, *searched}
    with chosen_workers(ray, outcome_version) as workers:
        found = planned(
            ask.question, axes, gap=gap, budget_s=budget_s, journal=journal, kept=kept,
            compared=_BEST, workers=workers,
        )  # fmt: skip
    write_trials(folder / TRIALS, found)
    ranked = simplest_first(ask.question, found.search) if found.search is not None else []
    refused = "" if found.default is not None else _refused(ask.question)
    if not ranked:
        return Answer(found, folder, ranked, [], default_refused=refused, unpolished=unpolished)
    asked = ranked[:_BEST]
    marked = {
        SIMPLEST: ties(found, ranked).simplest,
        ROOMY: next((one for one in ranked if not ask.question.is_tight(one.appraised.peak_bytes)), None),
        DEFAULT: found.default if found.default is not None and found.default.step_s is not None else None,
    }
    beyond = [one for one in marked.values() if one is not None and one not in asked]
    asked += {id(one): one for one in beyond}.values()  # one trial may have two marks
    with whole_folder(folder / BEST, "strategies") as fresh:
        write_best(fresh, found, asked, ask.cluster, ask.given)
        if emit:
            write_launches(fresh, found, asked, emit)
    files = [folder / BEST / f"{number}.yaml" for number in range(1, len(asked) + 1)]
    told = explained(list(zip(asked, files, strict=True)), ask.cluster, journal)
    by_trial = {id(one.trial): one for one in told}
    beside = {
        mark: by_trial[id(trial)]
        for mark, trial in marked.items()
        if trial is not None and trial not in ranked[:_BEST]
    }
    of_default = None if marked[DEFAULT] is None else by_trial[id(marked[DEFAULT])]
    return Answer(found, folder, ranked, told[:_BEST], beside, of_default, refused, unpolished)


def _refused(question: Question) -> str:
    """Why the job as it is by default cannot be; "" where it can."""
    job = question.examined(usual_settings(question))
    numbers = f": {job.peak_bytes / GIB:.1f} GiB of {question.available_bytes / GIB:.1f}"
    return job.reason + (numbers if job.reason and job.peak_bytes else "")
