"""Links and routes inside a node, by local GPU index; every node of a cluster is wired alike.

Note [Ways inside a node]
    With NVSwitches every GPU has one port per direction and the switch never limits.  Without, data takes
    the NVLinks that join two GPUs; where there are none, two hops over the GPU between them that has the
    widest links to both (what NCCL calls NVB), and only where there is no such GPU PCIe: up to the lowest
    switch above both, or over the CPUs.  All NVLinks of a pair are one link here, as data is striped over
    them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError
from simcore.hardware.specs import ClusterSpec
from simcore.hardware.wiring import MAX_WIRED_GPUS, NicPorts, NodeWiring, nic_ports

Floats = npt.NDArray[np.float64]
Way = tuple[int, ...]
_NOTHING: Final[Way] = ()


class NodeLinks(Protocol):
    """Links of one node, numbered from 0, and the ways over them.

    ``stride`` links form one block in the numbering of all nodes; see :mod:`simcore.hardware.topology`.
    """

    num_links: int
    stride: int
    bytes_per_s: Floats
    latency_s: Floats

    def name(self, link: int) -> str:
        """Name of a link within its node."""
        ...

    def route(self, src: int, dst: int) -> Way:
        """Links between two local GPUs, in order."""
        ...

    def to_nic(self, gpu: int) -> Way:
        """Links from a GPU to its NIC."""
        ...

    def from_nic(self, gpu: int) -> Way:
        """Links from its NIC to a GPU."""
        ...

    def is_joined(self, src: int, dst: int) -> bool:
        """Whether NVLink leads from one GPU to another without passing a third one."""
        ...

    def __hash__(self) -> int:
        """Nodes are equal only to themselves."""
        ...


class SwitchedNode:
    """NVSwitch: a port out of each GPU, then a port into each; NICs are beside the GPUs."""

    def __init__(self, num_gpus: int, port_bytes_per_s: float, latency_s: float) -> None:
        self.num_gpus = num_gpus
        self.num_links = 2 * num_gpus
        self.stride = num_gpus
        self.bytes_per_s = np.full(self.num_links, port_bytes_per_s)
        # Half of an end-to-end latency belongs to each end's port.
        self.latency_s = np.full(self.num_links, latency_s / 2)

    def name(self, link: int) -> str:
        """``nvlink.<gpu>.out|in``."""
        return f"nvlink.{link % self.num_gpus}.{'out' if link < self.num_gpus else 'in'}"

    def route(self, src: int, dst: int) -> Way:
        """Out of the one and into the other."""
        return (src, self.num_gpus + dst) if src != dst else _NOTHING

    def to_nic(self, gpu: int) -> Way:  # noqa: ARG002 - the same for all
        """No link limits it."""
        return _NOTHING

    def from_nic(self, gpu: int) -> Way:  # noqa: ARG002
        """No link limits it."""
        return _NOTHING

    def is_joined(self, src: int, dst: int) -> bool:  # noqa: ARG002
        """Any pair."""
        return True


class WiredNode:
    """NVLinks between pairs and a PCIe tree; see Note [Ways inside a node].

    Errors: InputError for GPUs that nothing connects, links of GPUs that do not exist, more links than a GPU
    has, or more GPUs than routes are kept for.
    """

    def __init__(
        self,
        wiring: NodeWiring,
        ports: NicPorts,
        link_bytes_per_s: float,
        links_of_gpu: int,
        latency_s: float,
    ) -> None:
        self._num_gpus = len(ports.of_gpu)
        if self._num_gpus > MAX_WIRED_GPUS:
            raise InputError(
                f"gpus_per_node = {self._num_gpus}: a node without NVSwitch has at most {MAX_WIRED_GPUS} GPUs"
            )
        self._names: list[str] = []
        self._rates: list[float] = []
        self._latencies: list[float] = []
        self._nvlink: dict[tuple[int, int], int] = {}
        self._add_nvlinks(wiring, link_bytes_per_s, links_of_gpu, latency_s)
        self._pcie = _PcieTree(wiring, self._add)
        gpus = range(self._num_gpus)
        self._routes = [[self._way(src, dst) for dst in gpus] for src in gpus]
        self._to_nic = [self._nic_way(gpu, ports, out=True) for gpu in gpus]
        self._from_nic = [self._nic_way(gpu, ports, out=False) for gpu in gpus]
        self.num_links = self.stride = len(self._names)
        self.bytes_per_s = np.array(self._rates, dtype=np.float64)
        self.latency_s = np.array(self._latencies, dtype=np.float64)

    def name(self, link: int) -> str:
        """``nvlink.<gpu>.<gpu>``, ``pcie.<device>.up|down`` or ``cpu.<n>.<n>``."""
        return self._names[link]

    def route(self, src: int, dst: int) -> Way:
        """Links between two local GPUs, in order."""
        return self._routes[src][dst]

    def to_nic(self, gpu: int) -> Way:
        """Links from a GPU to its NIC."""
        return self._to_nic[gpu]

    def from_nic(self, gpu: int) -> Way:
        """Links from its NIC to a GPU."""
        return self._from_nic[gpu]

    def is_joined(self, src: int, dst: int) -> bool:
        """Whether NVLinks join the pair."""
        return (src, dst) in self._nvlink

    def _add(self, name: str, bytes_per_s: float, latency_s: float) -> int:
        self._names.append(name)
        self._rates.append(bytes_per_s)
        self._latencies.append(latency_s)
        return len(self._names) - 1

    def _add_nvlinks(
        self, wiring: NodeWiring, link_bytes_per_s: float, links_of_gpu: int, latency_s: float
    ) -> None:
        used = [0] * self._num_gpus
        for first, second, count in wiring.nvlinks:
            pair = f"nvlinks [{first}, {second}, {count}]"
            for gpu in (first, second):
                if not 0 <= gpu < self._num_gpus:
                    raise InputError(f"{pair}: a node has GPUs 0 to {self._num_gpus - 1}, not {gpu}")
                used[gpu] += count
                if used[gpu] > links_of_gpu:
                    raise InputError(f"{pair}: GPU {gpu} has {links_of_gpu} NVLinks, not {used[gpu]}")
            if first == second or count < 1 or (first, second) in self._nvlink:
                raise InputError(f"{pair}: give each pair of different GPUs once, with 1 link or more")
            for src, dst in ((first, second), (second, first)):
                self._nvlink[src, dst] = self._add(f"nvlink.{src}.{dst}", count * link_bytes_per_s, latency_s)

    def _way(self, src: int, dst: int) -> Way:
        if src == dst:
            return _NOTHING
        joined = self._nvlink.get((src, dst))
        if joined is not None:
            return (joined,)
        best: tuple[float, Way] = (0.0, _NOTHING)
        for via in range(self._num_gpus):
            first, second = self._nvlink.get((src, via)), self._nvlink.get((via, dst))
            if first is not None and second is not None:
                width = min(self._rates[first], self._rates[second])
                if width > best[0]:
                    best = width, (first, second)
        if best[1]:
            return best[1]
        way = self._pcie.way(f"gpu{src}", f"gpu{dst}")
        if way is None:
            raise InputError(
                f"GPUs {src} and {dst} of a node are not connected: no NVLink joins them, no GPU has"
                " NVLinks to both, and no PCIe tree holds both"
            )
        return way

    def _nic_way(self, gpu: int, ports: NicPorts, *, out: bool) -> Way:
        """PCIe links between a GPU and its NICs; of several NICs no single one's link limits.  NICs that are
        not in the tree are beside the GPUs.
        """
        nics = ports.nics[ports.of_gpu[gpu]]
        ends = (f"gpu{gpu}", f"nic{nics[0]}")
        way = self._pcie.way(*(ends if out else ends[::-1]))
        if way is None:
            return _NOTHING
        if len(nics) > 1:
            way = way[:-1] if out else way[1:]
        return way


class _PcieTree:
    """Ways through the PCIe tree and between CPUs."""

    def __init__(self, wiring: NodeWiring, add: _Add) -> None:
        ports = wiring.pcie
        self._index = {port.name: number for number, port in enumerate(ports)}
        self._parent = [port.parent for port in ports]
        half = wiring.pcie_latency_s / 2
        self._up: dict[int, int] = {}
        self._down: dict[int, int] = {}
        for number, port in enumerate(ports):
            if port.parent >= 0:
                self._up[number] = add(f"pcie.{port.name}.up", port.bytes_per_s, half)
                self._down[number] = add(f"pcie.{port.name}.down", port.bytes_per_s, half)
        cpus = [number for number, port in enumerate(ports) if port.parent < 0]
        self._between: dict[tuple[int, int], int] = {}
        if len(cpus) > 1 and not wiring.cpu_bytes_per_s > 0:
            names = " and ".join(ports[cpu].name for cpu in cpus[:2])
            raise InputError(f"{names} are not connected: give cpu_bytes_per_s, the link between two CPUs")
        for src in cpus:
            for dst in cpus:
                if src != dst:
                    name = f"cpu.{ports[src].name.removeprefix('cpu')}.{ports[dst].name.removeprefix('cpu')}"
                    self._between[src, dst] = add(name, wiring.cpu_bytes_per_s, wiring.cpu_latency_s)

    def way(self, src: str, dst: str) -> Way | None:
        """Links from one device to another; None where one is not in the tree."""
        if src not in self._index or dst not in self._index:
            return None
        above, below = self._ancestors(self._index[src]), self._ancestors(self._index[dst])
        common = next((port for port in above if port in below), None)
        if common is not None:
            up, down = above[: above.index(common)], below[: below.index(common)]
            between: Way = _NOTHING
        else:
            up, down = above[:-1], below[:-1]
            between = (self._between[above[-1], below[-1]],)
        return (*(self._up[p] for p in up), *between, *(self._down[p] for p in reversed(down)))

    def _ancestors(self, port: int) -> list[int]:
        chain = [port]
        while self._parent[chain[-1]] >= 0:
            chain.append(self._parent[chain[-1]])
        return chain


class _Add(Protocol):
    def __call__(self, name: str, bytes_per_s: float, latency_s: float) -> int: ...


def ports_of(cluster: ClusterSpec) -> NicPorts:
    """NIC ports of each node.  InputError as :func:`simcore.hardware.wiring.nic_ports`."""
    return nic_ports(cluster.gpus_per_node, cluster.nics_per_node, cluster.wiring.nic_of_gpu)


def num_nic_links(cluster: ClusterSpec) -> int:
    """NIC links of each node per direction; several NICs of one GPU are one link."""
    return len(ports_of(cluster).nics)


def node_of(cluster: ClusterSpec) -> NodeLinks:
    """The node that every node of ``cluster`` is like.  InputError for wiring that cannot be."""
    gpu = cluster.gpu
    link_bytes_per_s = gpu.nvlink_bytes_per_s * gpu.nvlink_efficiency / gpu.nvlink_links
    if cluster.intra_node == "nvswitch":
        links = cluster.wiring.switch_links
        if links > gpu.nvlink_links:
            raise InputError(f"{links} NVLinks into the switches, but {gpu.name} has {gpu.nvlink_links}")
        return SwitchedNode(cluster.gpus_per_node, cluster.nvswitch_bytes_per_s, cluster.nvlink_latency_s)
    if cluster.intra_node == "nvlink" and not cluster.wiring.nvlinks:
        raise InputError('intra_node = "nvlink" needs nvlinks, the list of [GPU, GPU, links]')
    if cluster.intra_node == "pcie" and not cluster.wiring.pcie:
        raise InputError('intra_node = "pcie" needs pcie_bytes_per_s')
    return _wired(
        cluster.wiring, ports_of(cluster), link_bytes_per_s, gpu.nvlink_links, cluster.nvlink_latency_s
    )


_wired = lru_cache(maxsize=64)(WiredNode)
