"""Whether anybody measured what joins a cluster's nodes, and what its numbers rest on otherwise."""

from __future__ import annotations

from typing import Final

from simcore.hardware.specs import ClusterSpec

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
