"""Presets: TOML files of settings, each with its source or marked as inferred and why.

Note [Preset files]
    ``extends`` names the preset whose settings hold where a file is silent.  A setting is
    ``key = { value = ..., source = "..." }`` or ``key = { value = ..., inferred = "why" }``.  Tables:
    ``[model]``, ``[parallel]``, ``[training]``, ``[software]`` set fields of the specs of those names;
    ``[gpu]`` sets fields of ``GpuSpec`` that software decides (host time per launch, between kernels; s);
    ``[unpublished]`` lists what a run may have used where its source does not say.  ``[supports]`` lists what
    the build has or ran on; anything else is simulated with a warning.  Schedules: "none" without a pipeline,
    "interleaved" with several chunks a stage.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, nearest
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec
from workloads.parallel.spec import ParallelSpec, TrainingSpec

#: Tables of a file and the keys that each may have.
TABLES: Final[Mapping[str, frozenset[str]]] = {
    "model": frozenset(ModelSpec.model_fields),
    "parallel": frozenset(ParallelSpec.model_fields),
    "training": frozenset(TrainingSpec.model_fields),
    "software": frozenset(SoftwareSpec.model_fields),
    "gpu": frozenset({"launch_overhead_s", "launch_latency_s", "kernel_gap_s"}),
    "unpublished": frozenset(
        {"micro_batch", "virtual_stages", "recompute", "sequence_parallel", "attention", "sharding"}
    ),
    "supports": frozenset({"generation", "recompute", "schedule"}),
}


@dataclass(frozen=True)
class Setting:
    """A value and why: ``source`` where it is published, else ``inferred`` says from what."""

    value: Any
    source: str = ""
    inferred: str = ""


@dataclass(frozen=True)
class Preset:
    """One framework version; ``tables[table][key]`` is a :class:`Setting`."""

    name: str
    description: str
    tables: Mapping[str, Mapping[str, Setting]]

    def values(self, table: str) -> dict[str, Any]:
        """Plain values of a table."""
        return {key: setting.value for key, setting in self.tables.get(table, {}).items()}

    def software(self) -> SoftwareSpec:
        """Kernel choices."""
        return SoftwareSpec(name=self.name, **self.values("software"))

    def settings(self) -> Iterator[tuple[str, str, Setting]]:
        """(table, key, setting) of all settings."""
        for table, keys in self.tables.items():
            for key, setting in keys.items():
                yield table, key, setting


def preset_names() -> tuple[str, ...]:
    """Names of all presets."""
    folder = resources.files("workloads.jobs.presets")
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")))


@cache
def load_preset(name: str) -> Preset:
    """A preset by name.  Errors: InputError for an unknown name or a malformed file."""
    known = preset_names()
    if name not in known:
        raise InputError(f"no preset {name!r}{nearest(name, known)}")
    text = (resources.files("workloads.jobs.presets") / f"{name}.toml").read_text(encoding="utf-8")
    return parse_preset(name, text)


def read_preset(path: Path) -> Preset:
    """The preset of a file outside the package.  Errors: InputError, also for a file that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read preset {path}: {error}") from None
    return parse_preset(path.stem, text)


def parse_preset(name: str, text: str) -> Preset:
    """A preset from the text of its file.

    Errors: InputError for bad TOML, unknown tables or keys, a setting without value, source or reason, and
    values that the specs refuse.
    """
    where = f"preset {name}"
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: {error}") from None
    description = raw.pop("description", "")
    if not description:
        raise InputError(f"{where}: missing description")
    base = raw.pop("extends", "")
    tables = {table: dict(keys) for table, keys in load_preset(base).tables.items()} if base else {}
    for table, keys in raw.items():
        if table not in TABLES:
            raise InputError(f"{where}: unknown table [{table}]{nearest(table, TABLES)}")
        for key, entry in keys.items():
            if key not in TABLES[table]:
                raise InputError(f"{where} [{table}]: unknown key {key!r}{nearest(key, TABLES[table])}")
            tables.setdefault(table, {})[key] = _setting(f"{where} [{table}] {key}", entry)
    return Preset(name, description, tables)


def _setting(where: str, entry: Any) -> Setting:
    if not isinstance(entry, dict) or "value" not in entry:
        raise InputError(f"{where}: a setting is {{ value = ..., source = ... }} or with inferred = why")
    unknown = set(entry) - {"value", "source", "inferred"}
    if unknown:
        raise InputError(f"{where}: unknown {sorted(unknown)[0]!r}")
    setting = Setting(entry["value"], entry.get("source", ""), entry.get("inferred", ""))
    if bool(setting.source) == bool(setting.inferred):
        raise InputError(f"{where}: give either source, or inferred and why")
    return setting
