"""The planner at work: all candidates appraised, the best simulated, in worker processes."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import field
from itertools import islice
from operator import attrgetter
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
from simcore.planning.ties import LEVEL, complexity
from simcore.planning.usual import usual_settings
from simcore.records import dataclass
from workloads.evidence import siblings

#: More candidates are none that anybody waits for.
_MOST = 500_000
#: So long may polishing take after a search that was quicker: one that was done before, say.
_POLISH_S = 30.0
#: Candidates that a worker appraises at a time.
_PART = 64
#: Of what may be as fast as the best so many of the simplest, and of those with room, are simulated.
_COMPARED = 2


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
    compared: int = 0,
    workers: Workers | None = None,
) -> Planned:
    """Have ``workers`` (None: all cores) appraise all candidates along ``axes`` and simulate the best.

    It ends when no other can be faster by more than ``gap``.  What ``journal`` holds is not simulated again.
    ``kept``: settings that are not changed when the best are moved along finer axes then; None: they are not.
    ``compared``: so many are simulated in any case, with those that the best is told beside.
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
        trying = _Trying(search, appraiser, journal, workers, gap)
        trying.search_for_the_best(default)
        if compared:
            trying.compare(compared)
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
        value = attrgetter(name)(wanted[0] if section == "parallel" else wanted[1])
        if str(value).lower() != text.strip('"').lower():
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


@dataclass
class _Trying:
    """Candidates of ``search`` simulated by ``workers``, and noted."""

    search: Search
    appraiser: Appraiser
    journal: Journal
    workers: Workers
    gap: float

    def search_for_the_best(self, default: Settings | None) -> None:
        """What is known, the ``default``, then the best first until no other can be faster by the gap."""
        search, journal = self.search, self.journal
        for trial in search.trials:
            known = journal.known(trial.settings)
            if known is not None:
                search.learn(known)
        if search.num_simulated:
            say(f"{search.num_simulated} simulations of before are taken from {journal.path}")
        chosen = search.jobs([default] if default is not None else [])
        # The default is simulated however slow it is: the best is compared with it.
        self._run((one, 0.0 if one == default else search.bound_s(one)) for one in chosen)

    def compare(self, count: int) -> None:
        """Simulate what the best is told beside: the next, ``count`` with it, and of those that measured runs
        may not tell apart from it the simplest, and the fastest with room in memory where it has none.
        """
        search, question = self.search, self.appraiser.question
        if search.best is None or search.best.step_s is None:
            return
        limit_s = search.best.step_s * siblings().ratio_of(LEVEL)
        more = max(0, count - search.num_simulated)
        self._run((one, 0.0) for one in islice(search.further(limit_s), more))
        equal = [trial for trial in search.ranked() if (trial.step_s or math.inf) <= limit_s]
        near = search.open_below(limit_s)
        simplest = min(map(self._complexity, equal))
        wanted = [trial for trial in sorted(near, key=self._complexity) if self._complexity(trial) < simplest]
        found = _closely_below(search, wanted, limit_s)
        if all(question.is_tight(trial.appraised.peak_bytes) for trial in equal):
            roomy = [trial for trial in near if not question.is_tight(trial.appraised.peak_bytes)]
            found += _closely_below(search, sorted(roomy, key=attrgetter("bound_s")), limit_s)
        self._run((one, 0.0) for one in search.asked([trial.settings for trial in found]))

    def _complexity(self, trial: Trial) -> tuple[int, ...]:
        job = self.appraiser.question.completed(trial.settings)
        return complexity(job.parallel, job.training)

    def _run(self, jobs: Iterator[tuple[Settings, float]]) -> None:
        """Simulate settings that are not excluded by their bounds meanwhile."""
        search, journal, question = self.search, self.journal, self.appraiser.question
        began, before = time.monotonic(), search.num_simulated
        shown = began
        best_s = search.best.step_s if search.best is not None else None
        incumbent = self.workers.incumbent(self.gap, best_s or math.inf)
        work = _SimulatingCandidate(self.appraiser, incumbent)
        with closing(self.workers.each(work, jobs, lambda job: f"candidate {dict(job[0])}")) as results:
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


def _closely_below(search: Search, wanted: Sequence[Trial], limit_s: float) -> list[Trial]:
    """The first few of ``wanted`` whose closer bounds are not above ``limit_s``."""
    close = (search.closely_bounded(trial) for trial in wanted)
    return list(islice((trial for trial in close if trial.bound_s <= limit_s), _COMPARED))


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

    return Path("plans") / folder_name(f"{question.ground.base.model.name}-{question.cluster.name}")
