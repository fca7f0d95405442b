"""The planner at work: all candidates appraised, the best simulated, in worker processes."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from simcore.apps.plan.journal import Journal
from simcore.apps.progress import say
from simcore.apps.workers import Incumbent, LocalWorkers, Workers
from simcore.errors import InputError
from simcore.planning.appraisal import Appraised, Appraiser, Simulated, in_parts
from simcore.planning.census import Census
from simcore.planning.ground import SearchAxis, Settings
from simcore.planning.polish import STARTS, Polish, Polished
from simcore.planning.question import Question
from simcore.planning.search import Search, Trial
from simcore.planning.space import candidates
from simcore.planning.usual import usual_settings

#: More candidates are none that anybody waits for.
_MOST = 500_000
#: So long may polishing take after a search that was quicker: one that was done before, say.
_POLISH_S = 30.0
#: Candidates that a worker appraises at a time.
_PART = 64


@dataclass
class Planned:
    """``search`` is None where nothing fits; ``default`` the job as said, where it is a candidate."""

    question: Question
    census: Census
    search: Search | None = None
    default: Trial | None = None
    polished: list[Polished] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False


def planned(
    question: Question,
    axes: Sequence[tuple[SearchAxis, Sequence[str]]],
    *,
    gap: float,
    budget_s: float,
    journal: Journal,
    kept: Collection[str] | None = None,
    workers: Workers | None = None,
) -> Planned:
    """Have ``workers`` (None: all cores) appraise all candidates along ``axes`` and simulate the best.

    It ends when no other can be faster by more than ``gap``.  What ``journal`` holds is not simulated again.
    ``kept``: settings that are not changed when the best are moved along finer axes then; None: they are not.
    Ctrl-C and a spent ``budget_s`` leave what is found.
    """
    began = time.monotonic()
    workers = workers or LocalWorkers()
    appraiser = Appraiser(question)
    found = Planned(question, Census(question))
    _appraise(found, appraiser, axes, workers)
    found.seconds["appraising"] = time.monotonic() - began
    if not found.census.fitting:
        return found
    until = began + budget_s
    search = found.search = Search(found.census.fitting, appraiser.bound_ps, gap=gap, until=until)
    default = _default(question, found.census.fitting)
    try:
        _simulate(search, appraiser, journal, workers, gap, default)
        if kept is not None and search.num_simulated:
            found.seconds["simulating"] = time.monotonic() - began - found.seconds["appraising"]
            now = time.monotonic()  # polishing takes no longer than all before it, as long as that is
            most_s = max(now - began, _POLISH_S)
            _polish(found, search, appraiser, journal, kept, workers, min(until, now + most_s))
            found.seconds["polishing"] = time.monotonic() - began - sum(found.seconds.values())
    except KeyboardInterrupt:
        found.interrupted = True
    if default is not None:
        found.default = next(trial for trial in search.trials if trial.settings == default)
    found.seconds.setdefault("simulating", time.monotonic() - began - found.seconds["appraising"])
    return found


def _appraise(
    found: Planned, appraiser: Appraiser, axes: Sequence[tuple[SearchAxis, Sequence[str]]], workers: Workers
) -> None:
    listed = islice(candidates(found.question.ground, axes), _MOST + 1)
    parts = list(in_parts(listed, _PART))
    total, done, shown = sum(map(len, parts)), 0, time.monotonic()
    if total > _MOST:
        raise InputError(f"--search: more than {_MOST:,} candidates; name fewer axes, or values of them")
    began = shown
    ordered: dict[int, list[Appraised]] = {}
    numbered = list(enumerate(parts))
    appraising = workers.each(_Appraising(appraiser), numbered, lambda part: f"part {part[0]}")
    with closing(appraising) as results:
        for number, part in results:
            ordered[number] = part
            done += len(part)
            now = time.monotonic()
            if now - shown > 2 and done < total:
                shown = now
                say(f"{done:,} of {total:,} candidates, {(now - began) / done * (total - done):.0f} s left")
    for number in sorted(ordered):
        for one in ordered[number]:
            found.census.add(one)


@dataclass(frozen=True)
class _Appraising:
    appraiser: Appraiser

    def __call__(self, part: tuple[int, list[Settings]]) -> tuple[int, list[Appraised]]:
        return part[0], self.appraiser.appraised(part[1])


def _default(question: Question, fitting: Sequence[Appraised]) -> Settings | None:
    """The candidate that the job is by default."""
    job = question.completed(usual_settings(question))
    wanted = (job.parallel, job.training)
    for one in fitting:
        if _agrees(one.settings, wanted):
            return one.settings
    return None


def _agrees(settings: Settings, wanted: tuple[object, object]) -> bool:
    for key, text in settings.items():
        section, _, name = key.partition(".")
        if section == "cluster":
            return False
        value = getattr(wanted[0] if section == "parallel" else wanted[1], name)
        if str(value).lower() != text.lower():
            return False
    return True


@dataclass(frozen=True)
class _SimulatingCandidate:
    """Simulates a candidate, unless what others found by now excludes its bound."""

    appraiser: Appraiser
    incumbent: Incumbent

    def __call__(self, job: tuple[Settings, float]) -> tuple[Settings, Simulated | None]:
        settings, bound_s = job
        if self.incumbent.excludes(bound_s):
            return settings, None
        found = self.appraiser.simulated(settings)
        if not found.reason:
            self.incumbent.learn(found.step_s)
        return settings, found


def _simulate(
    search: Search,
    appraiser: Appraiser,
    journal: Journal,
    workers: Workers,
    gap: float,
    default: Settings | None,
) -> None:
    question = appraiser.question
    for trial in search.trials:
        known = journal.known(trial.settings)
        if known is not None:
            search.learn(known)
    if search.num_simulated:
        say(f"{search.num_simulated} simulations of before are taken from {journal.path}")
    began, before = time.monotonic(), search.num_simulated
    shown = began
    best_s = search.best.step_s if search.best is not None else None
    work = _SimulatingCandidate(appraiser, workers.incumbent(gap, best_s or math.inf))
    chosen = search.jobs([default] if default is not None else [])
    # The default is simulated however slow it is: the best is compared with it.
    jobs = ((one, 0.0 if one == default else search.bound_s(one)) for one in chosen)
    with closing(workers.each(work, jobs, lambda job: f"candidate {dict(job[0])}")) as results:
        for settings, one in results:
            if one is None:
                search.leave(settings)
                continue
            journal.note(one)
            search.learn(one)
            now = time.monotonic()
            if search.best is not None and now - shown > 2:
                shown = now
                say(_progress(search, question, (now - began) / max(1, search.num_simulated - before)))


def _polish(
    found: Planned,
    search: Search,
    appraiser: Appraiser,
    journal: Journal,
    kept: Collection[str],
    workers: Workers,
    until: float,
) -> None:
    """Move the best along fine axes; what is known of a simulation is not done again."""

    def simulated(settings: Settings) -> Simulated:
        return journal.known(settings) or appraiser.simulated(settings)

    def simulate(jobs: Iterator[Settings]) -> Iterator[Simulated]:
        with closing(workers.each(simulated, jobs, lambda one: f"move to {dict(one)}")) as results:
            for one in results:
                if journal.known(one.settings) is None:
                    journal.note(one)
                yield one

    say("polishing the best ...")
    polish = Polish(appraiser, simulate, found.census.every, kept=kept, until=until)
    found.polished = polish.polished(search.ranked()[:STARTS])
    search.polished = [one.best for one in found.polished if one.moves]


def _progress(search: Search, question: Question, each_s: float) -> str:
    assert search.best is not None
    below = search.num_below()
    certificate = search.certificate()
    most_s = below * each_s
    best = question.named(search.best.settings)
    return (
        f"{search.num_simulated} simulated, best {search.best.step_s:.4g} s ({best}), none faster by more"
        f" than {certificate.gap:.1%}; {below} open, at most {most_s:.0f} s left"
    )


def default_folder(question: Question) -> Path:
    """Where a plan goes if nothing is said."""
    from simcore.files import folder_name

    return Path("plans") / folder_name(f"{question.ground.model.name}-{question.cluster.name}")
