"""Simulations of a plan on disk, by content: what is done is not done again, whoever ends it in between."""

from __future__ import annotations

from pathlib import Path

from simcore.apps.run.identity import question_key
from simcore.apps.run.outcome import Outcome, outcomes
from simcore.planning.appraisal import Simulated
from simcore.planning.ground import Settings
from simcore.planning.question import Question


class Journal:
    """Simulations of ``question`` in the store at ``path``, which sweeps may share."""

    def __init__(self, path: Path, question: Question) -> None:
        self.path, self._question = path, question
        self._store = outcomes(path)

    def known(self, settings: Settings) -> Simulated | None:
        """What an earlier simulation of the same found."""
        if not len(self._store):
            return None
        found = self._store.get(self._key(settings))
        one = None if found is None else Outcome.model_validate(found)
        if one is None or one.status not in ("done", "refused"):
            return None
        return Simulated(settings, one.step_time_s or 0.0, one.reason)

    def note(self, found: Simulated) -> None:
        """Append one."""
        step = {} if found.reason else {"step_time_s": found.step_s}
        status = "refused" if found.reason else "done"
        line = {"settings": dict(found.settings), "status": status, "reason": found.reason, **step}
        self._store.put(self._key(found.settings), line)

    def whole(self, settings: Settings) -> Outcome | None:
        """All that is known of a simulation that was looked at; None where only its step is."""
        found = self._store.get(self._key(settings))
        one = None if found is None else Outcome.model_validate(found)
        return one if one is not None and one.status == "done" and one.is_whole else None

    def note_whole(self, settings: Settings, outcome: Outcome) -> None:
        """Append what a simulation was looked at for."""
        told = outcome.model_dump(mode="json", exclude_none=True)
        self._store.put(self._key(settings), {"settings": dict(settings), **told})

    def _key(self, settings: Settings) -> str:
        question = self._question
        return question_key(question.completed(settings), question.hardware(settings), question.setup)
