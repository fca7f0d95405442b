"""Step times that were simulated before, kept in a file from run to run.

A time is found again as long as the case, the numbers of its die, the code that simulates it and the
hardware profiles are the same; whatever else changes (reports, other presets), it is not simulated again.
An interrupted command goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import math
from functools import cache
from pathlib import Path
from typing import Final

from simcore.apps.measured.runs.predict import Physics
from simcore.apps.store import Store, text_digest
from simcore.hardware import dies
from simcore.outside import cache_home
from workloads.jobs.published import Case

#: What decides a step time beside the case: packages and modules whose text is part of the key.
_CODE: Final = {
    "simcore": (
        "clock.py", "elementary.py", "units.py", "run.py", "collectives", "cost", "engine", "graph",
        "hardware", "network", "symmetry",
    ),
    "workloads": ("models", "parallel"),
    "simcore.apps.measured.runs": ("predict.py",),
    "hardware_profiles": ("gpu", "die", "cluster", "cost", "nccl"),
}  # fmt: skip


def default_cache() -> Path:
    """``runs.jsonl`` in the user's cache."""
    return cache_home() / "runs.jsonl"


class StepTimes:
    """Times by key in a :class:`simcore.apps.store.Store`.

    Errors: InputError for a file that cannot be read or written, or that is something else.
    """

    def __init__(self, path: Path) -> None:
        self._store = Store(path, "step time", lambda entry: _checked(**entry))

    def key(self, case_key: str, case: Case, physics: Physics | None) -> str:
        """Hash of all that decides the time."""
        held = (dies() if physics is None else physics).get(case.die)
        return hashlib.sha256(f"{case_key} {held!r} {code_digest()}".encode()).hexdigest()

    def get(self, key: str) -> float | str | None:
        """Seconds, the reason of a refusal, or None when it was never simulated."""
        known = self._store.get(key)
        return None if known is None else _checked(**known)

    def put(self, key: str, result: float | str) -> None:
        """Remember a result; bugs are not remembered, as they will be mended."""
        if not (isinstance(result, str) and result.startswith("bug")):
            self._store.put(key, {"result": result})


def _checked(result: object) -> float | str:
    """Seconds, or the reason of a refusal.  TypeError for anything else."""
    if isinstance(result, str) and result and not result.startswith("bug"):
        return result
    if isinstance(result, float) and 0 < result < math.inf:
        return result
    raise TypeError


@cache
def code_digest() -> str:
    """Hash of the code and profiles that decide step times."""
    return text_digest(_CODE)
