"""A node as NCCL dumps it (NCCL_TOPO_DUMP_FILE): ``<system><cpu><pci>...<gpu><nvlink>`` and ``<nic><net>``.

Note [What NCCL's file says]
    A ``pci`` is a switch, or the device of the ``gpu`` or ``nic`` in it; link_speed and link_width are those
    of its link upwards.  An ``nvlink`` has the bus id of what it leads to, how many links there are, and the
    class of the device there: 0x068000 is an NVSwitch, 0x03.... a GPU.  A ``net`` is a port of a NIC, its
    speed in Mb/s (src/graph/xml.cc and topo.cc).  GPUs are numbered by ``dev``.
    A PCIe lane of 8 GT/s carries 0.75 GB/s of data, others in proportion (topo.cc, kvDictPciGen and
    ncclTopoAddPci); links between CPUs carry what topo.h says of their kind.
    A GPU sends through the fastest NICs that are nearest in the tree; where several GPUs are equally near to
    several NICs they are dealt out evenly (ncclTopoGetLocalNet).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from itertools import pairwise
from pathlib import Path
from typing import Final

from simcore.errors import InputError
from simcore.hardware.wiring import PciePort, nic_ports
from simcore.hardware.xml_tree import Element, read_xml
from simcore.records import dataclass

#: Data of one PCIe lane per GT/s of its link.
_LANE_BYTES_PER_S: Final = 0.75e9 / 8
_PCIE_GT_PER_S: Final = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
_LANES: Final = (1, 2, 4, 8, 16, 32)
#: Switches that show as two levels but join all their ports at full speed (topo.cc,
#: ncclTopoFlattenBcmSwitches).
_TWO_LEVEL: Final = ("0x1000:0xc010", "0x1000:0xc030")
_NVSWITCH_CLASS: Final = "0x068000"
_GPU_CLASS: Final = "0x03"
_CPU_CLASS: Final = "0x068001"
_BYTES_PER_S_OF_MBIT: Final = 1e6 / 8

#: GB/s between two CPUs (src/graph/topo.h): Intel by the first model of each kind, AMD by family (as the
#: number itself and as CPUID packs it), others by architecture.
_INTEL_GB_PER_S: Final = ((207, 40.0), (143, 22.0), (85, 10.0), (0, 6.0))
_AMD_GB_PER_S: Final = {23: 16.0, 143: 16.0, 25: 24.0, 175: 24.0, 26: 32.0, 191: 32.0}
_AMD_OLDEST_GB_PER_S: Final = 16.0
_ARCH_GB_PER_S: Final = {"ppc64": 32.0, "arm64": 6.0, "aarch64": 6.0}
_OTHER_GB_PER_S: Final = 6.0


@dataclass(frozen=True)
class NodeXml:
    """What a node's file says, in the words of :class:`simcore.hardware.wiring.NodeWiring`.

    ``nic_bytes_per_s`` is the line rate of one NIC port (None: no NICs); ``left_out`` names ports that no
    GPU uses.
    """

    intra_node: str
    num_gpus: int
    nic_of_gpu: tuple[tuple[int, ...], ...]
    num_nics: int
    nic_bytes_per_s: float | None
    nvlinks: tuple[tuple[int, int, int], ...]
    switch_links: int
    pcie: tuple[PciePort, ...]
    cpu_bytes_per_s: float
    left_out: tuple[str, ...]


@dataclass
class _Gpu:
    dev: int
    bus_id: str
    element: Element
    path: tuple[int, ...]  # port numbers from the CPU down
    links: dict[str, tuple[int, str, Element]] = field(default_factory=dict)  # target -> links, class


@dataclass
class _Net:
    name: str
    bytes_per_s: float
    path: tuple[int, ...]


def read_node_xml(path: Path) -> NodeXml:
    """Read a dump.

    Errors: InputError with file and line for what is no XML, a missing or impossible attribute, a speed of
    zero, two GPUs of one number, NVLinks to nowhere, links that their two ends count differently, or GPUs of
    which only some are on NVSwitches.
    """
    system = read_xml(path, "system")
    tree = _Tree()
    for cpu in system.of("cpu"):
        tree.add_cpu(cpu)
    if not tree.gpus:
        raise InputError(f"{path}: no <gpu> in any <cpu>")
    gpus = sorted(tree.gpus, key=lambda gpu: gpu.dev)
    for before, gpu in pairwise(gpus):
        if before.dev == gpu.dev:
            raise InputError(f"{gpu.element.where}: <gpu dev={gpu.dev}> is there twice")
    nvlinks, switch_links = _nvlinks(gpus)
    nets = [net for net in tree.nets if net.bytes_per_s == max(other.bytes_per_s for other in tree.nets)]
    nearest = [_nearest(gpu.path, nets) for gpu in gpus]
    dealt = _dealt(nearest)
    used = sorted({nic for nics in dealt for nic in nics})
    shares = tuple(tuple(used.index(nic) for nic in nics) for nics in dealt)
    intra_node = "nvswitch" if switch_links else "nvlink" if nvlinks else "pcie"
    return NodeXml(
        intra_node=intra_node,
        num_gpus=len(gpus),
        nic_of_gpu=shares if used else (),
        num_nics=len(used),
        nic_bytes_per_s=nets[0].bytes_per_s if nets else None,
        nvlinks=nvlinks,
        switch_links=switch_links,
        pcie=() if switch_links else tree.ports(gpus, [nets[nic] for nic in used]),
        cpu_bytes_per_s=tree.cpu_bytes_per_s,
        left_out=tuple(net.name for net in tree.nets if net not in [nets[nic] for nic in used]),
    )


class _Tree:
    """PCIe devices in the order of the file, without names; a port's number is its place in ``_ports``."""

    def __init__(self) -> None:
        self.gpus: list[_Gpu] = []
        self.nets: list[_Net] = []
        self.cpu_bytes_per_s = 0.0
        self._ports: list[PciePort] = []

    def add_cpu(self, cpu: Element) -> None:
        number = self._add(-1, 0.0)
        rate = _between_cpus(cpu)
        self.cpu_bytes_per_s = min(self.cpu_bytes_per_s or rate, rate)
        self._add_nics(cpu, (number,))
        for pci in cpu.of("pci"):
            self._add_pci(pci, (number,))

    def ports(self, gpus: list[_Gpu], nets: list[_Net]) -> tuple[PciePort, ...]:
        """The tree with its devices named by GPU and NIC number; without devices that nobody uses."""
        names = {gpu.path[-1]: f"gpu{number}" for number, gpu in enumerate(gpus)}
        ports_of_card = Counter(net.path[-1] for net in nets)
        alone = {n for n, net in enumerate(nets) if len(net.path) > 1 and ports_of_card[net.path[-1]] == 1}
        names |= {nets[n].path[-1]: f"nic{n}" for n in alone}
        paths = [*(gpu.path for gpu in gpus), *(net.path for net in nets)]
        used = {number for path in paths for number in path}
        place: dict[int, int] = {}
        found: list[PciePort] = []
        cpus = switches = 0
        for number in sorted(used):
            port = self._ports[number]
            if port.parent < 0:
                names[number] = f"cpu{cpus}"
                cpus += 1
            elif number not in names:
                names[number] = f"switch{switches}"
                switches += 1
            place[number] = len(found)
            found.append(PciePort(names[number], place.get(port.parent, -1), port.bytes_per_s))
        # Ports of one card share its PCIe link: each gets a place below the card that does not limit, as do
        # NICs right below a CPU, of which the file gives no PCIe link.
        for nic, net in enumerate(nets):
            if nic not in alone:
                found.append(PciePort(f"nic{nic}", place[net.path[-1]], net.bytes_per_s))
        return tuple(found)

    def _add(self, parent: int, bytes_per_s: float) -> int:
        self._ports.append(PciePort("", parent, bytes_per_s))
        return len(self._ports) - 1

    def _add_pci(self, pci: Element, above: tuple[int, ...], within: str = "") -> None:
        """Add a device and what is below; ``within`` is the kind of switch that it is in."""
        kind = f"{pci.attributes.get('vendor')}:{pci.attributes.get('device')}"
        path = above
        if kind not in _TWO_LEVEL or kind != within:
            number = self._add(above[-1], _pcie_bytes_per_s(pci))
            path = (*above, number)
        for gpu in pci.of("gpu"):
            self._add_gpu(gpu, pci.text("busid"), path)
        self._add_nics(pci, path)
        for below in pci.of("pci"):
            self._add_pci(below, path, kind)

    def _add_nics(self, above: Element, path: tuple[int, ...]) -> None:
        for nic in above.of("nic"):
            for net in nic.of("net"):
                rate = net.count("speed", at_least=1) * _BYTES_PER_S_OF_MBIT
                self.nets.append(_Net(net.attributes.get("name", net.where), rate, path))

    def _add_gpu(self, gpu: Element, bus_id: str, path: tuple[int, ...]) -> None:
        found = _Gpu(gpu.count("dev"), bus_id.lower(), gpu, path)
        for link in gpu.of("nvlink"):
            target, kind = link.text("target").lower(), link.text("tclass").lower()
            count = link.count("count", at_least=1) + found.links.get(target, (0, "", link))[0]
            found.links[target] = count, kind, link
        self.gpus.append(found)


