"""One question answered: planned, its files written, the best and the default looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simcore.apps.plan.asking import PlanRequest
from simcore.apps.plan.files import BEST, JOURNAL, TRIALS, write_best, write_trials
from simcore.apps.plan.journal import Journal
from simcore.apps.plan.planning import Planned, planned
from simcore.apps.plan.result import Explained, explained, proof, table, ties, why
from simcore.files import whole_folder
from simcore.planning.search import Trial
from simcore.planning.space import SearchAxis

#: Strategies that get a file.
_FILES = 5


@dataclass(frozen=True)
class Answer:
    """``ranked``: what was simulated, the fastest first; ``told``: the best, then the default if it was."""

    planned: Planned
    ranked: list[Trial]
    told: list[Explained]

    def lines(self) -> list[str]:
        """For the terminal."""
        out = self.planned.census.lines()
        if self.told:
            out += table(self.planned, self.ranked, self.told[0])
            out += [proof(self.planned), ties(self.planned, self.ranked).line(self.ranked)]
        if len(self.told) > 1:
            out.append(why(*self.told))
        return out


def answered(
    ask: PlanRequest,
    axes: Sequence[tuple[SearchAxis, Sequence[str]]],
    folder: Path,
    *,
    gap: float,
    budget_s: float,
) -> Answer:
    """Plan, and leave in ``folder`` what is found.  InputError where it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder / JOURNAL, ask.question)
    found = planned(ask.question, axes, gap=gap, budget_s=budget_s, journal=journal)
    write_trials(folder / TRIALS, found)
    ranked = found.search.ranked() if found.search is not None else []
    if not ranked:
        return Answer(found, ranked, [])
    default = found.default
    known = [default] if default is not None and default.step_s is not None else []
    with whole_folder(folder / BEST, "strategies") as fresh:
        write_best(fresh, found, [*ranked[:_FILES], *known], ask.cluster, ask.given)
    told = [explained(ranked[0], folder / BEST / "1.yaml", ask.cluster)]
    if known:
        file = folder / BEST / f"{len(ranked[:_FILES]) + 1}.yaml"
        told.append(explained(known[0], file, ask.cluster))
    return Answer(found, ranked, told)
