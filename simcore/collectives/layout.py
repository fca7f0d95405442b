"""Where the ranks of a group sit: nodes, GPUs and NICs, reduced to what collectives need to know.

A node is here what NCCL takes for one: all GPUs that NVLink joins.  In a rack-scale system NCCL puts the
topologies of all hosts of an NVLink clique together (NVIDIA/nccl src/graph/topo.cc, ncclTopoGetSystem under
MNNVL), so that a domain of 18 trays is one node of 72 GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from simcore.collectives.ring_search import NodeRings, disjoint_paths, find_rings
from simcore.errors import InputError
from simcore.hardware.node import NodeLinks
from simcore.hardware.topology import Topology
from simcore.records import dataclass

#: Rings over several nodes: no more than this many different ones.
_MAX_JOINED: Final = 48


@dataclass(frozen=True)
class PlacedGroup:
    """A group on its hardware: ``nodes[m]`` are the GPUs on the group's m-th node, by local index.

    ``local_gpus`` are the same as positions within the node.  ``nics_used``: NICs of the group's GPUs on the
    node with the fewest.  ``network_s``: wire latency from a node to the next, averaged around the group.
    ``rings``: the group's rings over GPUs where wires decide the order; none behind NVSwitches, where any is
    as good.  ``node_rings``: those of the node where they carry the least, ``inside_s`` what a hop of theirs
    lasts beyond one over NVLink.
    Groups that differ only in which nodes they sit on have equal :attr:`signature`, and so do permutations
    of one group: what NCCL decides for one holds for all.
    """

    nodes: tuple[tuple[int, ...], ...]
    local_gpus: tuple[tuple[int, ...], ...]
    nics_used: int
    network_s: float
    rings: tuple[tuple[int, ...], ...] = ()
    node_rings: NodeRings | None = None
    inside_s: float = 0.0

    @property
    def num_rings(self) -> int:
        """Different rings that the group's channels take."""
        return len(self.rings) or (self.max_per_node if self.num_nodes > 1 else 1)

    @cached_property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return sum(len(gpus) for gpus in self.nodes)

    @property
    def num_nodes(self) -> int:
        """Nodes that hold at least one rank."""
        return len(self.nodes)

    @cached_property
    def max_per_node(self) -> int:
        """Ranks on the fullest node."""
        return max(len(gpus) for gpus in self.nodes)

    @cached_property
    def signature(self) -> tuple[object, ...]:
        """Equal for groups of the same shape; every node's local indices once if all nodes are alike."""
        shapes = set(self.local_gpus)
        shape = next(iter(shapes)) if len(shapes) == 1 else self.local_gpus
        return self.num_ranks, self.num_nodes, self.nics_used, self.network_s, shape


def checked_ranks(fabric: Topology, ranks: Sequence[int]) -> None:
    """InputError for an empty group, a rank twice, or a rank that the topology has no GPU for."""
    if not ranks:
        raise InputError("a collective needs at least one rank")
    if len(set(ranks)) != len(ranks):
        seen: set[int] = set()
        twice = next(rank for rank in ranks if rank in seen or seen.add(rank))  # type: ignore[func-returns-value]
        raise InputError(f"rank {twice} appears twice in a group of {len(ranks)}")
    if fabric.cluster.placement != "linear":
        return  # which ranks have a GPU is said where ranks are placed
    low, high = min(ranks), max(ranks)
    if low < 0 or high >= fabric.num_gpus:
        outside = low if low < 0 else high
        raise InputError(
            f"rank {outside} is outside cluster {fabric.cluster.name!r}, which has {fabric.num_gpus} GPUs"
        )


