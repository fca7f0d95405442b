"""Which keys a hardware profile has, and what each accepts: the schemas of hardware_profiles/*.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from simcore.hardware.specs import BANDWIDTH, CONDITIONS, LATENCY, MATH_MODES, RATIO, ClusterSpec, GpuSpec
from simcore.hardware.sustained import Sustained
from simcore.records import dataclass
from simcore.tables import TEXT, Each, Listed, Maybe, Text, keys_of, names
from simcore.units import Number

#: Numbers of a die; what its file leaves out is as rated.
SUSTAINED: Final = {k: v for k, v in keys_of(Sustained).items() if k in ("clock", "fp8", "spread")}
GPU: Final = {k: v for k, v in keys_of(GpuSpec).items() if k not in ("sustained", "conditions", "sources")}
DIE: Final[dict[str, Any]] = {
    **SUSTAINED,
    "reference": TEXT,
    "measured_on": Maybe(Listed("names of GPUs", lambda item: isinstance(item, str))),
    "boards": Maybe(Each({"clock": Maybe(keys_of(Sustained)["clock"].schema), "reference": Maybe(TEXT)})),
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
#: Fields that follow from others and from overrides.
_BUILT: Final = ("wiring", "placed_gpus", "link_overrides", "sources")
CLUSTER: Final[dict[str, Any]] = {
    **{key: rule for key, rule in keys_of(ClusterSpec).items() if key not in _BUILT},
    "gpu": TEXT,
    **dict.fromkeys(("pcie_bytes_per_s", "pcie_switch_bytes_per_s"), Maybe(BANDWIDTH)),
    "pcie_efficiency": Maybe(RATIO),
    "pcie_latency_s": Maybe(LATENCY),
    "cpu_bytes_per_s": Maybe(BANDWIDTH),
    "cpu_latency_s": Maybe(LATENCY),
    "placement": Maybe(_Placement()),
    "node_xml": Maybe(TEXT),
    **LISTS,
}
#: What a node's XML says, so that a cluster with one does not say it.
FROM_XML: Final = ("intra_node", "gpus_per_node", "nics_per_node", "nic_bytes_per_s", *LISTS)

LINK: Final = {"bytes_per_s": BANDWIDTH, "latency_s": LATENCY}
#: What overrides may say of a GPU: all but what chooses tables, and more.
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
