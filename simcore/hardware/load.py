"""Hardware by name or file, with overrides: ``load_cluster("h800-96", {"gpu.hbm_bytes": "64GiB"})``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from simcore.errors import InputError, nearest
from simcore.hardware.fabrics import fabric_of
from simcore.hardware.keys import CLUSTER, GPU_OVERRIDES, LINK, LISTS, from_text
from simcore.hardware.node import node_of, ports_of
from simcore.hardware.profiles import Profile, read_cluster, read_gpu, settle_generation
from simcore.hardware.ranges import refuse_beyond
from simcore.hardware.shape import PCIE_KEYS, apply_node_xml, check_switches, placement_of, wiring_of
from simcore.hardware.specs import ClusterSpec, GpuSpec
from simcore.hardware.sustained import Sustained, clock_at_limit
from simcore.hardware.topology import checked_placement, link_names

Overrides = Mapping[str, str] | Iterable[tuple[str, str]]

DEFAULT_CLUSTER: Final = "h800-96"
#: Links are columns of numbers: this many GPUs take about 2 GiB, and a simulation on them 11.
MAX_GPUS: Final = 2**24

#: Every override key, links aside (those are ``link.<name>.bytes_per_s`` and ``link.<name>.latency_s``).
OVERRIDE_KEYS: Final = (
    *(f"gpu.{key}" for key in GPU_OVERRIDES),
    *(f"cluster.{key}" for key in CLUSTER),
)
_SCOPES: Final = ("gpu", "cluster", "link")


def is_hardware_key(key: str) -> bool:
    """Whether an override ``key`` speaks of hardware (it may still be unknown or ill-formed)."""
    return key.split(".", 1)[0] in _SCOPES and "." in key


def load_gpu(name_or_path: str, overrides: Overrides = (), *, force: bool = False) -> GpuSpec:
    """A GPU by profile name (``h800``) or TOML file, with ``gpu.*`` overrides applied.

    ``gpu.clock`` scales the SM clock and every compute peak with it, ``gpu.num_sms`` the peaks and what SMs
    get out of L2 unless those are given, too; ``gpu.sustained.*`` are what the GPU
    keeps up in training, ``gpu.conditions=cool`` leaves that aside.  Errors: InputError for an unknown name
    or key (with the nearest valid one), a malformed file, or a number that cannot be; without ``force`` also
    for one that no hardware has, see Note [Ranges] of :mod:`simcore.hardware.ranges`.
    """
    changes = _by_scope(overrides)
    for scope in ("cluster", "link"):
        if changes[scope]:
            raise InputError(f"override '{scope}.{next(iter(changes[scope]))}' needs a cluster, not a GPU")
    return _gpu(read_gpu(name_or_path), changes["gpu"], force=force)


def load_cluster(
    name_or_path: str = DEFAULT_CLUSTER, overrides: Overrides = (), *, force: bool = False
) -> ClusterSpec:
    """A cluster by name (``h800-96``: family and number of GPUs) or TOML file, with overrides applied.

    Overrides are ``cluster.<field>``, ``gpu.<field>``, ``gpu.peak_flops.<mode>``, ``gpu.clock``
    (relative) and ``link.<name>.bytes_per_s`` / ``.latency_s``; bare numbers are in SI units, others
    carry theirs (``400Gb/s``, ``80GiB``, ``2us``).  Errors: InputError as for :func:`load_gpu`, and
    for node shapes that no wiring has.
    """
    changes = _by_scope(overrides)
    profile = read_cluster(name_or_path)
    for key, text in changes["cluster"].items():
        profile.values[key] = from_text(CLUSTER, key, text, "override cluster.")
        profile.sources[key] = f"override {text}"
    apply_node_xml(profile, set(changes["cluster"]))
    if not {"name", "num_nodes", "gpus_per_node"}.isdisjoint(changes["cluster"]):
        _keep_name_true(profile, changes["cluster"])
    # A path written in a cluster file is relative to that file; one given as an override is not.
    folder = None if "gpu" in changes["cluster"] else profile.folder
    gpu = _gpu(read_gpu(profile.values["gpu"], folder), changes["gpu"], force=force)
    if changes["cluster"] or profile.folder is not None:
        refuse_beyond("cluster", profile, profile.values, force=force)
    cluster = _cluster(profile, gpu, placement_overridden="placement" in changes["cluster"])
    links = _link_overrides(cluster, changes["link"])
    if links:
        refuse_beyond("link", profile, links, force=force)
    return replace(cluster, link_overrides=links)


def cluster_for(family: str, num_gpus: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Name of a cluster of ``family`` for a job of ``num_gpus``, and overrides that place it there.

    Over several NVLink domains a scheduler gives a job as many GPUs of each, in whole nodes, as divide it: 64
    of 72 for 256.
    """
    usual = load_cluster(family)
    each, whole = usual.gpus_per_node, usual.gpus_per_domain
    if num_gpus <= whole or usual.nodes_per_domain == 1:
        return f"{family}-{each * -(-num_gpus // each)}", ()
    used = next((size for size in range(whole, 0, -each) if num_gpus % size == 0), whole)
    return f"{family}-{whole * -(-num_gpus // used)}", (("cluster.placement", f"domains:{used}"),)


