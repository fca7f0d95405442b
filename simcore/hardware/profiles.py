"""Reads hardware_profiles/*.toml: each number a ``{ value, unit, source }``, no key unknown or missing."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simcore.errors import InputError, nearest
from simcore.hardware.fields import (
    CLUSTER_KEYS,
    CLUSTER_NUMBERS,
    CLUSTER_TEXTS,
    FROM_XML,
    GPU_NUMBERS,
    GPU_TEXTS,
    LISTS,
    MATH_MODES,
    OPTIONAL_GPU_TEXTS,
    OPTIONAL_NUMBERS,
    OPTIONAL_TEXTS,
    PEAK_FLOPS,
)
from simcore.hardware.lists import checked_list
from simcore.hardware.quantities import Number
from simcore.hardware.sustained import SUSTAINED_NUMBERS, Sustained

if TYPE_CHECKING:
    from simcore.hardware.node_xml import NodeXml

_QUANTITY_KEYS: Final = ("value", "unit", "source")
_SIZED_NAME: Final = re.compile(r"(?P<family>.+)-(?P<gpus>[0-9]{1,9})")


@dataclass
class Profile:
    """A profile's content in SI units, not yet a spec, so that overrides can still change it.

    ``peaks`` and ``sustained`` are only used by GPUs, ``lists`` and ``node`` (what its ``node_xml`` says) by
    clusters.
    ``folder`` is where paths in a cluster file are relative to.
    """

    where: str
    texts: dict[str, str]
    numbers: dict[str, float]
    sources: dict[str, str]
    peaks: dict[str, float] = field(default_factory=dict)
    lists: dict[str, Sequence[Any]] = field(default_factory=dict)
    node: NodeXml | None = None
    sustained: Sustained | None = None
    folder: Path | None = None


def gpu_names() -> tuple[str, ...]:
    """Names of the GPU profiles that come with the project."""
    return _names("gpu")


def cluster_names() -> tuple[str, ...]:
    """Cluster families that come with the project; ``<family>-<number of GPUs>`` picks a size."""
    return _names("cluster")


def read_gpu(name_or_path: str, relative_to: Path | None = None) -> Profile:
    """A GPU profile by name or file.  InputError names the file and key at fault."""
    table, where, _ = _read("gpu", name_or_path, relative_to)
    _refuse_unknown(table, (*GPU_TEXTS, *OPTIONAL_GPU_TEXTS, *GPU_NUMBERS, "peak_flops"), where)
    known = {**GPU_TEXTS, **{key: rule for key, rule in OPTIONAL_GPU_TEXTS.items() if key in table}}
    texts = _texts(table, known, where)
    numbers, sources = _numbers(table, GPU_NUMBERS, where)
    modes = _require(table, "peak_flops", where)
    if not isinstance(modes, dict) or not modes:
        raise InputError(f"{where}: peak_flops must be a table of math modes ({', '.join(MATH_MODES)})")
    _refuse_unknown(modes, MATH_MODES, f"{where}: peak_flops")
    peaks: dict[str, float] = {}
    for mode, quantity in modes.items():
        peaks[mode], sources[f"peak_flops.{mode}"] = _quantity(
            quantity, PEAK_FLOPS, f"{where}: peak_flops.{mode}"
        )
    sustained = read_die(texts["die"]) if "die" in texts else None
    return Profile(where, texts, numbers, sources, peaks, sustained=sustained)


def dies() -> dict[str, Sustained]:
    """What each die with a profile keeps up under load, by its name."""
    return {name: read_die(name) for name in _names("die")}


@cache
def read_die(name: str) -> Sustained:
    """What the die ``name`` keeps up under load; what a file leaves out is as rated.

    InputError names the file and key at fault.
    """
    table, where, _ = _read("die", name, None)
    _refuse_unknown(table, (*SUSTAINED_NUMBERS, "measured_on"), where)
    given = {key: number for key, number in SUSTAINED_NUMBERS.items() if key in table}
    numbers, sources = _numbers(table, given, where)
    rows = _require(table, "measured_on", where)
    if not isinstance(rows, dict) or not isinstance(rows.get("value"), list):
        raise InputError(
            f'{where}: measured_on: expected {{ value = ["GPU"], source = "..." }}, got {rows!r}'
        )
    return Sustained(**numbers, measured_on=tuple(map(str, rows["value"])), sources=sources)


def read_cluster(name_or_path: str) -> Profile:
    """A cluster profile by name (``h800``, ``h800-96``) or file.  InputError names the key at fault."""
    known = cluster_names()
    sized = _SIZED_NAME.fullmatch(name_or_path)
    if name_or_path in known or sized is None or sized["family"] not in known:
        return _read_cluster_file(name_or_path)
    profile = _read_cluster_file(sized["family"])
    num_gpus, per_node = int(sized["gpus"]), int(profile.numbers["gpus_per_node"])
    if num_gpus < 1 or num_gpus % per_node:
        nodes = num_gpus // per_node
        near = " or ".join(f"{sized['family']}-{n * per_node}" for n in (nodes, nodes + 1) if n)
        raise InputError(
            f"cluster {name_or_path!r}: {num_gpus} GPUs are no whole number of {per_node}-GPU nodes;"
            f" nearest: {near}"
        )
    profile.numbers["num_nodes"] = num_gpus // per_node
    profile.sources["num_nodes"] = f"cluster name {name_or_path!r}"
    profile.texts["name"] = name_or_path
    return profile


def _read_cluster_file(name_or_path: str) -> Profile:
    table, where, folder = _read("cluster", name_or_path, None)
    _refuse_unknown(table, CLUSTER_KEYS, where)
    known: dict[str, Mapping[str, Any]] = {
        "texts": {**CLUSTER_TEXTS, **OPTIONAL_TEXTS},
        "numbers": {**CLUSTER_NUMBERS, **OPTIONAL_NUMBERS},
    }
    missing_ok = {*OPTIONAL_TEXTS, *OPTIONAL_NUMBERS}
    if "node_xml" in table:
        missing_ok |= set(FROM_XML)
        clash = [key for key in ("intra_node", "gpus_per_node", *LISTS) if key in table]
        if clash:
            raise InputError(f"{where}: {clash[0]} comes from node_xml; remove one of them")
    if table.get("fabric") == "dragonfly":
        missing_ok.add("spine_oversubscription")
    if isinstance(table.get("placement"), list):  # a list of GPUs reads as one in a text does
        gpus = checked_list("placement", table["placement"], f"{where}: placement")
        table["placement"] = ",".join(map(str, gpus))
    wanted = {
        kind: {key: rule for key, rule in rules.items() if key in table or key not in missing_ok}
        for kind, rules in known.items()
    }
    texts = _texts(table, wanted["texts"], where)
    numbers, sources = _numbers(table, wanted["numbers"], where)
    lists: dict[str, Sequence[Any]] = {
        key: _list(key, table[key], sources, f"{where}: {key}") for key in LISTS if key in table
    }
    return Profile(where, texts, numbers, sources, lists=lists, folder=folder)


def _list(key: str, entry: object, sources: dict[str, str], where: str) -> Sequence[Any]:
    """A list's value; its source goes to ``sources``."""
    if not isinstance(entry, dict):
        raise InputError(f'{where}: expected {{ value = [...], source = "..." }}, got {entry!r}')
    _refuse_unknown(entry, ("value", "source"), where)
    sources[key] = checked_text("source", _require(entry, "source", where), None, where)
    return checked_list(key, _require(entry, "value", where), where)


