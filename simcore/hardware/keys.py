"""Which keys a hardware profile has, and what each accepts: the schemas of hardware_profiles/*.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from simcore.hardware.wiring import FABRICS, NODE_KINDS
from simcore.tables import TEXT, Each, Listed, Maybe, Text, names
from simcore.units import Number

MATH_MODES: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")

# Nothing here is counted in more than 2**24; larger numbers overflow columns of integers.
_count = Number("count", integer=True, at_most=2**24)
_size = Number("size", integer=True)
_bandwidth = Number("bandwidth")
_share = Number("ratio", at_most=1)
_factor = Number("ratio", at_least=1)
# A latency of zero is a useful idealisation; a rate of zero only divides by zero.
# No latency here reaches a second; beyond it, a step no longer fits in 64 bits of picoseconds.
_latency = Number("time", zero_allowed=True, at_most=1)

GPU: Final[dict[str, Any]] = {
    "name": TEXT,
    "generation": TEXT,
    "like": Maybe(TEXT),
    "die": Maybe(TEXT),
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
    "power_limit_w": Maybe(Number("power")),
    "static_power_w": Maybe(Number("power")),
    "peak_flops": Each(Number("compute"), MATH_MODES),
}
#: What a die keeps up under load; what a file leaves out is as rated.
SUSTAINED: Final[dict[str, Any]] = {
    "clock": Maybe(Number("ratio")),
    "fp8": Maybe(Number("ratio")),
    "spread": Maybe(Number("ratio", zero_allowed=True, at_most=1)),
}
DIE: Final[dict[str, Any]] = {
    **SUSTAINED,
    "reference": TEXT,
    "measured_on": Listed("names of GPUs", lambda item: isinstance(item, str)),
}


def _whole(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0


def _list_of(items: str, fits: Callable[[Any], bool] = _whole) -> Maybe:
    return Maybe(Listed(items, fits))


def _wholes(item: object) -> bool:
    return isinstance(item, list) and all(map(_whole, item))


@dataclass(frozen=True)
class _Placement(Text):
    """A placement's text; a list of GPUs reads as one in a text does."""

    def from_value(self, value: object, where: str) -> str:
        """As :class:`Text`."""
        if isinstance(value, list):
            value = ",".join(map(str, Listed("whole numbers", _whole).from_value(value, where)))
        return super().from_value(value, where)


#: Lists, by what they describe.
LISTS: Final[dict[str, Any]] = {
    "nvlinks": _list_of("[GPU, GPU, links]", lambda item: _wholes(item) and len(item) == 3),
    "nic_of_gpu": _list_of("NICs, or lists of NICs", lambda item: _whole(item) or _wholes(item)),
    "pcie_switch_of_gpu": _list_of("whole numbers"),
    "pcie_switch_of_nic": _list_of("whole numbers"),
    "cpu_of_pcie_switch": _list_of("whole numbers"),
    "cpu_of_gpu": _list_of("whole numbers"),
}
CLUSTER: Final[dict[str, Any]] = {
    "name": TEXT,
    "gpu": TEXT,
    "intra_node": Text(NODE_KINDS),
    "fabric": Text(FABRICS),
    "nccl_version": TEXT,
    "num_nodes": _count,
    "gpus_per_node": _count,
    "nvlink_latency_s": _latency,
    "nics_per_node": _count,
    "nic_bytes_per_s": _bandwidth,
    "nic_efficiency": _share,
    "nic_latency_s": _latency,
    "hop_latency_s": _latency,
    "nodes_per_leaf": _count,
    "spine_oversubscription": _factor,
    "pcie_bytes_per_s": Maybe(_bandwidth),
    "pcie_switch_bytes_per_s": Maybe(_bandwidth),
    "pcie_efficiency": Maybe(_share),
    "pcie_latency_s": Maybe(_latency),
    "cpu_bytes_per_s": Maybe(_bandwidth),
    "cpu_latency_s": Maybe(_latency),
    "leaves_per_pod": Maybe(_count),
    "core_oversubscription": Maybe(_factor),
    "leaves_per_group": Maybe(_count),
    "local_cables": Maybe(_count),
    "global_cables": Maybe(_count),
    "uplink_bytes_per_s": Maybe(_bandwidth),
    "nccl_net_latency_s": Maybe(_latency),
    "routing": Maybe(Text(("auto", "rail", "ecmp"))),
    "transport": Maybe(Text(("infiniband", "roce", "efa", "tcpx", "tcpxo"))),
    "nccl_environment": Maybe(TEXT),
    "fabric_measured": Maybe(TEXT),
    "placement": Maybe(_Placement()),
    "node_xml": Maybe(TEXT),
    **LISTS,
}
#: What a node's XML says, so that a cluster with one does not say it.
FROM_XML: Final = ("intra_node", "gpus_per_node", "nics_per_node", "nic_bytes_per_s", *LISTS)

LINK: Final[dict[str, Any]] = {"bytes_per_s": _bandwidth, "latency_s": _latency}

#: How a GPU runs: at the clocks of long training, or at the rated ones of a microbenchmark.
CONDITIONS: Final = ("sustained", "cool")
#: What overrides may say of a GPU beside a file, and of that all but what chooses tables.
GPU_OVERRIDES: Final[Mapping[str, Any]] = {
    **{key: rule for key, rule in GPU.items() if key not in ("like", "die", "peak_flops")},
    "generation": Text(names("hardware_profiles", "cost")),
    "clock": Number("ratio"),
    "conditions": Text(CONDITIONS),
    **{f"sustained.{key}": rule for key, rule in SUSTAINED.items()},
    **{f"peak_flops.{mode}": GPU["peak_flops"].schema for mode in MATH_MODES},
}


def from_text(schema: Mapping[str, Any], key: str, text: str, where: str) -> Any:
    """The value that an override gives ``key``.  InputError, with ``where`` the key is, if it cannot be."""
    rule = schema[key]
    return (rule.schema if isinstance(rule, Maybe) else rule).from_text(text, f"{where}{key}")
