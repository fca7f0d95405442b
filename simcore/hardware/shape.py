"""The optional keys of a cluster, turned into wiring, switches and placement of a ``ClusterSpec``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simcore.errors import InputError, nearest
from simcore.hardware.keys import CLUSTER, FROM_XML, LISTS
from simcore.hardware.profiles import Profile
from simcore.hardware.wiring import NodeWiring, PciePort, nic_ports
from simcore.outside import inside, read_text, there

if TYPE_CHECKING:
    from simcore.hardware.node_xml import NodeXml
    from simcore.hardware.specs import ClusterSpec

#: Keys that only clusters with a certain kind of fabric or node have.
_DRAGONFLY: Final = ("leaves_per_group", "local_cables", "global_cables")
_TREE: Final = ("leaves_per_pod", "core_oversubscription")
PCIE_KEYS: Final = tuple(key for key in CLUSTER if key.startswith(("pcie_", "cpu_")))
#: For a tree read from XML, which says nothing about time.
_PCIE_LATENCY_S: Final = 1.0e-6
_CPU_LATENCY_S: Final = 0.5e-6
_XML_LATENCY_SOURCES: Final = {
    "pcie_latency_s": "assumption: NCCL's own of one PCIe hop under LL (src/graph/tuning.cc, hwLat): 1 us",
    "cpu_latency_s": "assumption: half a PCIe hop more where CPUs are crossed: 0.5 us",
}

#: Placements with a name, and those that count; all others are lists of GPUs.
_NAMED: Final = ("linear", "round_robin")
_COUNTED: Final = ("nodes:<n>,<n>", "domains:<n>")
_OF_DOMAINS: Final = re.compile(r"domains:([0-9]{1,4})")
_GPU_LIST: Final = re.compile(r"\s*[0-9]+\s*(,\s*[0-9]+\s*)*")
_MOST_DIGITS: Final = 9


def apply_node_xml(profile: Profile, overridden: set[str]) -> None:
    """Replace what a profile says of its node by what the file of its ``node_xml`` says.

    Errors: InputError for a key that both would give, and as :func:`read_node_xml`.
    """
    name = profile.values.get("node_xml")
    if name is None:
        return
    from simcore.hardware.node_xml import read_node_xml  # few clusters have such a file

    clash = sorted(overridden.intersection(FROM_XML))
    if clash:
        raise InputError(f"override cluster.{clash[0]}: it comes from node_xml = {name!r}; give one of them")
    # A path written in a cluster file is relative to that file; one given as an override is not.
    folder = None if "node_xml" in overridden else profile.folder
    path = Path(name) if folder is None else inside(folder, name, profile.where)
    node = read_node_xml(path)
    profile.values["intra_node"] = node.intra_node
    profile.values["gpus_per_node"] = node.num_gpus
    if node.num_nics:
        profile.values["nics_per_node"] = node.num_nics
        assert node.nic_bytes_per_s is not None
        profile.values["nic_bytes_per_s"] = node.nic_bytes_per_s
    for key in ("nics_per_node", "nic_bytes_per_s"):
        if key not in profile.values:
            raise InputError(f"{path}: no <net> of a NIC, and {profile.where} has no {key}")
    for key in FROM_XML:
        profile.sources[key] = f"node_xml {path}"
    for key in LISTS:
        profile.values.pop(key, None)
    if node.left_out:
        profile.sources["nics_per_node"] = (
            f"assumption: GPUs send through the fastest NICs near them; left out of {path}:"
            f" {', '.join(node.left_out)}"
        )
    if not node.pcie:
        for key in PCIE_KEYS:
            profile.values.pop(key, None)
    profile.node = node


def wiring_of(profile: Profile) -> NodeWiring:
    """The wiring of a cluster's nodes.  InputError for keys that do not go together, or missing ones."""
    values, where = profile.values, profile.where
    if profile.node is not None:
        return _wiring_of_xml(profile, profile.node)
    if profile.values["intra_node"] == "nvswitch":
        for key in (*PCIE_KEYS, "nvlinks"):
            if key in values:
                raise InputError(f"{where}: {key} does nothing in a node with NVSwitches; remove it")
    nic_of_gpu = tuple(
        tuple(item) if isinstance(item, list) else (item,) for item in values.get("nic_of_gpu", ())
    )
    pcie: tuple[PciePort, ...] = ()
    if "pcie_bytes_per_s" in values:
        pcie = _pcie_ports(profile, nic_of_gpu)
    else:
        for key in PCIE_KEYS:
            if key in values:
                raise InputError(f"{where}: {key} needs pcie_bytes_per_s")
    if pcie and "pcie_latency_s" not in values:
        raise InputError(f"{where}: pcie_bytes_per_s needs pcie_latency_s")
    return NodeWiring(
        nvlinks=tuple(tuple(item) for item in values.get("nvlinks", ())),
        nic_of_gpu=nic_of_gpu,
        pcie=pcie,
        pcie_latency_s=values.get("pcie_latency_s", 0.0),
        cpu_bytes_per_s=values.get("cpu_bytes_per_s", 0.0),
        cpu_latency_s=values.get("cpu_latency_s", 0.0),
    )


