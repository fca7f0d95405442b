"""The planner at work: all candidates appraised, the best simulated, in worker processes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from simcore.apps.plan.journal import Journal
from simcore.apps.progress import say
from simcore.apps.workers import each
from simcore.planning.appraisal import Appraised, Appraiser, in_parts
from simcore.planning.census import Census
from simcore.planning.question import Question
from simcore.planning.search import Search, Trial
from simcore.planning.space import SearchAxis, Settings, candidates
from simcore.planning.words import short_form

#: Candidates that a worker appraises at a time.
_PART = 64


@dataclass
class Planned:
    """``search`` is None where nothing fits; ``default`` the job as said, where it is a candidate."""

    question: Question
    census: Census
    search: Search | None = None
    default: Trial | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False


def planned(
    question: Question,
    axes: Sequence[tuple[SearchAxis, Sequence[str]]],
    *,
    gap: float,
    budget_s: float,
    journal: Journal,
) -> Planned:
    """Appraise all candidates along ``axes``, simulate until none can be faster by more than ``gap``.

    What ``journal`` holds is not simulated again.  Ctrl-C and a spent ``budget_s`` leave what is found.
    """
    began = time.monotonic()
    count = max(1, len(os.sched_getaffinity(0)))
    appraiser = Appraiser(question)
    found = Planned(question, Census(question))
    _appraise(found, appraiser, axes, count)
    found.seconds["appraising"] = time.monotonic() - began
    if not found.census.fitting:
        return found
    until = began + budget_s
    search = found.search = Search(found.census.fitting, appraiser.bound_ps, gap=gap, until=until)
    default = _default(question, found.census.fitting)
    try:
        _simulate(search, appraiser, journal, count, default)
    except KeyboardInterrupt:
        found.interrupted = True
    if default is not None:
        found.default = next(trial for trial in search.trials if trial.settings == default)
    found.seconds["simulating"] = time.monotonic() - began - found.seconds["appraising"]
    return found


def _appraise(
    found: Planned, appraiser: Appraiser, axes: Sequence[tuple[SearchAxis, Sequence[str]]], count: int
) -> None:
    parts = list(in_parts(candidates(found.question.ground, axes), _PART))
    total, done, shown = sum(map(len, parts)), 0, time.monotonic()
    began = shown
    ordered: dict[int, list[Appraised]] = {}
    numbered = list(enumerate(parts))
    with closing(each(_Appraising(appraiser), numbered, count, lambda part: f"part {part[0]}")) as results:
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
    job = question.ground.base
    wanted = (job.parallel, job.training)
    for one in fitting:
        if _agrees(one.settings, wanted):
            return one.settings
    return None


def _agrees(settings: Settings, wanted: tuple[object, object]) -> bool:
    for key, text in settings.items():
        section, _, name = key.partition(".")
        value = getattr(wanted[0] if section == "parallel" else wanted[1], name)
        if str(value).lower() != text.lower():
            return False
    return True


def _simulate(
    search: Search, appraiser: Appraiser, journal: Journal, count: int, default: Settings | None
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
    jobs = search.jobs([default] if default is not None else [])
    with closing(each(appraiser.simulated, jobs, count, lambda one: f"candidate {dict(one)}")) as results:
        for one in results:
            journal.note(one)
            search.learn(one)
            now = time.monotonic()
            if search.best is not None and now - shown > 2:
                shown = now
                say(_progress(search, question, (now - began) / max(1, search.num_simulated - before)))


def _progress(search: Search, question: Question, each_s: float) -> str:
    assert search.best is not None
    below = search.num_below()
    certificate = search.certificate()
    most_s = below * each_s
    best = short_form(question.completed(search.best.settings))
    return (
        f"{search.num_simulated} simulated, best {search.best.step_s:.4g} s ({best}), none faster by more"
        f" than {certificate.gap:.1%}; {below} open, at most {most_s:.0f} s left"
    )


def default_folder(question: Question) -> Path:
    """Where a plan goes if nothing is said."""
    from simcore.files import folder_name

    return Path("plans") / folder_name(f"{question.ground.model.name}-{question.cluster.name}")
