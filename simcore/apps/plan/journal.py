"""Simulations of a plan on disk, by content: what is done is not done again, whoever ends it in between."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from simcore.files import append_line
from simcore.hardware import hardware_hash
from simcore.outside import read_text
from simcore.planning.appraisal import Simulated
from simcore.planning.question import Question
from simcore.planning.space import Settings
from simcore.timeline.facts import software_versions, source_commit


class Journal:
    """Lines of ``path``, one for each simulation: ``key, settings, step_s, reason``.

    The key covers the complete job, the cluster, how it is simulated and the versions of software.  Lines
    that cannot be read, the half of one that a kill left among them, count as not there.
    """

    def __init__(self, path: Path, question: Question) -> None:
        self.path, self._question = path, question
        versions = json.dumps({**software_versions(), "commit": source_commit()}, sort_keys=True)
        self._common = f"{hardware_hash(question.cluster)} {question.setup!r} {versions}"
        self._lines: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in read_text(path, "journal of a plan").splitlines():
                self._read(line)

    def known(self, settings: Settings) -> Simulated | None:
        """What an earlier simulation of the same found."""
        if not self._lines:
            return None
        line = self._lines.get(self._key(settings))
        return None if line is None else Simulated(settings, line["step_s"], line["reason"])

    def note(self, found: Simulated) -> None:
        """Append one."""
        line = {
            "key": self._key(found.settings), "settings": dict(found.settings), "step_s": found.step_s,
            "reason": found.reason,
        }  # fmt: skip
        append_line(self.path, json.dumps(line))

    def _read(self, line: str) -> None:
        try:
            found = json.loads(line)
            step_s, reason = float(found["step_s"]), str(found["reason"])
            self._lines[str(found["key"])] = {"step_s": step_s, "reason": reason}
        except (ValueError, KeyError, TypeError, RecursionError):
            return

    def _key(self, settings: Settings) -> str:
        job = self._question.completed(settings)
        parts = [one.model_dump_json() for one in (job.model, job.parallel, job.training, job.software)]
        content = "\n".join([self._common, json.dumps(dict(job.gpu), sort_keys=True), *parts])
        return hashlib.sha256(content.encode()).hexdigest()