def _names(kind: str) -> tuple[str, ...]:
    folder = resources.files("hardware_profiles").joinpath(kind)
    return tuple(sorted(e.name.removesuffix(".toml") for e in folder.iterdir() if e.name.endswith(".toml")))


def _read(kind: str, name_or_path: str, relative_to: Path | None) -> tuple[dict[str, Any], str, Path | None]:
    """(table, what to call it in messages, its folder when it is a user's file)."""
    path = Path(name_or_path)
    is_path = path.suffix == ".toml" or len(path.parts) > 1
    try:
        if is_path:
            full = relative_to / path if relative_to is not None else path
            text, where, folder = full.read_text(encoding="utf-8"), str(full), full.parent
        elif name_or_path in _names(kind):
            entry = resources.files("hardware_profiles").joinpath(kind, f"{name_or_path}.toml")
            text, where, folder = entry.read_text(encoding="utf-8"), f"{kind} profile {name_or_path!r}", None
        else:
            hint = nearest(name_or_path, _names(kind))
            sizes = " (a cluster's size follows its name: h800-96)" if kind == "cluster" else ""
            raise InputError(f"unknown {kind} {name_or_path!r}{hint}{sizes}")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {kind} profile {name_or_path!r}: {error}") from error
    try:
        return tomllib.loads(text, parse_float=Decimal), where, folder
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: not valid TOML: {error}") from error


def _refuse_unknown(table: Mapping[str, object], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}{nearest(key, known)}")


def _require(table: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in table:
        raise InputError(f"{where}: key {key!r} is missing")
    return table[key]


def checked_text(key: str, value: object, allowed: tuple[str, ...] | None, where: str) -> str:
    """``value`` if it is a text that ``key`` accepts, else InputError with the nearest allowed one."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {key} must be a text, got {value!r}")
    if allowed is not None and value not in allowed:
        raise InputError(f"{where}: {key} cannot be {value!r}{nearest(value, allowed)}")
    return value


def _texts(
    table: Mapping[str, Any], schema: Mapping[str, tuple[str, ...] | None], where: str
) -> dict[str, str]:
    return {
        key: checked_text(key, _require(table, key, where), allowed, where) for key, allowed in schema.items()
    }


def _numbers(
    table: Mapping[str, Any], schema: Mapping[str, Number], where: str
) -> tuple[dict[str, float], dict[str, str]]:
    numbers: dict[str, float] = {}
    sources: dict[str, str] = {}
    for key, number in schema.items():
        numbers[key], sources[key] = _quantity(_require(table, key, where), number, f"{where}: {key}")
    return numbers, sources


def _quantity(quantity: object, number: Number, where: str) -> tuple[float, str]:
    if not isinstance(quantity, dict):
        raise InputError(
            f'{where}: expected {{ value = ..., unit = "...", source = "..." }}, got {quantity!r}'
        )
    _refuse_unknown(quantity, _QUANTITY_KEYS, where)
    unit = checked_text("unit", _require(quantity, "unit", where), None, where)
    source = checked_text("source", _require(quantity, "source", where), None, where)
    return number.from_value(_require(quantity, "value", where), unit, where), source
