"""Step times that were simulated before, kept in a file from run to run.

A time is found again as long as the case, the numbers of its die, the code that simulates it and the
hardware profiles are the same; whatever else changes (reports, other presets), it is not simulated again.
An interrupted command goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from simcore.apps.measured.runs.predict import Physics
from simcore.errors import InputError
from simcore.hardware import dies
from simcore.outside import cache_home
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


def default_cache() -> Path:
    """``runs.jsonl`` in the user's cache."""
    return cache_home() / "runs.jsonl"


class StepTimes:
    """Times by key in a file of JSON lines, each appended when it is known.

    Errors: InputError for a file that cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, float | str] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path}: {error}") from None
        for line in lines:
            try:
                entry = json.loads(line)
                self._known[str(entry["key"])] = entry["result"]
            except (ValueError, KeyError, TypeError):
                continue  # the last line of an interrupted run

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
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "result": result}) + "\n")
        except OSError as error:
            raise InputError(f"cannot write {self._path}: {error}") from None


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
