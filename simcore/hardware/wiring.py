"""How a node is wired inside, as data: NVLinks between GPUs, the PCIe tree, the NICs of each GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from simcore.errors import InputError
from simcore.records import dataclass

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


@dataclass(frozen=True)
class NicPorts:
    """NICs of a node, put together where the same GPUs send through them.

    ``of_gpu[local]`` is the port of a GPU, ``nics[port]`` the NICs behind it: GPUs share a port with one NIC,
    or a GPU has a port of several.
    """

    of_gpu: tuple[int, ...]
    nics: tuple[tuple[int, ...], ...]

    @property
    def is_exclusive(self) -> bool:
        """Whether every GPU has a port to itself."""
        return len(self.nics) == len(self.of_gpu)


@lru_cache(maxsize=256)
def nic_ports(num_gpus: int, num_nics: int, nic_of_gpu: tuple[tuple[int, ...], ...] = ()) -> NicPorts:
    """Ports of a node with ``num_gpus`` and ``num_nics``.

    Without a list, neighbours share a NIC or a GPU has neighbouring NICs, as evenly as counts allow: 3 NICs
    of 8 GPUs serve 3, 3 and 2.  Errors: InputError for a list that names too few GPUs, a NIC that does not
    exist or that nobody has, or NICs of which GPUs share only some.
    """
    lists: tuple[tuple[int, ...], ...]
    if not nic_of_gpu:
        if num_nics <= num_gpus:
            lists = tuple((gpu * num_nics // num_gpus,) for gpu in range(num_gpus))
        else:
            bounds = [-(-gpu * num_nics // num_gpus) for gpu in range(num_gpus + 1)]
            lists = tuple(tuple(range(bounds[gpu], bounds[gpu + 1])) for gpu in range(num_gpus))
    else:
        lists = tuple(tuple(sorted(nics)) for nics in nic_of_gpu)
        _check_nics(lists, num_gpus, num_nics)
    ports = tuple(sorted(set(lists)))
    index = {nics: port for port, nics in enumerate(ports)}
    return NicPorts(tuple(index[nics] for nics in lists), ports)


def _check_nics(lists: tuple[tuple[int, ...], ...], num_gpus: int, num_nics: int) -> None:
    if len(lists) != num_gpus:
        raise InputError(f"nic_of_gpu lists {len(lists)} GPUs, but a node has {num_gpus}")
    owner: dict[int, tuple[int, int]] = {}  # NIC -> GPU that was seen first, how many it has
    for gpu, nics in enumerate(lists):
        if not nics or len(set(nics)) != len(nics):
            raise InputError(f"nic_of_gpu: GPU {gpu} needs a NIC, and each one once; it has {list(nics)}")
        for nic in nics:
            if not 0 <= nic < num_nics:
                raise InputError(
                    f"nic_of_gpu: GPU {gpu} has NIC {nic}, but a node has NICs 0 to {num_nics - 1}"
                )
            first, _ = owner.setdefault(nic, (gpu, len(nics)))
            if lists[first] != nics:
                raise InputError(
                    f"nic_of_gpu: GPUs {first} and {gpu} share NIC {nic} but not all of"
                    f" {sorted({*lists[first], *nics})}; GPUs share all their NICs or none"
                )
    idle = set(range(num_nics)) - owner.keys()
    if idle:
        raise InputError(
            f"nic_of_gpu: NIC {min(idle)} belongs to no GPU; nics_per_node = {num_nics} must count only those"
            " that GPUs send through"
        )
