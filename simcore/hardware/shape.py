"""The optional keys of a cluster, turned into wiring, switches and placement of a ``ClusterSpec``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simcore.errors import InputError
from simcore.hardware.fields import FROM_XML, LISTS, OPTIONAL_NUMBERS
from simcore.hardware.nics import nic_ports
from simcore.hardware.placement import placed
from simcore.hardware.profiles import Profile
from simcore.hardware.wiring import NodeWiring, PciePort

if TYPE_CHECKING:
    from simcore.hardware.node_xml import NodeXml

Lists = Mapping[str, Sequence[Any]]

#: Keys that only clusters with a certain kind of fabric or node have.
_DRAGONFLY: Final = ("leaves_per_group", "local_cables", "global_cables")
_TREE: Final = ("leaves_per_pod", "core_oversubscription")
_PCIE: Final = tuple(key for key in (*OPTIONAL_NUMBERS, *LISTS) if key.startswith(("pcie_", "cpu_")))
#: For a tree read from XML, which says nothing about time.
_PCIE_LATENCY_S: Final = 1.0e-6
_CPU_LATENCY_S: Final = 0.5e-6
_XML_LATENCY_SOURCES: Final = {
    "pcie_latency_s": "assumption: NCCL's own of one PCIe hop under LL (src/graph/tuning.cc, hwLat): 1 us",
    "cpu_latency_s": "assumption: half a PCIe hop more where CPUs are crossed: 0.5 us",
}


def apply_node_xml(profile: Profile, overridden: set[str]) -> None:
    """Replace what a profile says of its node by what the file of its ``node_xml`` says.

    Errors: InputError for a key that both would give, and as :func:`read_node_xml`.
    """
    name = profile.texts.get("node_xml")
    if name is None:
        return
    from simcore.hardware.node_xml import read_node_xml  # few clusters have such a file

    clash = sorted(overridden.intersection(FROM_XML))
    if clash:
        raise InputError(f"override cluster.{clash[0]}: it comes from node_xml = {name!r}; give one of them")
    # A path written in a cluster file is relative to that file; one given as an override is not.
    folder = None if "node_xml" in overridden else profile.folder
    path = Path(name) if folder is None else folder / name
    node = read_node_xml(path)
    profile.texts["intra_node"] = node.intra_node
    profile.numbers["gpus_per_node"] = node.num_gpus
    if node.num_nics:
        profile.numbers["nics_per_node"] = node.num_nics
        assert node.nic_bytes_per_s is not None
        profile.numbers["nic_bytes_per_s"] = node.nic_bytes_per_s
    for key in ("nics_per_node", "nic_bytes_per_s"):
        if key not in profile.numbers:
            raise InputError(f"{path}: no <net> of a NIC, and {profile.where} has no {key}")
    for key in FROM_XML:
        profile.lists.pop(key, None)
        profile.sources[key] = f"node_xml {path}"
    if node.left_out:
        profile.sources["nics_per_node"] = (
            f"assumption: GPUs send through the fastest NICs near them; left out of {path}:"
            f" {', '.join(node.left_out)}"
        )
    if not node.pcie:
        for key in _PCIE:
            profile.numbers.pop(key, None)
    profile.node = node


def wiring_of(profile: Profile) -> NodeWiring:
    """The wiring of a cluster's nodes.  InputError for keys that do not go together, or missing ones."""
    numbers, lists, where = profile.numbers, profile.lists, profile.where
    if profile.node is not None:
        return _wiring_of_xml(profile, profile.node)
    if profile.texts["intra_node"] == "nvswitch":
        for key in (*_PCIE, "nvlinks"):
            if key in numbers or key in lists:
                raise InputError(f"{where}: {key} does nothing in a node with NVSwitches; remove it")
    nic_of_gpu = tuple(
        tuple(item) if isinstance(item, list) else (item,) for item in lists.get("nic_of_gpu", ())
    )
    pcie: tuple[PciePort, ...] = ()
    if "pcie_bytes_per_s" in numbers:
        pcie = _pcie_ports(profile, nic_of_gpu)
    else:
        for key in _PCIE:
            if key in numbers or key in lists:
                raise InputError(f"{where}: {key} needs pcie_bytes_per_s")
    if pcie and "pcie_latency_s" not in numbers:
        raise InputError(f"{where}: pcie_bytes_per_s needs pcie_latency_s")
    return NodeWiring(
        nvlinks=tuple(tuple(item) for item in lists.get("nvlinks", ())),
        nic_of_gpu=nic_of_gpu,
        pcie=pcie,
        pcie_latency_s=numbers.get("pcie_latency_s", 0.0),
        cpu_bytes_per_s=numbers.get("cpu_bytes_per_s", 0.0),
        cpu_latency_s=numbers.get("cpu_latency_s", 0.0),
    )


