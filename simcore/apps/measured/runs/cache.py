"""Step times that were simulated before, kept in a file from run to run.

A time is found again as long as the case, the numbers of its die, the code that simulates it and the
hardware profiles are the same; whatever else changes (reports, other presets), it is not simulated again.
An interrupted command goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from simcore.apps.measured.runs.predict import Physics
from simcore.apps.progress import say
from simcore.errors import InputError
from simcore.files import append_line
from simcore.hardware import dies
from simcore.outside import cache_home, json_document, read_text
from workloads.jobs.published import Case

#: What decides a step time beside the case: packages and modules whose text is part of the key.
_CODE: Final = {
    "simcore": (
        "clock.py", "units.py", "run.py", "collectives", "cost", "engine", "graph", "hardware", "network",
        "symmetry",
    ),
    "workloads": ("models", "parallel"),
    "hardware_profiles": ("gpu", "die", "cluster", "cost", "nccl"),
}  # fmt: skip


#: What each line begins with, as it is written.
_BEGIN: Final = '{"key": "'


def default_cache() -> Path:
    """``runs.jsonl`` in the user's cache."""
    return cache_home() / "runs.jsonl"


class StepTimes:
    """Times by key in a file of JSON lines, each appended when it is known.

    A line that is no longer whole, or holds what is no step time, is told of and simulated again.
    Errors: InputError for a file that cannot be read or written, or that is something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, float | str] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from None
        damaged = []
        lines = read_text(path, "step times", "json").splitlines() if path.exists() else []
        for number, line in enumerate(lines, start=1):
            if not line.startswith(_BEGIN) and not _BEGIN.startswith(line):
                raise InputError(
                    f"{path}: line {number:,}: no step time of an earlier run; choose another file"
                )
            try:
                entry = json_document(line, f"{path}: line {number:,}")
                self._known[entry["key"]] = _checked(**entry)
            except (InputError, TypeError):
                damaged.append(number)
        if damaged:
            more = f" and {len(damaged) - 1:,} more" if damaged[1:] else ""
            say(f"{path}: line {damaged[0]:,}{more}: no step time; simulated again")

    def key(self, case_key: str, case: Case, physics: Physics | None) -> str:
        """Hash of all that decides the time."""
        held = (dies() if physics is None else physics).get(case.die)
        return hashlib.sha256(f"{case_key} {held!r} {code_digest()}".encode()).hexdigest()

    def get(self, key: str) -> float | str | None:
        """Seconds, the reason of a refusal, or None when it was never simulated."""
        return self._known.get(key)

    def put(self, key: str, result: float | str) -> None:
        """Remember a result; bugs are not remembered, as they will be mended."""
        if isinstance(result, str) and result.startswith("bug"):
            return
        self._known[key] = result
        append_line(self._path, json.dumps({"key": key, "result": result}))


def _checked(key: object, result: object) -> float | str:
    """Seconds, or the reason of a refusal.  TypeError for anything else."""
    if isinstance(key, str) and isinstance(result, str) and result and not result.startswith("bug"):
        return result
    if isinstance(key, str) and isinstance(result, float) and 0 < result < math.inf:
        return result
    raise TypeError


@cache
def code_digest() -> str:
    """Hash of the code and profiles that decide step times."""
    found = hashlib.sha256()
    for package, parts in _CODE.items():
        for part in parts:
            _add(found, resources.files(package) / part, f"{package}/{part}")
    _add(found, resources.files("simcore.apps.measured.runs") / "predict.py", "runs.py")
    return found.hexdigest()


def _add(found: hashlib._Hash, item: Traversable, name: str) -> None:
    if item.is_dir():
        for child in sorted(item.iterdir(), key=lambda child: child.name):
            _add(found, child, f"{name}/{child.name}")
    elif name.endswith((".py", ".toml")):
        found.update(name.encode() + item.read_bytes())