def check_switches(profile: Profile) -> None:
    """InputError for keys of the fabric that its kind of fabric has not."""
    fabric = profile.values["fabric"]
    for key in _TREE if fabric == "dragonfly" else _DRAGONFLY:
        if key in profile.values:
            raise InputError(f"{profile.where}: {key} does nothing in a fabric of kind {fabric!r}; remove it")
    _check_domains(profile)
    if "core_oversubscription" in profile.values and "leaves_per_pod" not in profile.values:
        raise InputError(f"{profile.where}: core_oversubscription needs leaves_per_pod")


def _check_domains(profile: Profile) -> None:
    """InputError for NVLink domains that nodes of this kind cannot form, or that the nodes do not fill."""
    values, where = profile.values, profile.where
    nodes, each, per_node = values["num_nodes"], values.get("nodes_per_domain", 1), values["gpus_per_node"]
    if each == 1:
        return
    if values["intra_node"] != "nvswitch":
        raise InputError(
            f'{where}: nodes_per_domain needs intra_node = "nvswitch", whose switches join nodes'
        )
    whole = each * per_node
    if nodes > each and nodes % each:
        less = nodes // each * whole
        raise InputError(
            f"{where}: {nodes} nodes ({nodes * per_node} GPUs) are no whole number of NVLink domains of"
            f" {each} nodes ({whole} GPUs); nearest: {less} or {less + whole} GPUs. A job that uses some"
            f" GPUs of each domain says how many: --set cluster.placement=domains:{whole * 8 // 9}"
        )


def placement_of(profile: Profile, *, overridden: bool) -> dict[str, Any]:
    """Fields of the placement that a profile gives.  InputError as :func:`placed`."""
    text = profile.values.get("placement")
    if text is None:
        return {}
    values = profile.values
    nodes, per_node = values["num_nodes"], values["gpus_per_node"]
    per_domain = per_node * min(nodes, values.get("nodes_per_domain", 1))
    folder = None if overridden else profile.folder
    where = f"{'override cluster.' if overridden else f'{profile.where}: '}placement"
    kind, gpus = placed(text, nodes, per_node, where, folder, per_domain)
    return {"placement": kind, "placed_gpus": gpus}


def _wiring_of_xml(profile: Profile, node: NodeXml) -> NodeWiring:
    for key, source in _XML_LATENCY_SOURCES.items():
        if node.pcie and key not in profile.values:
            profile.sources[key] = source
    return NodeWiring(
        nvlinks=node.nvlinks,
        switch_links=node.switch_links,
        nic_of_gpu=node.nic_of_gpu,
        pcie=node.pcie,
        pcie_latency_s=profile.values.get("pcie_latency_s", _PCIE_LATENCY_S) if node.pcie else 0.0,
        cpu_bytes_per_s=profile.values.get("cpu_bytes_per_s", node.cpu_bytes_per_s) if node.pcie else 0.0,
        cpu_latency_s=profile.values.get("cpu_latency_s", _CPU_LATENCY_S) if node.pcie else 0.0,
    )


