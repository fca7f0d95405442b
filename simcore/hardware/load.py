"""Hardware by name or file, with overrides: ``load_cluster("h800-96", {"gpu.hbm_bytes": "64GiB"})``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final

from simcore.errors import InputError, nearest
from simcore.hardware.fabrics import fabric_of
from simcore.hardware.fields import (
    CLUSTER_KEYS,
    CLUSTER_NUMBERS,
    CLUSTER_TEXTS,
    GPU_NUMBERS,
    GPU_TEXTS,
    LINK_NUMBERS,
    LISTS,
    MATH_MODES,
    OPTIONAL_NUMBERS,
    OPTIONAL_TEXTS,
    PEAK_FLOPS,
    RELATIVE_CLOCK,
)
from simcore.hardware.lists import list_from_text
from simcore.hardware.node import node_of, ports_of
from simcore.hardware.profiles import Profile, checked_text, read_cluster, read_gpu
from simcore.hardware.shape import apply_node_xml, placement_of, switches_of, wiring_of
from simcore.hardware.specs import ClusterSpec, GpuSpec
from simcore.hardware.sustained import CONDITIONS, SUSTAINED_NUMBERS, Sustained
from simcore.hardware.topology import checked_placement, link_names

Overrides = Mapping[str, str] | Iterable[tuple[str, str]]

DEFAULT_CLUSTER: Final = "h800-96"
#: Links are columns of numbers: this many GPUs take about 1 GiB.
MAX_GPUS: Final = 2**24

#: Every override key, links aside (those are ``link.<name>.bytes_per_s`` and ``link.<name>.latency_s``).
OVERRIDE_KEYS: Final = (
    *(f"gpu.{key}" for key in (*GPU_TEXTS, *GPU_NUMBERS, "clock", "conditions")),
    *(f"gpu.sustained.{key}" for key in SUSTAINED_NUMBERS),
    *(f"gpu.peak_flops.{mode}" for mode in MATH_MODES),
    *(f"cluster.{key}" for key in CLUSTER_KEYS),
)
#: Fields that :func:`hardware_hash` reads where they are not at their defaults.
_HASHED_IF_GIVEN: Final = (
    "wiring", "leaves_per_pod", "core_oversubscription", "leaves_per_group", "local_cables", "global_cables",
    "uplink_bytes_per_s", "routing", "transport", "placement", "placed_gpus",
)  # fmt: skip
_SCOPES: Final = ("gpu", "cluster", "link")


def is_hardware_key(key: str) -> bool:
    """Whether an override ``key`` speaks of hardware (it may still be unknown or ill-formed)."""
    return key.split(".", 1)[0] in _SCOPES and "." in key


def load_gpu(name_or_path: str, overrides: Overrides = ()) -> GpuSpec:
    """A GPU by profile name (``h800``) or TOML file, with ``gpu.*`` overrides applied.

    ``gpu.clock`` scales the SM clock and every compute peak with it, ``gpu.sustained.*`` are what the GPU
    keeps up in training, ``gpu.conditions=cool`` leaves that aside.  Errors: InputError for an unknown name
    or key (with the nearest valid one), a malformed file, or a number that cannot be.
    """
    changes = _by_scope(overrides)
    for scope in ("cluster", "link"):
        if changes[scope]:
            raise InputError(f"override '{scope}.{next(iter(changes[scope]))}' needs a cluster, not a GPU")
    return _gpu(read_gpu(name_or_path), changes["gpu"])


def load_cluster(name_or_path: str = DEFAULT_CLUSTER, overrides: Overrides = ()) -> ClusterSpec:
    """A cluster by name (``h800-96``: family and number of GPUs) or TOML file, with overrides applied.

    Overrides are ``cluster.<field>``, ``gpu.<field>``, ``gpu.peak_flops.<mode>``, ``gpu.clock``
    (relative) and ``link.<name>.bytes_per_s`` / ``.latency_s``; bare numbers are in SI units, others
    carry theirs (``400Gb/s``, ``80GiB``, ``2us``).  Errors: InputError as for :func:`load_gpu`, and
    for node shapes that no wiring has.
    """
    changes = _by_scope(overrides)
    profile = read_cluster(name_or_path)
    texts, numbers = {**CLUSTER_TEXTS, **OPTIONAL_TEXTS}, {**CLUSTER_NUMBERS, **OPTIONAL_NUMBERS}
    for key, text in changes["cluster"].items():
        where = f"override cluster.{key}"
        if key in texts:
            profile.texts[key] = checked_text(key, text, texts[key], where)
        elif key in LISTS:
            profile.lists[key] = list_from_text(key, text, where)
        else:
            profile.numbers[key] = numbers[key].from_text(text, where)
        profile.sources[key] = f"override {text}"
    apply_node_xml(profile, set(changes["cluster"]))
    if not {"name", "num_nodes", "gpus_per_node"}.isdisjoint(changes["cluster"]):
        _keep_name_true(profile, changes["cluster"])
    # A path written in a cluster file is relative to that file; one given as an override is not.
    folder = None if "gpu" in changes["cluster"] else profile.folder
    gpu = _gpu(read_gpu(profile.texts["gpu"], folder), changes["gpu"])
    cluster = _cluster(profile, gpu, placement_overridden="placement" in changes["cluster"])
    return replace(cluster, link_overrides=_link_overrides(cluster, changes["link"]))


def hardware_hash(cluster: ClusterSpec) -> str:
    """SHA-256 over every number and wiring choice (not names or sources): equal hash, equal hardware."""
    content = asdict(cluster)
    for spec in fields(
        cluster
    ):  # what a cluster leaves at its default does not count, so that keys can be added
        default = spec.default_factory() if callable(spec.default_factory) else spec.default
        if spec.name in _HASHED_IF_GIVEN and getattr(cluster, spec.name) == default:
            del content[spec.name]
    for table in (content, content["gpu"]):
        del table["sources"], table["name"]
    if held := content["gpu"]["sustained"]:
        del held["sources"], held["measured_on"]
    del content["gpu"]["die"]  # a name
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def assumptions(cluster: ClusterSpec) -> tuple[str, ...]:
    """Numbers whose source is an assumption, ``gpu.key: source``, for the record of a run."""
    scopes: tuple[tuple[str, Mapping[str, str]], ...] = (
        ("gpu", cluster.gpu.sources),
        ("gpu.sustained", cluster.gpu.sustained.sources if cluster.gpu.sustained else {}),
        ("cluster", cluster.sources),
    )
    return tuple(
        f"{scope}.{key}: {source}"
        for scope, sources in scopes
        for key, source in sources.items()
        if source.startswith("assumption")
    )


def _gpu(profile: Profile, changes: Mapping[str, str]) -> GpuSpec:
    held: dict[str, Any] = {}
    conditions = CONDITIONS[0]
    for key, text in changes.items():
        where = f"override gpu.{key}"
        if key == "conditions":
            conditions = CONDITIONS[CONDITIONS.index(checked_text(key, text, CONDITIONS, where))]
        elif key.startswith("sustained."):
            name = key.removeprefix("sustained.")
            held[name] = SUSTAINED_NUMBERS[name].from_text(text, where)
        elif key in GPU_TEXTS:
            profile.texts[key] = checked_text(key, text, GPU_TEXTS[key], where)
        elif key in GPU_NUMBERS:
            profile.numbers[key] = GPU_NUMBERS[key].from_text(text, where)
        elif key != "clock":
            profile.peaks[key.removeprefix("peak_flops.")] = PEAK_FLOPS.from_text(text, where)
        profile.sources[key] = f"override {text}"
    if "clock" in changes:  # after all others: relative to whatever peaks they set
        ratio = RELATIVE_CLOCK.from_text(changes["clock"], "override gpu.clock")
        profile.numbers["boost_clock_hz"] *= ratio
        profile.peaks = {mode: peak * ratio for mode, peak in profile.peaks.items()}
    values: dict[str, Any] = {**profile.texts, **profile.numbers}
    sustained = profile.sustained
    if held:
        sustained = replace(sustained or Sustained(measured_on=(profile.texts["name"],)), **held)
    gpu = GpuSpec(
        **values, peak_flops=profile.peaks, sustained=sustained, conditions=conditions,
        sources=profile.sources,
    )  # fmt: skip
    if gpu.reserved_bytes >= gpu.hbm_bytes:
        raise InputError(
            f"{profile.where}: reserved_bytes = {gpu.reserved_bytes:,} must be less than hbm_bytes ="
            f" {gpu.hbm_bytes:,}"
        )
    return gpu


def _by_scope(overrides: Overrides) -> dict[str, dict[str, str]]:
    """Overrides by scope, keys without it.  InputError for a key that no profile has."""
    scoped: dict[str, dict[str, str]] = {scope: {} for scope in _SCOPES}
    for key, value in dict(overrides).items():
        scope, _, rest = key.partition(".")
        if key not in OVERRIDE_KEYS and not (scope == "link" and rest):
            raise InputError(f"unknown hardware key {key!r}{nearest(key, OVERRIDE_KEYS)}")
        scoped[scope][rest] = str(value)
    return scoped


def _keep_name_true(profile: Profile, changes: Mapping[str, str]) -> None:
    """``h800-96`` with another number of nodes is ``h800-<its GPUs>``, unless it is given a name."""
    family, dash, size = profile.texts["name"].rpartition("-")
    gpus = int(profile.numbers["num_nodes"] * profile.numbers["gpus_per_node"])
    if "name" not in changes and dash and size.isdecimal():
        profile.texts["name"] = f"{family}-{gpus}"


def _link_overrides(cluster: ClusterSpec, changes: Mapping[str, str]) -> dict[str, float]:
    names = link_names(cluster) if changes else ()
    values: dict[str, float] = {}
    for key, text in changes.items():
        link, _, attribute = key.rpartition(".")
        if attribute not in LINK_NUMBERS:
            raise InputError(
                f"override link.{key}: unknown attribute {attribute!r}{nearest(attribute, LINK_NUMBERS)}"
            )
        names.index(link)  # refuses a link that the cluster does not have
        values[key] = LINK_NUMBERS[attribute].from_text(text, f"override link.{key}")
    return values


def _cluster(profile: Profile, gpu: GpuSpec, *, placement_overridden: bool) -> ClusterSpec:
    """The cluster of a complete profile.  InputError for wiring that cannot be, or too many GPUs."""
    values: dict[str, Any] = {key: profile.texts[key] for key in CLUSTER_TEXTS}
    # A dragonfly has no spines.
    values |= {key: profile.numbers.get(key, 1.0) for key in CLUSTER_NUMBERS}
    values |= {"gpu": gpu, "routing": profile.texts.get("routing", "auto")}
    values["transport"] = profile.texts.get("transport", "infiniband")
    num_gpus = values["num_nodes"] * values["gpus_per_node"]
    if num_gpus > MAX_GPUS:
        raise InputError(
            f"{profile.where}: {num_gpus} GPUs are more than the {MAX_GPUS} that links are kept for"
        )
    values |= {**switches_of(profile), **placement_of(profile, overridden=placement_overridden)}
    cluster = ClusterSpec(**values, wiring=wiring_of(profile), sources=profile.sources)
    try:
        node_of(cluster)
        fabric_of(cluster, ports_of(cluster))
        checked_placement(cluster)
    except InputError as error:
        raise InputError(f"{profile.where}: {error}") from None
    return cluster
