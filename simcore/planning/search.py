"""Best first: which candidate to simulate next, and what is proven of those that are not.

Note [Certificate]
    Candidates wait in the order of their bounds.  The first is bounded more closely, and waits again; when it
    is first with its closer bound, it is simulated.  Once the first's bound is not below the best step less
    ``gap``, no other can be faster by more than that, and none of them needs to be simulated.  Where time
    runs out before, the first bound still says how much faster any other can be at most.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from simcore.planning.appraisal import Appraised, Appraiser, Simulated
from simcore.planning.census import Census
from simcore.planning.ground import SearchAxis, Settings
from simcore.planning.question import Question
from simcore.planning.space import candidates
from simcore.records import dataclass
from simcore.units import s_from_ps


@dataclass
class Trial:
    """What is known of a candidate: ``bound_s`` below its step; its step once it is simulated."""

    appraised: Appraised
    bound_s: float
    close: bool = False  # whether the bound is the closer one
    step_s: float | None = None
    reason: str = ""

    @property
    def settings(self) -> Settings:
        """What it is."""
        return self.appraised.settings


@dataclass(frozen=True)
class Certificate:
    """``lower_bound_s``: below every candidate's step; ``gap``: how far below the best step, relative to it.

    ``exhaustive``: the gap that was asked for is reached, or nothing is left to simulate.
    """

    gap: float
    lower_bound_s: float
    exhaustive: bool

    def as_object(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"gap": self.gap, "exhaustive": self.exhaustive, "lower_bound_s": self.lower_bound_s}


class Search:
    """The candidates that fit, best first; see Note [Certificate].

    ``bound_ps`` is the closer bound; ``gap`` what is asked to be proven; ``until``: when to stop, by
    ``time.monotonic``, with something simulated; ``best``: what is known already, and to be beaten.
    """

    def __init__(
        self,
        candidates: Sequence[Appraised],
        bound_ps: Callable[[Settings], int],
        *,
        gap: float,
        until: float = float("inf"),
        best: Trial | None = None,
    ) -> None:
        self.trials = [Trial(one, s_from_ps(one.rough_ps)) for one in candidates]
        self._bound_ps, self.gap, self._until = bound_ps, gap, until
        self._waiting = [(trial.bound_s, number) for number, trial in enumerate(self.trials)]
        heapq.heapify(self._waiting)
        self._running: dict[int, float] = {}
        self._number = {settings_key(trial.settings): number for number, trial in enumerate(self.trials)}
        self.best = best
        self.num_simulated = 0
        self.polished: list[Trial] = []  # what the best were moved to, outside of the candidates

    def jobs(self, first: Sequence[Settings] = ()) -> Iterator[Settings]:
        """Candidates to simulate, best first, as long as the results of those before do not make it needless.

        ``first`` comes before all others where it is one of the candidates.
        """
        yield from self.asked(first)
        yield from self._next(self._is_enough)

    def asked(self, wanted: Sequence[Settings]) -> Iterator[Settings]:
        """Those of ``wanted`` that are candidates and not simulated yet."""
        for settings in wanted:
            number = self._number.get(settings_key(settings))
            if number is not None and self.trials[number].step_s is None:
                self._running[number] = self.trials[number].bound_s
                yield settings

    def further(self, limit_s: float) -> Iterator[Settings]:
        """More candidates, those with the least bounds, none above ``limit_s``."""
        return self._next(lambda bound_s: bound_s > limit_s)

    def open_below(self, limit_s: float) -> list[Trial]:
        """Candidates that are not simulated and may take ``limit_s`` at most, as far as is known by now."""
        return [
            trial
            for trial in self.trials
            if trial.step_s is None and not trial.reason and trial.bound_s <= limit_s
        ]

    def closely_bounded(self, trial: Trial) -> Trial:
        """A trial with the closer bound."""
        if not trial.close:
            trial.bound_s = max(trial.bound_s, s_from_ps(self._bound_ps(trial.settings)))
            trial.close = True
        return trial

    def _next(self, is_enough: Callable[[float], bool]) -> Iterator[Settings]:
        while self._waiting and (time.monotonic() < self._until or self._has_none()):
            bound_s, number = self._waiting[0]
            trial = self.trials[number]
            if trial.step_s is not None or trial.reason or number in self._running:
                heapq.heappop(self._waiting)
            elif is_enough(bound_s):
                return
            elif not trial.close or trial.bound_s > bound_s:
                heapq.heapreplace(self._waiting, (self.closely_bounded(trial).bound_s, number))
            else:
                heapq.heappop(self._waiting)
                self._running[number] = bound_s
                yield trial.settings

    def learn(self, found: Simulated) -> Trial:
        """Take note of a simulation."""
        number = self._number[settings_key(found.settings)]
        trial = self.trials[number]
        self._running.pop(number, None)
        if found.reason:
            trial.reason = found.reason
            return trial
        trial.step_s = found.step_s
        self.num_simulated += 1
        if self.best is None or found.step_s < (self.best.step_s or 0.0):
            self.best = trial
        return trial

    def bound_s(self, settings: Settings) -> float:
        """What a candidate's step takes at least, as far as is known by now."""
        return self.trials[self._number[settings_key(settings)]].bound_s

    def leave(self, settings: Settings) -> None:
        """A candidate that was chosen is not simulated: the best excludes it by now."""
        self._running.pop(self._number[settings_key(settings)], None)

    def certificate(self, of: Trial | None = None) -> Certificate:
        """What is proven: of the best candidate, or ``of`` one that was simulated, beside polished ones, too.

        Only where something was simulated.
        """
        assert self.best is not None and self.best.step_s is not None
        best_s = self.best.step_s
        left = [trial.bound_s for trial in self.trials if trial.step_s is None and not trial.reason]
        lower_s = min([best_s, *left])
        enough = not left or self._is_enough(lower_s)
        if of is None:
            return Certificate(1 - lower_s / best_s, lower_s, enough)
        fastest_s = min([lower_s, *self._polished_s()])
        return Certificate(1 - fastest_s / (of.step_s or best_s), lower_s, enough)

    def as_good_s(self) -> float:
        """The longest step that nothing, polished or not, is faster than by more than the gap."""
        return min([self.certificate().lower_bound_s, *self._polished_s()]) / (1 - self.gap)

    def _polished_s(self) -> list[float]:
        return [trial.step_s for trial in self.polished if trial.step_s is not None]

    def num_below(self) -> int:
        """Candidates whose bounds, as close as they are by now, leave the question open."""
        return sum(
            trial.step_s is None and not trial.reason and not self._is_enough(trial.bound_s)
            for trial in self.trials
        )

    def ranked(self) -> list[Trial]:
        """What was simulated, and what of it was polished, the fastest first."""
        done = [trial for trial in [*self.trials, *self.polished] if trial.step_s is not None]
        return sorted(done, key=lambda trial: (trial.step_s, trial.appraised.peak_bytes))

    def _has_none(self) -> bool:
        """Whether there is nothing to answer yet: a search that has no time left says at least one step."""
        return self.best is None and not self._running

    def _is_enough(self, bound_s: float) -> bool:
        best = self.best.step_s if self.best is not None else None
        return best is not None and bound_s >= best * (1 - self.gap)


def settings_key(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Settings to look up by."""
    return tuple(sorted(settings.items()))


def fastest(
    question: Question, axes: Sequence[tuple[SearchAxis, Sequence[str]]], *, gap: float = 0.0
) -> tuple[Trial | None, str]:
    """The fastest candidate along ``axes``, none being faster by more than ``gap``, in this process; where
    nothing is legal and fits, None and why.
    """
    appraiser, census = Appraiser(question), Census(question)
    for one in appraiser.appraised(list(candidates(question.ground, axes))):
        census.add(one)
    if not census.fitting:
        return None, census.advice()
    search = Search(census.fitting, appraiser.bound_ps, gap=gap)
    for settings in search.jobs():
        search.learn(appraiser.simulated(settings))
    return search.best, next((one.reason for one in search.trials if one.reason), "")
