"""GPUs, clusters and their wiring: frozen values loaded from hardware_profiles/*.toml."""

from simcore.hardware.boards import Board, known_clusters, named_board
from simcore.hardware.covered import covered_sms
from simcore.hardware.load import (
    DEFAULT_CLUSTER,
    OVERRIDE_KEYS,
    cluster_for,
    is_hardware_key,
    load_cluster,
    load_gpu,
)
from simcore.hardware.node import num_nic_links
from simcore.hardware.profiles import cluster_names, dies, gpu_names
from simcore.hardware.record import assumptions, forced, hardware_hash
from simcore.hardware.shape import placed_on
from simcore.hardware.specs import ClusterSpec, GpuSpec
from simcore.hardware.topology import Links, Topology

__all__ = [
    "DEFAULT_CLUSTER",
    "OVERRIDE_KEYS",
    "Board",
    "ClusterSpec",
    "GpuSpec",
    "Links",
    "Topology",
    "assumptions",
    "cluster_for",
    "cluster_names",
    "covered_sms",
    "dies",
    "forced",
    "gpu_names",
    "hardware_hash",
    "is_hardware_key",
    "known_clusters",
    "load_cluster",
    "load_gpu",
    "named_board",
    "num_nic_links",
    "placed_on",
]
