"""How a node is wired inside, as data: NVLinks between GPUs, the PCIe tree, the NICs of each GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Values of ``ClusterSpec.intra_node``.
NODE_KINDS: Final = ("nvswitch", "nvlink", "pcie")
#: Values of ``ClusterSpec.fabric``.
FABRICS: Final = ("rail", "leaf_spine", "fat_tree", "dragonfly")
#: Routes of a node without a switch are a table of pairs.
MAX_WIRED_GPUS: Final = 64


@dataclass(frozen=True)
class PciePort:
    """A device of a node's PCIe tree with its link upwards.

    ``name``: ``gpu<n>``, ``nic<n>``, ``switch<n>`` or ``cpu<n>``; ``parent`` is the index of the port above,
    -1 for a CPU.  ``bytes_per_s`` is per direction, usable by data; 0 for a CPU.
    """

    name: str
    parent: int
    bytes_per_s: float = 0.0


@dataclass(frozen=True)
class NodeWiring:
    """Wiring that all nodes of a cluster share; empty fields leave the usual.

    ``nvlinks``: (GPU, GPU, number of NVLinks between them) of a node without a switch.  ``switch_links``:
    links of each GPU into the NVSwitches (0: all that it has).  ``nic_of_gpu``: NICs of each GPU (empty:
    spread evenly, neighbours share).  ``pcie``: the tree, parents first (empty: GPUs reach their NICs
    without a bottleneck).  Latencies are one way in seconds: ``pcie_latency_s`` from GPU to GPU below one
    switch, ``cpu_latency_s`` and ``cpu_bytes_per_s`` of the link between two CPUs.
    """

    nvlinks: tuple[tuple[int, int, int], ...] = ()
    switch_links: int = 0
    nic_of_gpu: tuple[tuple[int, ...], ...] = ()
    pcie: tuple[PciePort, ...] = ()
    pcie_latency_s: float = 0.0
    cpu_bytes_per_s: float = 0.0
    cpu_latency_s: float = 0.0
