"""A scenario file: YAML that names a workload, or describes a job, and says what it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, nearest
from simcore.outside import inside, there
from simcore.records import dataclass

#: Settings whose value may be a file.
_NAME_FILES: Final = (
    "workload.kernel_times", "cluster.gpu", "cluster.node_xml", "cluster.placement",
)  # fmt: skip
_FILE_KEYS: Final = ("workload", "cluster", "network", "seed", "set")
#: Parts of a description (``workloads.jobs.SECTIONS``).
SECTIONS: Final = ("model", "parallel", "training", "software")
_DESCRIBED_KEYS: Final = (*SECTIONS, "cluster", "network", "seed", "set")


@dataclass(frozen=True)
class ScenarioFile:
    """A scenario file's content; None where it says nothing."""

    workload: str | None = None
    cluster: str | None = None
    network: str | None = None
    seed: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    described: Mapping[str, Any] | None = None


def file_of(content: Any, path: Path) -> ScenarioFile:
    """What YAML read from ``path`` says.  InputError for keys and values that no scenario has."""
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected keys ({', '.join(_FILE_KEYS)}), got {type(content).__name__}")
    is_description = any(key in SECTIONS for key in content)
    if is_description and "workload" in content:
        raise InputError(f"{path}: either workload, or a description ({', '.join(SECTIONS)})")
    keys = _DESCRIBED_KEYS if is_description else _FILE_KEYS
    for key in content:
        if key not in keys:
            raise InputError(f"{path}: unknown key {key!r}{nearest(str(key), keys)}")
    texts = {key: content.get(key) for key in ("workload", "cluster", "network")}
    for key, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise InputError(f"{path}: {key} must be text, not {value!r}")
    seed = content.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise InputError(f"{path}: seed must be a whole number, not {seed!r}")
    settings = {} if content.get("set") is None else content["set"]
    if not isinstance(settings, dict):
        raise InputError(f"{path}: set must map keys to values, such as workload.kernels: flash")
    for key, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
            raise InputError(f"{path}: set: {key} needs a text or a number, not {value!r}")
    return ScenarioFile(
        workload=_beside(path, texts["workload"]),
        cluster=_beside(path, texts["cluster"]),
        network=texts["network"],
        seed=seed,
        settings={str(key): _setting_beside(path, str(key), str(value)) for key, value in settings.items()},
        described={key: content[key] for key in SECTIONS if key in content} if is_description else None,
    )


def _beside(path: Path, name: str | None) -> str | None:
    """``name``, as a path when a folder or file of that name is beside the scenario file.

    InputError for a path that leads out of the scenario's folder.
    """
    if name is None or not name.strip():
        return name
    if Path(name).is_absolute() or ".." in Path(name).parts or there(path.parent / name):
        return str(inside(path.parent, name, str(path)))
    return name


def _setting_beside(path: Path, key: str, value: str) -> str:
    """A setting's value, a file's as :func:`_beside`."""
    names_file = key in _NAME_FILES and (Path(value).suffix or len(Path(value).parts) > 1)
    return str(inside(path.parent, value, f"{path}: set: {key}")) if names_file else value