def _gpu(profile: Profile, changes: Mapping[str, str], *, force: bool) -> GpuSpec:
    values, sustained = profile.values, profile.sustained
    rated = GpuSpec(**values)
    held: dict[str, Any] = {}
    for key, text in changes.items():
        value = from_text(GPU_OVERRIDES, key, text, "override gpu.")
        scope, _, name = key.rpartition(".")
        if scope == "sustained":
            held[name] = value
        elif scope == "peak_flops":
            values["peak_flops"] = {**values["peak_flops"], name: value}
        elif key != "clock":
            values[key] = value
        profile.sources[key] = f"override {text}"
    if "num_sms" in changes:
        _with_sms(values, changes, values["num_sms"] / rated.num_sms)
    settle_generation(profile)
    if sustained is not None:
        sustained = replace(sustained, clock=_clock_under_load(profile, rated, sustained))
    if held:
        sustained = replace(sustained or Sustained(measured_on=(values["name"],)), **held)
    if "clock" in changes:  # after all others: relative to whatever peaks they set
        ratio = from_text(GPU_OVERRIDES, "clock", changes["clock"], "override gpu.")
        values["boost_clock_hz"] *= ratio
        values["peak_flops"] = {mode: peak * ratio for mode, peak in values["peak_flops"].items()}
    if changes or profile.folder is not None:
        refuse_beyond("gpu", profile, values, force=force)
        refuse_beyond("sustained", profile, {f"sustained.{k}": v for k, v in held.items()}, force=force)
    gpu = GpuSpec(**values, sustained=sustained, sources=profile.sources)
    if gpu.reserved_bytes >= gpu.hbm_bytes:
        raise InputError(
            f"{profile.where}: reserved_bytes = {gpu.reserved_bytes:,} must be less than hbm_bytes ="
            f" {gpu.hbm_bytes:,}"
        )
    return gpu


def _with_sms(values: dict[str, Any], changes: Mapping[str, str], ratio: float) -> None:
    """Each SM has its products and asks L2 for operands: what is not said of both goes with their number."""
    values["peak_flops"] = {
        mode: peak if f"peak_flops.{mode}" in changes else peak * ratio
        for mode, peak in values["peak_flops"].items()
    }
    if "l2_bytes_per_s" not in changes:
        values["l2_bytes_per_s"] *= ratio


def _clock_under_load(profile: Profile, rated: GpuSpec, held: Sustained) -> float:
    """The die's clock, for a board of another power limit the one that its limit leaves it.

    ``rated``: the board as its profile has it, without overrides.
    """
    limit_w, static_w = profile.values.get("power_limit_w"), profile.values.get("static_power_w")
    if limit_w is not None and static_w is not None and limit_w <= static_w:
        raise InputError(
            f"{profile.where}: power_limit_w = {limit_w:g} W must be more than static_power_w ="
            f" {static_w:g} W"
        )
    said = held.boards.get(rated.name, {})
    name = said.get("reference", held.reference)
    # A board is its own reference where its runs, or its sustained products, gave the numbers.
    own = "clock" in said or rated.name in held.measured_on or rated.name == read_gpu(name).values["name"]
    reference = rated if own else load_gpu(name)
    board = replace(rated, power_limit_w=limit_w, static_power_w=static_w)
    return clock_at_limit(board, reference, held.clock_of(reference.name))


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
    family, dash, size = profile.values["name"].rpartition("-")
    if "name" not in changes and dash and size.isdecimal():
        gpus = profile.values["num_nodes"] * profile.values["gpus_per_node"]
        profile.values["name"] = f"{family}-{gpus}"


def _link_overrides(cluster: ClusterSpec, changes: Mapping[str, str]) -> dict[str, float]:
    names = link_names(cluster) if changes else ()
    values: dict[str, float] = {}
    for key, text in changes.items():
        link, _, attribute = key.rpartition(".")
        if attribute not in LINK:
            raise InputError(
                f"override link.{key}: unknown attribute {attribute!r}{nearest(attribute, LINK)}"
            )
        names.index(link)  # refuses a link that the cluster does not have
        values[key] = LINK[attribute].from_text(text, f"override link.{key}")
    return values


def _cluster(profile: Profile, gpu: GpuSpec, *, placement_overridden: bool) -> ClusterSpec:
    """The cluster of a complete profile.  InputError for wiring that cannot be, or too many GPUs."""
    # A dragonfly has no spines.
    values = {"spine_oversubscription": 1.0, **profile.values, "gpu": gpu}
    for key in (*LISTS, *PCIE_KEYS, "node_xml", "placement"):
        values.pop(key, None)
    num_gpus = values["num_nodes"] * values["gpus_per_node"]
    if num_gpus > MAX_GPUS:
        raise InputError(
            f"{profile.where}: {num_gpus} GPUs are more than the {MAX_GPUS} that links are kept for"
        )
    check_switches(profile)
    values |= placement_of(profile, overridden=placement_overridden)
    cluster = ClusterSpec(**values, wiring=wiring_of(profile), sources=profile.sources)
    try:
        node_of(cluster)
        fabric_of(cluster, ports_of(cluster))
        checked_placement(cluster)
    except InputError as error:
        raise InputError(f"{profile.where}: {error}") from None
    return cluster
