"""Presets: TOML files of settings, each with its source or marked as inferred and why.

Note [Preset files]
    ``extends`` names the preset whose settings hold where a file is silent.  A setting is
    ``key = { value = ..., source = "..." }`` or ``key = { value = ..., inferred = "why" }``.  Tables:
    ``[model]``, ``[parallel]``, ``[training]``, ``[software]`` set fields of the specs of those names;
    ``[gpu]`` sets fields of ``GpuSpec`` that software decides (host time per launch, between kernels; s);
    ``[unpublished]`` lists what a run may have used where its source does not say.  ``[supports]`` lists what
    the build has or ran on; another generation, recomputation or schedule is simulated with a warning.
    Schedules: "none" without a pipeline, "interleaved" with several chunks a stage.  What a search may change
    beside them: numbers of layers with these kinds of recomputation, single modules, modules whose
    activations may wait in the host's memory, "any" layers of stages or those of the two "ends" alone, orders
    of ranks, sizes of buckets in "parameters", overlaps that can be switched on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, nearest
from simcore.outside import read_text
from simcore.records import dataclass
from simcore.tables import TEXT, Maybe, load, names, parse, read
from workloads.models.software import SoftwareSpec
from workloads.models.spec import ModelSpec
from workloads.parallel.spec import ParallelSpec, TrainingSpec

#: What a build can have of what a search moves the best along.
_MOVES: Final = (
    "recompute_layers", "recompute_modules", "recompute_keeps", "offload_modules", "stage_layers", "order",
    "buckets", "overlaps",
)  # fmt: skip
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
    "supports": frozenset({"generation", "recompute", "schedule", "degrees", *_MOVES}),
}
#: Tables of lists, by what is listed where it is no text.
_KINDS: Final[Mapping[str, Mapping[str, type]]] = {
    "unpublished": {"micro_batch": int, "virtual_stages": int, "sequence_parallel": bool},
    "supports": {},
}


@dataclass(frozen=True)
class Setting:
    """A value and why: ``source`` where it is published, else ``inferred`` says from what."""

    value: Any
    source: str = ""
    inferred: str = ""


_SCHEMA: Final = {
    "description": TEXT,
    "extends": Maybe(TEXT),
    **{table: Maybe(dict.fromkeys(keys, Maybe(Setting))) for table, keys in TABLES.items()},
}


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


def _check_list(value: object, kind: type, where: str, *, may_be_empty: bool) -> None:
    if (
        not isinstance(value, list)
        or not (value or may_be_empty)
        or any(type(item) is not kind for item in value)
    ):
        what = {str: "texts", int: "whole numbers", bool: "true or false"}[kind]
        raise InputError(f"{where}: value must be a list of {what}, not {str(value)[:80]!r}")


def preset_names() -> tuple[str, ...]:
    """Names of all presets."""
    return names("workloads.jobs.presets")


@cache
def load_preset(name: str) -> Preset:
    """A preset by name.  Errors: InputError for an unknown name or a malformed file."""
    known = preset_names()
    if name not in known:
        raise InputError(f"no preset {name!r}{nearest(name, known)}")
    return _preset(name, load(Any, "workloads.jobs.presets", f"{name}.toml"))


def megatron_build(*, experts: bool) -> str:
    """The preset of Megatron-Core where nobody says one: with experts that of runs with experts, as today's
    flags mean it.
    """
    return "megatron-core-moe-2026" if experts else "megatron-core"


def read_preset(path: Path) -> Preset:
    """The preset of a file outside the package.  Errors: InputError, also for a file that cannot be read."""
    return parse_preset(path.stem, read_text(path, "preset"))


def parse_preset(name: str, text: str) -> Preset:
    """A preset from the text of its file.

    Errors: InputError for bad TOML, unknown tables or keys, a setting without value, source or reason, and
    values that the specs refuse.
    """
    return _preset(name, parse(text, f"preset {name}"))


def _preset(name: str, raw: Mapping[str, Any]) -> Preset:
    where = f"preset {name}"
    said = read(_SCHEMA, raw, where)
    description, base = said.pop("description"), said.pop("extends", "")
    tables = {table: dict(keys) for table, keys in load_preset(base).tables.items()} if base else {}
    for table, keys in said.items():
        for key, setting in keys.items():
            if bool(setting.source) == bool(setting.inferred):
                raise InputError(f"{where} [{table}]: {key}: give either source, or inferred and why")
            if table in _KINDS:
                _check_list(
                    setting.value, _KINDS[table].get(key, str), f"{where} [{table}]: {key}",
                    may_be_empty=table == "supports" and key in _MOVES,
                )  # fmt: skip
        tables.setdefault(table, {}).update(keys)
    return Preset(name, description, tables)
