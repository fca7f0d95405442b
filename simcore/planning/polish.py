"""The best strategies moved along fine axes, each move simulated: what a space leaves out.

Note [Polish]
    From a strategy every single step along a fine axis is a move (:mod:`simcore.planning.fine`); so is a step
    along an axis of the space that fits only if a part of the layers or modules is recomputed, or what
    modules keep waits in the host's memory.  Moves that
    cannot be, or do not fit, are dropped; the others are searched best first, as the space is (Note
    [Certificate]), for what beats the best so far.  That is where the next moves begin, until none is worth
    it.  The certificate does not speak of what is found here: its space is that of the candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from simcore.errors import InputError
from simcore.planning.appraisal import Appraised, Appraiser, Simulated
from simcore.planning.ground import PLACEMENT, SearchAxis, Settings
from simcore.planning.question import Question
from simcore.planning.search import Search, Trial, settings_key
from simcore.planning.space import AXES, axis_of, step_between
from simcore.records import dataclass
from workloads.parallel.spec import ParallelSpec, TrainingSpec

#: Strategies that are polished, the fastest first, and simulations of each at most.
STARTS: Final = 3
_SIMULATIONS: Final = 16
#: Less than this share of the step is not worth a change.
_WORTH: Final = 0.001

#: Letters of what a move says.
_LONGEST: Final = 40

#: Axes along which a strategy that does not fit may do with less than full recomputation, or without.
_LESS_RECOMPUTED: Final = ("recompute_layers", "recompute_modules")

Simulate = Callable[[Iterator[Settings]], Iterable[Simulated]]


@dataclass(frozen=True)
class Move:
    """A change of a strategy in words, the ``settings`` that it leads to, and its step before and after."""

    what: str
    settings: Settings
    before_s: float
    step_s: float

    @property
    def gain(self) -> float:
        """Share of the step that it saves."""
        return 1 - self.step_s / self.before_s


@dataclass(frozen=True)
class Polished:
    """Moves from the candidate ``start``, each from where the one before leads; ``best``: where they end."""

    start: Trial
    moves: tuple[Move, ...]
    best: Trial
    num_simulated: int

    def as_object(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "start": dict(self.start.settings),
            "start_step_time_s": self.start.step_s,
            "settings": dict(self.best.settings),
            "step_time_s": self.best.step_s,
            "num_simulated": self.num_simulated,
            "moves": [
                {"what": move.what, "step_time_s": move.step_s, "gain": move.gain} for move in self.moves
            ],
        }


class Polish:
    """Moves of strategies of one question, best first; see Note [Polish].

    ``simulate`` runs settings as they come, each asked for when there is room for it; ``every`` are the
    candidates of the space, whose neighbours that do not fit are tried with less recomputed than all;
    settings ``kept`` are not changed; ``until``: when to stop, by ``time.monotonic``.
    """

    def __init__(
        self,
        appraiser: Appraiser,
        simulate: Simulate,
        every: Sequence[Appraised],
        *,
        kept: Collection[str] = (),
        until: float = float("inf"),
    ) -> None:
        self._appraiser, self._simulate, self._every = appraiser, simulate, every
        self._until = until
        self._recomputes = "training.recompute" not in kept
        self._fine = [axis for axis in AXES if axis.fine and not {*axis.keys} & {*kept}]
        self._seen: set[tuple[ParallelSpec, TrainingSpec, str | None]] = set()

    def polished(self, starts: Sequence[Trial]) -> list[Polished]:
        """Each of ``starts``, the fastest first, as far as its moves are worth it."""
        self._seen |= {self._key(start.settings) for start in starts}
        best, found = starts[0], []
        for start in starts:
            found.append(self._from(start, best))
            best = min(best, found[-1].best, key=lambda trial: trial.step_s or 0.0)
        return found

    def _from(self, start: Trial, best: Trial) -> Polished:
        at, moves, num_simulated = start, list[Move](), 0
        while num_simulated < _SIMULATIONS:
            words = {settings_key(one.settings): (what, one) for what, one in self._moves(at.settings)}
            search = Search(
                [one for _, one in words.values()], self._appraiser.bound_ps,
                gap=_WORTH, until=self._until, best=best,
            )  # fmt: skip
            for done in self._simulate(islice(search.jobs(), _SIMULATIONS - num_simulated)):
                search.learn(done)
            num_simulated += search.num_simulated
            assert best.step_s is not None
            assert search.best is not None
            assert search.best.step_s is not None
            if search.best.step_s > best.step_s * (1 - _WORTH):
                break
            before, at = at, search.best
            best = at
            assert before.step_s is not None
            assert at.step_s is not None
            what, _ = words[settings_key(at.settings)]
            moves.append(Move(what, at.settings, before.step_s, at.step_s))
        return Polished(start, tuple(moves), at, num_simulated)

    def _moves(self, settings: Settings) -> Iterator[tuple[str, Appraised]]:
        """Moves that are legal and fit."""
        for what, moved in self._named(settings):
            if time.monotonic() >= self._until:
                return
            try:
                key = self._key(moved)
            except InputError:
                continue
            if key in self._seen:  # many a move says what is so by default
                continue
            self._seen.add(key)
            (one,) = self._appraiser.appraised([moved])
            if not one.reason:
                yield what, one

    def _key(self, settings: Settings) -> tuple[ParallelSpec, TrainingSpec, str | None]:
        """The same for settings that say the same strategy."""
        job = self._appraiser.question.completed(settings)
        return job.parallel, job.training, settings.get(PLACEMENT)

    def _named(self, settings: Settings) -> Iterator[tuple[str, Settings]]:
        for axis in self._fine:
            if axis.name == "offload" and not settings.get("training.offload"):
                continue  # it fits as it is: copies would only take time
            for moved in self._along(axis, settings):
                yield _said(axis, moved), moved
        less = [axis for axis in self._fine if axis.name in _LESS_RECOMPUTED and self._recomputes]
        out = [axis for axis in self._fine if axis.name == "offload"]
        for near in self._every:
            step = step_between(settings, near.settings)
            if step is None or not (near.reason and near.peak_bytes):
                continue
            for axis in out:
                for moved in self._along(axis, near.settings):
                    yield f"{_said(step, near.settings)}, {_said(axis, moved)}", moved
            for kind in self._appraiser.question.ground.allows("recompute") if less else ():
                recomputed = {**near.settings, "training.recompute": kind}
                for axis in less:
                    for moved in self._along(axis, recomputed):
                        yield f"{_said(step, near.settings)}, {kind}, {_said(axis, moved)}", moved

    def _along(self, axis: SearchAxis, settings: Settings) -> Iterator[Settings]:
        """One step along an axis; another axis that decides the same key keeps it where this does not."""
        others = {key: value for key, value in settings.items() if axis_of(key) != axis}
        for offer in axis.offers(self._appraiser.question.ground, settings):
            if (moved := {**others, **offer}) != settings:
                yield moved


def _said(axis: SearchAxis, settings: Settings) -> str:
    """What an axis is moved to."""
    empty = "nothing" if axis.name == "offload" else "core_attn"
    values = [settings[key].strip("[]") or empty for key in axis.keys if key in settings]
    said = " ".join(values) or "by default"
    return f"{axis.name} {said if len(said) <= _LONGEST else said[:_LONGEST] + '...'}"


def lines(found: Sequence[Polished], question: Question) -> list[str]:
    """What each move gained, for the terminal."""
    out = []
    for one in found:
        if not one.moves:
            continue
        out.append(f"polished {question.named(one.start.settings)}: {one.start.step_s:.4g} s")
        out += [f"  {move.what}: {move.step_s:.4g} s ({-move.gain:+.1%})" for move in one.moves]
    tried = sum(one.num_simulated for one in found)
    if found and not out:
        out.append(f"no change of the best {len(found)} along finer axes is faster ({tried} simulated)")
    return out