def _pcie_ports(profile: Profile, nic_of_gpu: tuple[tuple[int, ...], ...]) -> tuple[PciePort, ...]:
    """The PCIe tree that lists describe: CPUs, switches, GPUs and NICs."""
    values, where = profile.values, profile.where
    num_gpus, num_nics = values["gpus_per_node"], values["nics_per_node"]
    efficiency = values.get("pcie_efficiency", 1.0)
    rate = values["pcie_bytes_per_s"] * efficiency
    switch_rate = values.get("pcie_switch_bytes_per_s", values["pcie_bytes_per_s"]) * efficiency
    if "pcie_switch_of_gpu" not in values:
        for key in ("pcie_switch_of_nic", "cpu_of_pcie_switch", "pcie_switch_bytes_per_s"):
            if key in values:
                raise InputError(f"{where}: {key} needs pcie_switch_of_gpu")
    elif "cpu_of_gpu" in values:
        raise InputError(
            f"{where}: GPUs are below switches (pcie_switch_of_gpu) or CPUs (cpu_of_gpu), not both"
        )
    first_gpu = _first_gpu_of_nics(num_gpus, num_nics, nic_of_gpu)

    def listed(key: str, count: int, default: Sequence[int]) -> Sequence[int]:
        found: Sequence[int] = values.get(key, default)
        if len(found) != count:
            raise InputError(f"{where}: {key} lists {len(found)}, but there are {count:,}")
        most = num_gpus + num_nics  # each has something below it
        if max(found, default=0) >= most:
            raise InputError(
                f"{where}: {key} names number {max(found):,}; at most {most} are there, from 0 on"
            )
        return found

    if "pcie_switch_of_gpu" in values:
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


def placed_on(cluster: ClusterSpec, text: str) -> ClusterSpec:
    """``cluster`` with another placement of ranks.  InputError as :func:`placed`."""
    per_domain = min(cluster.gpus_per_domain, cluster.num_gpus)
    kind, gpus = placed(
        text, cluster.num_nodes, cluster.gpus_per_node, "cluster.placement", per_domain=per_domain
    )
    return replace(cluster, placement=kind, placed_gpus=gpus)


def placed(
    text: str, num_nodes: int, gpus_per_node: int, where: str, folder: Path | None = None, per_domain: int = 0
) -> tuple[str, tuple[int, ...]]:
    """(kind, GPUs by rank) of a placement, for ``ClusterSpec.placement`` and ``.placed_gpus``.

    ``linear`` fills nodes in order, ``round_robin`` deals ranks to nodes in turn, ``nodes:3,0`` fills these
    nodes in this order, ``domains:64`` the first 64 GPUs of each NVLink domain of ``per_domain`` (0: a node)
    in turn, ``4,5,0`` are the GPUs of ranks 0, 1, 2; anything else is a file of GPU numbers
    (blanks, commas and lines between them, ``#`` comments), relative to ``folder``.  Errors: InputError for
    what is none of these, a node that does not exist or a word that is no number, with its line.
    """
    if text in _NAMED:
        return text, ()
    some = _OF_DOMAINS.fullmatch(text)
    if some:
        used, whole = int(some[1]), per_domain or gpus_per_node
        if not 1 <= used <= whole:
            raise InputError(f"{where}: {text}: an NVLink domain of this cluster has {whole} GPUs")
        first = range(0, num_nodes * gpus_per_node, whole)
        return "listed", tuple(gpu + place for gpu in first for place in range(used))
    nodes = text.removeprefix("nodes:")
    if nodes != text:
        if not _GPU_LIST.fullmatch(nodes):
            raise InputError(f"{where}: nodes must be numbers with commas, such as nodes:3,0, not {text!r}")
        wanted = [_number(word, where) for word in nodes.split(",")]
        for position, node in enumerate(wanted):
            if node >= num_nodes or node in wanted[:position]:
                problem = "is listed twice" if node in wanted[:position] else "does not exist"
                raise InputError(
                    f"{where}: node {node} {problem}; the cluster has nodes 0 to {num_nodes - 1}"
                )
        return "listed", tuple(
            node * gpus_per_node + local for node in wanted for local in range(gpus_per_node)
        )
    if _GPU_LIST.fullmatch(text):
        return "listed", tuple(_number(word, where) for word in text.split(","))
    return "listed", _from_file(text, where, folder)


def _from_file(name: str, where: str, folder: Path | None) -> tuple[int, ...]:
    path = Path(name) if folder is None else inside(folder, name, where)
    if not Path(name).suffix and len(Path(name).parts) == 1 and not there(path):
        raise InputError(
            f"{where}: placement cannot be {name!r}{nearest(name, (*_NAMED, *_COUNTED))}; or a list of GPUs,"
            " or a file of them"
        )
    lines = read_text(path, "placement", "json").splitlines()
    gpus = [
        _number(word, f"{path}:{number}")
        for number, line in enumerate(lines, 1)
        for word in line.partition("#")[0].replace(",", " ").split()
    ]
    if not gpus:
        raise InputError(f"{path}: no GPU numbers in this placement")
    return tuple(gpus)


def _number(word: str, where: str) -> int:
    word = word.strip()
    if not (word.isascii() and word.isdecimal()) or len(word) > _MOST_DIGITS:
        raise InputError(f"{where}: {word!r} is no GPU or node number")
    return int(word)