def _pcie_bytes_per_s(pci: Element) -> float:
    """Data rate of the link above a device; as NCCL, 8 GT/s and 16 lanes where the file says nothing."""
    text = pci.attributes.get("link_speed", "") or "8 GT/s"
    word, _, unit = text.partition(" ")
    lanes = pci.count("link_width") if pci.attributes.get("link_width") else 16
    lanes = lanes or 16  # a virtual machine shows no width
    try:
        speed = float(word)
    except ValueError:
        speed = 0.0
    if speed not in _PCIE_GT_PER_S or not unit.startswith("GT/s") or lanes not in _LANES:
        known = ", ".join(f"{speed:g}" for speed in _PCIE_GT_PER_S)
        raise InputError(
            f"{pci.where}: no PCIe link has speed {text!r} and {lanes} lanes; speeds are {known} GT/s"
        )
    return speed * lanes * _LANE_BYTES_PER_S


def _between_cpus(cpu: Element) -> float:
    arch, vendor = cpu.attributes.get("arch", "x86_64"), cpu.attributes.get("vendor", "")
    if arch != "x86_64":
        return _ARCH_GB_PER_S.get(arch, _OTHER_GB_PER_S) * 1e9
    if vendor == "AuthenticAMD":
        family = cpu.count("familyid") if "familyid" in cpu.attributes else 0
        return _AMD_GB_PER_S.get(family, _AMD_OLDEST_GB_PER_S) * 1e9
    if vendor == "GenuineIntel":
        model = cpu.count("modelid") if "modelid" in cpu.attributes else 0
        return next(rate for first, rate in _INTEL_GB_PER_S if model >= first) * 1e9
    return _OTHER_GB_PER_S * 1e9


