"""Which keys a hardware profile has, and what each accepts: the schema of hardware_profiles/*.toml."""

from __future__ import annotations

from typing import Final

from simcore.hardware.quantities import Number
from simcore.hardware.wiring import FABRICS, NODE_KINDS

MATH_MODES: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")

# Nothing here is counted in more than 2**24; larger numbers overflow columns of integers.
_count = Number("count", integer=True, at_most=2**24)
_size = Number("size", integer=True)
_bandwidth = Number("bandwidth")
_share = Number("ratio", at_most=1)
# A latency of zero is a useful idealisation; a rate of zero only divides by zero.
# No latency here reaches a second; beyond it, a step no longer fits in 64 bits of picoseconds.
_latency = Number("time", zero_allowed=True, at_most=1)

PEAK_FLOPS: Final = Number("compute")
RELATIVE_CLOCK: Final = Number("ratio")

GPU_NUMBERS: Final[dict[str, Number]] = {
    "num_sms": _count,
    "boost_clock_hz": Number("frequency"),
    "hbm_bytes": _size,
    "hbm_bytes_per_s": _bandwidth,
    "l2_bytes": _size,
    "l2_bytes_per_s": _bandwidth,
    "nvlink_bytes_per_s": _bandwidth,
    "nvlink_links": _count,
    "nvlink_efficiency": _share,
    "copy_engines": _count,
    "launch_overhead_s": _latency,
    "launch_latency_s": _latency,
    "kernel_gap_s": _latency,
    "gemm_efficiency": _share,
    "hbm_efficiency": _share,
    "reserved_bytes": Number("size", integer=True, zero_allowed=True),
}
#: Text key -> allowed values (None: any text).
GPU_TEXTS: Final[dict[str, tuple[str, ...] | None]] = {
    "name": None,
    "generation": ("volta", "ampere", "hopper"),
}
#: Texts that a GPU may leave out; conditions are chosen by overrides alone.
OPTIONAL_GPU_TEXTS: Final[dict[str, tuple[str, ...] | None]] = {"die": None}

CLUSTER_NUMBERS: Final[dict[str, Number]] = {
    "num_nodes": _count,
    "gpus_per_node": _count,
    "nvlink_latency_s": _latency,
    "nics_per_node": _count,
    "nic_bytes_per_s": _bandwidth,
    "nic_efficiency": _share,
    "nic_latency_s": _latency,
    "hop_latency_s": _latency,
    "nodes_per_leaf": _count,
    "spine_oversubscription": Number("ratio", at_least=1),
}
CLUSTER_TEXTS: Final[dict[str, tuple[str, ...] | None]] = {
    "name": None,
    "gpu": None,
    "intra_node": NODE_KINDS,
    "fabric": FABRICS,
    "nccl_version": None,
}
#: Keys that a cluster may leave out.
OPTIONAL_NUMBERS: Final[dict[str, Number]] = {
    "pcie_bytes_per_s": _bandwidth,
    "pcie_switch_bytes_per_s": _bandwidth,
    "pcie_efficiency": _share,
    "pcie_latency_s": _latency,
    "cpu_bytes_per_s": _bandwidth,
    "cpu_latency_s": _latency,
    "leaves_per_pod": _count,
    "core_oversubscription": Number("ratio", at_least=1),
    "leaves_per_group": _count,
    "local_cables": _count,
    "global_cables": _count,
    "uplink_bytes_per_s": _bandwidth,
}
OPTIONAL_TEXTS: Final[dict[str, tuple[str, ...] | None]] = {
    "routing": ("auto", "rail", "ecmp"),
    "transport": ("infiniband", "roce"),
    "placement": None,
    "node_xml": None,
}
#: Lists, ``{ value = [...], source = "..." }``: the nested ones hold lists of whole numbers.
LISTS: Final = (
    "nvlinks",
    "nic_of_gpu",
    "pcie_switch_of_gpu",
    "pcie_switch_of_nic",
    "cpu_of_pcie_switch",
    "cpu_of_gpu",
)
#: What a node's XML says, so that a cluster with one does not say it.
FROM_XML: Final = ("intra_node", "gpus_per_node", "nics_per_node", "nic_bytes_per_s", *LISTS)

CLUSTER_KEYS: Final = (*CLUSTER_TEXTS, *CLUSTER_NUMBERS, *OPTIONAL_TEXTS, *OPTIONAL_NUMBERS, *LISTS)

LINK_NUMBERS: Final[dict[str, Number]] = {"bytes_per_s": _bandwidth, "latency_s": _latency}