def layout_of(fabric: Topology, ranks: Sequence[int]) -> PlacedGroup:
    """The layout of ``ranks`` in any order.  InputError as :func:`checked_ranks`."""
    checked_ranks(fabric, ranks)
    gpus = np.sort(fabric.gpus_of(np.array(ranks, dtype=np.int64)))
    per_domain = fabric.cluster.gpus_per_domain
    node, place = np.divmod(gpus, per_domain)
    begins = np.flatnonzero(np.append(True, node[1:] != node[:-1]))
    bounds = list(pairwise([*begins.tolist(), len(gpus)]))
    nodes, local = (
        tuple([tuple(column[lo:hi]) for lo, hi in bounds]) for column in (gpus.tolist(), place.tolist())
    )
    nic, once = fabric.nics_out_of(gpus), np.arange(len(gpus))
    if not fabric.ports.is_exclusive:
        nic, once = np.unique(nic, return_index=True)
    on_node = np.searchsorted(begins, once, side="right") - 1
    nics = int(np.bincount(on_node, fabric.links.cables[nic]).min())
    rail = gpus[begins] - place[begins] + place[0]
    hops = fabric.latencies_s(rail, np.append(rail[1:], rail[0])) if len(rail) > 1 else rail[:0]
    network_s = math.fsum(hops.tolist()) / max(1, len(hops))
    if fabric.cluster.intra_node == "nvswitch":
        return PlacedGroup(nodes, local, nics, network_s)
    found = [find_rings(fabric.node, members) for members in local]
    slowest = min(found, key=lambda rings: rings.total_bytes_per_s)
    inside_s = max(_hop_s(fabric.node, rings.orders[0]) for rings in found) - fabric.cluster.nvlink_latency_s
    return PlacedGroup(
        nodes, local, nics, network_s, _joined(fabric, nodes, found), slowest, max(0.0, inside_s)
    )


def _joined(
    fabric: Topology, nodes: tuple[tuple[int, ...], ...], found: list[NodeRings]
) -> tuple[tuple[int, ...], ...]:
    """Rings of all nodes put together: each node's ring is cut where it leaves by the NIC whose turn it is.

    Every other node is passed backwards, so that data enters where it left the node before, on the same rail.
    Where all GPUs of all nodes are joined, each beside a NIC of its own, rings are paths that use each link
    once instead (:func:`disjoint_paths`).
    """
    base = [gpus[0] - fabric.place_of(gpus[0]) for gpus in nodes]
    if len(nodes) == 1:
        return tuple(tuple(base[0] + k for k in order) for order in found[0].orders)
    port_of = fabric.ports.of_gpu
    alike = {tuple(sorted(rings.orders[0])) for rings in found}
    members = next(iter(alike))
    mesh = disjoint_paths(fabric.node, members)
    if mesh and len(alike) == 1 and len({port_of[k] for k in members}) == len(members):
        return tuple(
            tuple(first + k for node, first in enumerate(base) for k in path[:: -1 if node % 2 else 1])
            for path in mesh
        )
    sizes = {len(rings.orders) for rings in found}
    sizes |= {len({port_of[k] for k in rings.orders[0]}) for rings in found}
    number = math.lcm(*sizes)
    if number > _MAX_JOINED:
        number = max(sizes)
    paths = {rings: [_cut(rings, port_of, ring) for ring in range(number)] for rings in set(found)}
    return tuple(
        tuple(
            first + k
            for position, (first, rings) in enumerate(zip(base, found, strict=True))
            for k in (paths[rings][ring][::-1] if position % 2 else paths[rings][ring])
        )
        for ring in range(number)
    )


def _cut(rings: NodeRings, port_of: tuple[int, ...], ring: int) -> tuple[int, ...]:
    """A path through a node that ends at the NIC port whose turn it is, and begins there, too, if any can."""
    ports = sorted({port_of[k] for k in rings.orders[0]})
    port, turn = ports[ring % len(ports)], ring % len(rings.orders)
    cycles = (*rings.orders[turn:], *rings.orders[:turn])
    for ends_at_port in (2, 1):
        for cycle in cycles:
            there = [port_of[k] == port for k in cycle]
            for k, leaves in enumerate(there):
                if leaves and leaves + there[(k + 1) % len(cycle)] >= ends_at_port:
                    return cycle[k + 1 :] + cycle[: k + 1]
    return cycles[0]


def _hop_s(node: NodeLinks, order: tuple[int, ...]) -> float:
    """Latency of a ring's hop, averaged around it."""
    pairs = zip(order, (*order[1:], order[0]), strict=True)
    hops = [float(node.latency_s[list(node.route(src, dst))].sum()) for src, dst in pairs]
    return math.fsum(hops) / len(hops)