def _nvlinks(gpus: list[_Gpu]) -> tuple[tuple[tuple[int, int, int], ...], int]:
    """(links between GPUs, links of each GPU into switches)."""
    number = {gpu.bus_id: index for index, gpu in enumerate(gpus)}
    pairs: dict[tuple[int, int], int] = {}
    switched = [0] * len(gpus)
    for index, gpu in enumerate(gpus):
        for target, (count, kind, element) in gpu.links.items():
            if kind == _NVSWITCH_CLASS:
                switched[index] += count
            elif kind.startswith(_GPU_CLASS) and number.get(target) != index:
                if target in number:  # else a GPU that the dumped job did not use
                    pairs[index, number[target]] = count
            elif kind != _CPU_CLASS:
                raise InputError(
                    f"{element.where}: <nvlink target={target!r} tclass={kind!r}> leads to no other GPU"
                    f" ({_GPU_CLASS}....) and no NVSwitch ({_NVSWITCH_CLASS})"
                )
    if any(switched) and (pairs or len(set(switched)) > 1):
        odd = next((i for i, count in enumerate(switched) if count != switched[0]), 0)
        raise InputError(
            f"{gpus[odd].element.where}: GPU {gpus[odd].dev} has {switched[odd]} NVLinks into switches and"
            f" GPU {gpus[0].dev} has {switched[0]}; all must have the same and none to other GPUs"
        )
    for (src, dst), count in pairs.items():
        if pairs.get((dst, src)) != count:
            raise InputError(
                f"{gpus[src].element.where}: GPU {gpus[src].dev} has {count} NVLinks to GPU {gpus[dst].dev},"
                f" which has {pairs.get((dst, src), 0)} back"
            )
    return tuple((s, d, count) for (s, d), count in sorted(pairs.items()) if s < d), switched[0]


def _nearest(path: tuple[int, ...], nets: list[_Net]) -> tuple[int, ...]:
    """NICs that share the longest way down from the CPU with a GPU; all, where none is below its CPU."""
    if not nets:
        return ()
    shared = [sum(a == b for a, b in zip(path, net.path, strict=False)) for net in nets]
    return tuple(nic for nic, depth in enumerate(shared) if depth == max(shared))


def _dealt(nearest: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """NICs of each GPU, those that several GPUs are equally near to dealt out evenly."""
    given: list[tuple[int, ...]] = [()] * len(nearest)
    for nics in set(nearest):
        gpus = [gpu for gpu, near in enumerate(nearest) if near == nics]
        if nics:
            dealt = nic_ports(len(gpus), len(nics))
            for place, gpu in enumerate(gpus):
                given[gpu] = tuple(nics[nic] for nic in dealt.nics[dealt.of_gpu[place]])
    sets = set(given)
    if sum(map(len, sets)) > len({nic for nics in sets for nic in nics}):
        # GPUs of different places would share only some of their NICs: each takes one, that with fewest GPUs.
        users: Counter[int] = Counter()
        for gpu, nics in enumerate(nearest):
            nic = min(nics, key=lambda nic: (users[nic], nic))
            users[nic] += 1
            given[gpu] = (nic,)
    return tuple(given)