def switches_of(profile: Profile) -> dict[str, Any]:
    """Fields of the fabric that a profile gives.  InputError for those that its kind of fabric has not."""
    fabric = profile.texts["fabric"]
    for key in _TREE if fabric == "dragonfly" else _DRAGONFLY:
        if key in profile.numbers:
            raise InputError(f"{profile.where}: {key} does nothing in a fabric of kind {fabric!r}; remove it")
    if "core_oversubscription" in profile.numbers and "leaves_per_pod" not in profile.numbers:
        raise InputError(f"{profile.where}: core_oversubscription needs leaves_per_pod")
    keys = (*_DRAGONFLY, *_TREE, "uplink_bytes_per_s")
    return {key: profile.numbers[key] for key in keys if key in profile.numbers}


def placement_of(profile: Profile, *, overridden: bool) -> dict[str, Any]:
    """Fields of the placement that a profile gives.  InputError as :func:`placed`."""
    text = profile.texts.get("placement")
    if text is None:
        return {}
    nodes, per_node = int(profile.numbers["num_nodes"]), int(profile.numbers["gpus_per_node"])
    folder = None if overridden else profile.folder
    where = f"{'override cluster.' if overridden else f'{profile.where}: '}placement"
    kind, gpus = placed(text, nodes, per_node, where, folder)
    return {"placement": kind, "placed_gpus": gpus}


def _wiring_of_xml(profile: Profile, node: NodeXml) -> NodeWiring:
    for key, source in _XML_LATENCY_SOURCES.items():
        if node.pcie and key not in profile.numbers:
            profile.sources[key] = source
    return NodeWiring(
        nvlinks=node.nvlinks,
        switch_links=node.switch_links,
        nic_of_gpu=node.nic_of_gpu,
        pcie=node.pcie,
        pcie_latency_s=profile.numbers.get("pcie_latency_s", _PCIE_LATENCY_S) if node.pcie else 0.0,
        cpu_bytes_per_s=profile.numbers.get("cpu_bytes_per_s", node.cpu_bytes_per_s) if node.pcie else 0.0,
        cpu_latency_s=profile.numbers.get("cpu_latency_s", _CPU_LATENCY_S) if node.pcie else 0.0,
    )


def _pcie_ports(profile: Profile, nic_of_gpu: tuple[tuple[int, ...], ...]) -> tuple[PciePort, ...]:
    """The PCIe tree that lists describe: CPUs, switches, GPUs and NICs."""
    numbers, lists, where = profile.numbers, profile.lists, profile.where
    num_gpus, num_nics = int(numbers["gpus_per_node"]), int(numbers["nics_per_node"])
    efficiency = numbers.get("pcie_efficiency", 1.0)
    rate = numbers["pcie_bytes_per_s"] * efficiency
    switch_rate = numbers.get("pcie_switch_bytes_per_s", numbers["pcie_bytes_per_s"]) * efficiency
    if "pcie_switch_of_gpu" not in lists:
        for key in ("pcie_switch_of_nic", "cpu_of_pcie_switch", "pcie_switch_bytes_per_s"):
            if key in lists or key in numbers:
                raise InputError(f"{where}: {key} needs pcie_switch_of_gpu")
    elif "cpu_of_gpu" in lists:
        raise InputError(
            f"{where}: GPUs are below switches (pcie_switch_of_gpu) or CPUs (cpu_of_gpu), not both"
        )
    first_gpu = _first_gpu_of_nics(num_gpus, num_nics, nic_of_gpu)

    def listed(key: str, count: int, default: Sequence[int]) -> Sequence[int]:
        found = lists.get(key, default)
        if len(found) != count:
            raise InputError(f"{where}: {key} lists {len(found)}, but there are {count}")
        return found

    if "pcie_switch_of_gpu" in lists:
        above_gpu = listed("pcie_switch_of_gpu", num_gpus, ())
        above_nic = listed("pcie_switch_of_nic", num_nics, [above_gpu[gpu] for gpu in first_gpu])
        switches = max(*above_gpu, *above_nic) + 1
        cpu_of = listed("cpu_of_pcie_switch", switches, [0] * switches)
    else:
        above_gpu = listed("cpu_of_gpu", num_gpus, [0] * num_gpus)
        above_nic = [above_gpu[gpu] for gpu in first_gpu]
        switches, cpu_of = 0, above_gpu
    cpus = max(cpu_of) + 1
    above = cpus if switches else 0
    return (
        *(PciePort(f"cpu{n}", -1) for n in range(cpus)),
        *(PciePort(f"switch{n}", cpu_of[n], switch_rate) for n in range(switches)),
        *(PciePort(f"gpu{n}", above + above_gpu[n], rate) for n in range(num_gpus)),
        *(PciePort(f"nic{n}", above + above_nic[n], rate) for n in range(num_nics)),
    )


def _first_gpu_of_nics(num_gpus: int, num_nics: int, nic_of_gpu: tuple[tuple[int, ...], ...]) -> list[int]:
    ports = nic_ports(num_gpus, num_nics, nic_of_gpu)
    port_of = {nic: port for port, nics in enumerate(ports.nics) for nic in nics}
    return [ports.of_gpu.index(port_of[nic]) for nic in range(num_nics)]
