"""What the record of a run says of its hardware: its hash, and what its numbers rest on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Final

from simcore.hardware.ranges import FORCED
from simcore.hardware.specs import ClusterSpec

#: Fields that :func:`hardware_hash` reads where they are not at their defaults.
_HASHED_IF_GIVEN: Final = (
    "wiring", "leaves_per_pod", "core_oversubscription", "leaves_per_group", "local_cables", "global_cables",
    "uplink_bytes_per_s", "routing", "transport", "placement", "placed_gpus",
    "nccl_environment", "nccl_net_latency_s",
)  # fmt: skip
#: What a measurement of collectives between nodes speaks of; anything of it that is replaced is another
#: fabric.  How many nodes there are, and how many share a leaf, is the size of a job and not a fabric.
_SPEAKS_OF: Final = (
    "nics_per_node",
    "nic_bytes_per_s",
    "nic_efficiency",
    "nic_latency_s",
    "nccl_net_latency_s",
    "hop_latency_s",
    "spine_oversubscription",
    "core_oversubscription",
    "uplink_bytes_per_s",
    "fabric",
    "transport",
    "nccl_environment",
)
#: The numbers that decide how long collectives between nodes take.
_RESTS_ON: Final = ("nic_efficiency", "nic_latency_s")
_REPLACED: Final = "override"


def hardware_hash(cluster: ClusterSpec) -> str:
    """SHA-256 over every number and wiring choice (not names or sources): equal hash, equal hardware."""
    content = asdict(cluster)
    for spec in fields(
        cluster
    ):  # what a cluster leaves at its default does not count, so that keys can be added
        default = spec.default_factory() if callable(spec.default_factory) else spec.default
        if spec.name in _HASHED_IF_GIVEN and getattr(cluster, spec.name) == default:
            del content[spec.name]
    del content["fabric_measured"]
    for table in (content, content["gpu"]):
        del table["sources"], table["name"]
    if held := content["gpu"]["sustained"]:
        del held["sources"], held["measured_on"]
    del content["gpu"]["die"]  # a name
    for key in ("power_limit_w", "static_power_w"):  # they only say what the clock is, and it is in the peaks
        del content["gpu"][key]
    if not content["gpu"]["like"]:
        del content["gpu"]["like"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def assumptions(cluster: ClusterSpec) -> tuple[str, ...]:
    """Numbers that are assumed or were taken by force, ``gpu.key: source``, for the record of a run."""
    scopes: tuple[tuple[str, Mapping[str, str]], ...] = (
        ("gpu", cluster.gpu.sources),
        ("gpu.sustained", cluster.gpu.sustained.sources if cluster.gpu.sustained else {}),
        ("cluster", cluster.sources),
    )
    return tuple(
        f"{scope}.{key}: {source}"
        for scope, sources in scopes
        for key, source in sources.items()
        if source.startswith("assumption") or source.endswith(FORCED)
    )


def forced(cluster: ClusterSpec) -> tuple[str, ...]:
    """Those of :func:`assumptions` that were taken by force."""
    return tuple(line for line in assumptions(cluster) if line.endswith(FORCED))


def unmeasured_fabric(cluster: ClusterSpec) -> str | None:
    """What to say of a cluster whose nodes are joined by a fabric that was never measured; None otherwise.

    ``fabric_measured`` of the profile names the measurement; it does not hold for what a user replaced.
    """
    if cluster.num_nodes == 1:
        return None
    replaced = [key for key in _SPEAKS_OF if cluster.sources.get(key, "").startswith(_REPLACED)]
    if cluster.fabric_measured and not replaced:
        return None
    ports = f"{cluster.nics_per_node} x {cluster.nic_bytes_per_s * 8e-9:g} Gb/s"
    named = f"the fabric of cluster {cluster.name!r} ({cluster.transport}, {ports} per node)"
    if cluster.fabric_measured:
        return (
            f"{named} was not measured with another {', '.join(replaced)}: time between nodes follows from it"
        )
    rests = "; ".join(f"{key}: {cluster.sources[key]}" for key in _RESTS_ON if key in cluster.sources)
    return f"{named} was never measured; time between nodes rests on {rests or 'what its file says'}"
