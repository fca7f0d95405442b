"""Settings that break symmetry: single ranks' GPUs, single nodes' latency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from simcore.apps.run.settings import Settings
from simcore.errors import InputError
from simcore.hardware import ClusterSpec, GpuSpec, load_cluster, num_nic_links
from simcore.units import Number

_LATENCY: Final = Number("time", at_most=1)


def with_node_latencies(cluster: ClusterSpec, extra: Mapping[int, str]) -> ClusterSpec:
    """``cluster`` with seconds of extra latency, one way, on every NIC of some nodes (half at each end).

    Errors: InputError for a node that does not exist, or a NIC whose latency is also set by ``link.*``.
    """
    overrides = dict(cluster.link_overrides)
    for node, text in extra.items():
        if not 0 <= node < cluster.num_nodes:
            raise InputError(f"node.{node}: cluster {cluster.name!r} has nodes 0 to {cluster.num_nodes - 1}")
        seconds = _LATENCY.from_text(text, f"node.{node}.extra_latency_s")
        for nic in range(num_nic_links(cluster)):
            for way in ("in", "out"):
                key = f"nic.{node}.{nic}.{way}.latency_s"
                if key in overrides:
                    raise InputError(f"node.{node}.extra_latency_s contradicts link.{key}: give one of them")
                overrides[key] = cluster.nic_latency_s / 2 + seconds
    return replace(cluster, link_overrides=overrides)


def rank_gpus(settings: Settings, cluster_name: str) -> dict[int, GpuSpec]:
    """GPUs of the ranks that ``rank.<n>.gpu.*`` settings change.  InputError for values that cannot be."""
    known: dict[tuple[tuple[str, str], ...], GpuSpec] = {}
    found = {}
    for rank, changes in settings.ranks.items():
        key = tuple(sorted(changes.items()))
        if key not in known:
            try:
                known[key] = load_cluster(cluster_name, {**settings.hardware, **changes}).gpu
            except InputError as error:
                raise InputError(f"rank.{rank}: {error}") from None
        found[rank] = known[key]
    return found
