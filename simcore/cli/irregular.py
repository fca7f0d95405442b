"""Settings that break symmetry: single ranks' GPUs, single nodes' latency, noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from simcore.cli.settings import Settings
from simcore.cost import CostModel, RooflineCost
from simcore.engine import Noise, Variants
from simcore.errors import InputError
from simcore.hardware import ClusterSpec, GpuSpec, load_cluster, num_nic_links
from simcore.hardware.quantities import Number

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


def rank_variants(
    settings: Settings, cluster_name: str, cluster: ClusterSpec, cost: CostModel, world_size: int
) -> Variants | None:
    """GPUs of the ranks that ``rank.<n>.gpu.*`` settings change; None when there are none.

    Errors: InputError for a rank outside the job.
    """
    if not settings.ranks:
        return None
    of_rank = np.zeros(world_size, dtype=np.int64)
    gpus: list[GpuSpec] = [cluster.gpu]
    costs: list[CostModel] = [cost]
    index: dict[tuple[tuple[str, str], ...], int] = {}
    for rank, changes in settings.ranks.items():
        if not 0 <= rank < world_size:
            raise InputError(f"rank.{rank}: the job has ranks 0 to {world_size - 1}")
        key = tuple(sorted(changes.items()))
        if key not in index:
            index[key] = len(gpus)
            try:
                gpu = load_cluster(cluster_name, {**settings.hardware, **changes}).gpu
            except InputError as error:
                raise InputError(f"rank.{rank}: {error}") from None
            gpus.append(gpu)
            costs.append(RooflineCost(gpu, fp32_math=settings.fp32_math, tables=settings.tables))
        of_rank[rank] = index[key]
    return Variants(tuple(gpus), tuple(costs), of_rank)


def noise_of(settings: Settings, seed: int) -> Noise | None:
    """Noise in kernel times, seeded by the run's seed; None without ``noise.sigma``."""
    return Noise(settings.noise_sigma, seed) if settings.noise_sigma else None
