"""Rings, trees, switches, messages: which way each algorithm goes, and its load on every link.

A load is (link, link bytes per byte that an average rank sends), as in
:class:`~simcore.collectives.plan.LinkUse`.

Note [Rotation]
    Channel c leaves a node by the NIC of one of its GPUs and enters the next by the NIC on the same rail;
    over all channels every GPU is the exit equally often, so a node of K members drives all K NICs.  NCCL
    searches its rings so, and swaps channel pairs on every other node to stay on a rail
    (src/graph/connect.cc, "Alternate rings to avoid crossing rails").  Of what a GPU sends in a ring,
    NVLink carries (K-1)/K and its NIC 1/K.  With an odd number of nodes the last hop crosses rails once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from simcore.collectives.kinds import Collective
from simcore.collectives.kinds.schedule import aggregated_hops
from simcore.collectives.layout import PlacedGroup
from simcore.collectives.tree import double_binary_tree
from simcore.distinct import distinct
from simcore.hardware.topology import Topology

#: GPUs of a domain that keep a slice of a switch's sums (NCCL src/include/device.h: NCCL_MAX_NVLS_ARITY).
NVLS_HEADS: Final = 32

Ids = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]


class LoadPerByte(NamedTuple):
    """Load of a group: ``weights[i]`` bytes on link ``ids[i]`` per byte that an average rank sends.

    ``connections`` is how many bytes an average rank sends while one connection carries one: in a ring over
    K NICs each connection carries 1/K of the data.  Ports take turns between connections, so a fair share
    is one of connections, not of collectives.  ``inputs[i]``: NICs whose data link ``ids[i]`` carries
    away from a switch (0: data starts or ends there).
    """

    ids: Ids
    weights: Weights
    connections: float
    inputs: Weights


class LinkLoad:
    """Accumulates link bytes, connection by connection, then gives them per byte of an average rank."""

    def __init__(self, fabric: Topology) -> None:
        self._nics = fabric.sending_nics
        self._bytes: dict[int, float] = {}
        self._connections: dict[int, int] = {}
        self._inputs: dict[int, set[int]] = {}

    def add(self, links: tuple[int, ...], num_bytes: float) -> None:
        """One connection's ``num_bytes`` over each of ``links``."""
        for link in links:
            self._bytes[link] = self._bytes.get(link, 0.0) + num_bytes
            self._connections[link] = self._connections.get(link, 0) + 1
        nic = next((place for place, link in enumerate(links) if link in self._nics), len(links))
        for link in links[nic + 1 : -1]:
            self._inputs.setdefault(link, set()).add(links[nic])

    def per_byte(self, sent_bytes: float) -> LoadPerByte:
        """Links ascending, link bytes per byte where an average rank sends ``sent_bytes``."""
        ids = np.array(sorted(self._bytes), dtype=np.int64)
        loads = np.array([self._bytes[int(link)] for link in ids], dtype=np.float64) / sent_bytes
        connections = np.array([self._connections[int(link)] for link in ids], dtype=np.float64)
        inputs = np.array([len(self._inputs.get(int(link), ())) for link in ids], dtype=np.float64)
        return LoadPerByte(ids, loads, float((connections / loads).max()) if len(ids) else 1.0, inputs)


def load_of_hops(fabric: Topology, hops: Ids, num_bytes: float, sent_bytes: float) -> LoadPerByte:
    """A connection of ``num_bytes`` for each of ``hops`` (GPUs, [hops, 2]); a rank sends ``sent_bytes``.

    What :class:`LinkLoad` says of them one by one, to the bit.
    """
    hops = hops[hops[:, 0] != hops[:, 1]]
    if not len(hops):
        return LinkLoad(fabric).per_byte(sent_bytes)
    source, target, number = _different(hops, fabric.cluster.gpus_per_node)
    routes = fabric.routes(source, target)
    hop, step = np.nonzero(routes >= 0)
    passed = routes[hop, step]
    connections = np.bincount(passed, weights=number[hop])
    ids = np.flatnonzero(connections)
    connections = connections[ids]
    sums = np.cumsum(np.full(int(connections.max()), num_bytes))  # as if added one by one
    loads = sums[connections.astype(np.int64) - 1] / sent_bytes
    is_nic = fabric.are_sending_nics(routes)
    nic = np.where(is_nic.any(axis=1), is_nic.argmax(axis=1), routes.shape[1])[hop]
    last = (routes >= 0).sum(axis=1)[hop] - 1
    behind = (nic < step) & (step < last)
    links = int(ids[-1]) + 1
    met = distinct(routes[hop[behind], nic[behind]] * links + passed[behind]) % links
    inputs = np.bincount(met, minlength=links)[ids].astype(np.float64)
    return LoadPerByte(ids, loads, float((connections / loads).max()), inputs)


def _different(hops: Ids, per_node: int) -> tuple[Ids, Ids, Ids]:
    """Different hops, from and to which GPU, and how often each is made.

    Channels make those within nodes again and again: counted, not sorted.
    """
    source, target = hops[:, 0], hops[:, 1]
    near = source // per_node == target // per_node
    within = np.bincount(source[near] * per_node + target[near] % per_node)
    key = np.flatnonzero(within)
    most = int(hops.max()) + 1
    pairs, number = np.unique(source[~near] * most + target[~near], return_counts=True)
    there = key // per_node
    return (
        np.concatenate([there, pairs // most]),
        np.concatenate([there - there % per_node + key % per_node, pairs % most]),
        np.concatenate([within[key], number]),
    )


def _exit_local(members: int, rotation: int, node: int) -> int:
    return (rotation + node % 2) % members


def _entry_local(members: int, rotation: int, node: int) -> int:
    # What the node before calls its exit; node 0 and node 1 differ, so entry and exit differ where K > 1.
    return (rotation + (node + 1) % 2) % members


def ring_order(layout: PlacedGroup, rotation: int) -> tuple[int, ...]:
    """GPUs in the order of one channel's ring; see Note [Rotation].

    Within a node the ring goes round from where it enters to where it leaves, up or down: rotations then
    follow one another through the GPUs instead of meeting at one.  Without NVSwitches it follows the wires.
    """
    if layout.rings:
        return layout.rings[rotation]
    order: list[int] = []
    for node, gpus in enumerate(layout.nodes):
        members = len(gpus)
        enter = _entry_local(members, rotation, node)
        leave = _exit_local(members, rotation, node)
        way = 1 if (leave + 1) % members == enter else -1
        around = [gpus[(enter + way * k) % members] for k in range(members)]
        around.remove(gpus[leave])
        order += [*around, gpus[leave]]
    return tuple(order)


def ring_load(fabric: Topology, layout: PlacedGroup) -> LoadPerByte:
    """Load of a ring over all rotations, per byte that each rank sends."""
    orders = np.array([ring_order(layout, rotation) for rotation in range(layout.num_rings)], dtype=np.int64)
    hops = np.stack([orders, np.roll(orders, -1, axis=1)], axis=2).reshape(-1, 2)
    return load_of_hops(fabric, hops, 1.0 / layout.num_rings, 1.0)


def tree_rotations(layout: PlacedGroup) -> int:
    """Different pairs of trees that the group's channels take."""
    return len(layout.rings) or layout.max_per_node


def _chained(layout: PlacedGroup, rotation: int, size: Ids, first: Ids) -> Ids:
    """GPUs node by node, that in the tree of nodes first; without NVSwitches a piece of a ring."""
    if layout.rings:
        return np.array(layout.rings[rotation], dtype=np.int64)
    gpus = np.fromiter(chain.from_iterable(layout.nodes), dtype=np.int64, count=layout.num_ranks)
    begin = np.repeat(first, size)
    return gpus[begin + (np.arange(len(gpus)) - begin + rotation) % np.repeat(size, size)]


def tree_edges(layout: PlacedGroup, rotation: int, which: int) -> Ids:
    """(child, parent) GPUs of one channel, [edges, 2]: a chain in each node, its head in a tree of nodes."""
    size = np.array([len(gpus) for gpus in layout.nodes])
    first = np.cumsum(size) - size
    gpus = _chained(layout, rotation, size, first)
    above = np.arange(len(gpus)) - 1
    parent = np.array(double_binary_tree(layout.num_nodes)[which].parent)
    above[first] = np.where(parent >= 0, first[parent], -1)
    return np.stack([gpus, gpus[above]], axis=1)[above >= 0]


def tree_load(fabric: Topology, layout: PlacedGroup) -> LoadPerByte:
    """Load of the double binary tree over all rotations, per byte that an average rank sends.

    Every edge carries each byte once up and once down, so an average rank sends 2 (n-1)/n of them.
    """
    rotations, num_ranks = tree_rotations(layout), layout.num_ranks
    up = np.concatenate([tree_edges(layout, r, which) for r in range(rotations) for which in (0, 1)])
    hops = np.concatenate([up, up[:, ::-1]])
    return load_of_hops(fabric, hops, 0.5 / rotations, 2.0 * (num_ranks - 1) / num_ranks)


def tree_levels(layout: PlacedGroup) -> tuple[int, int]:
    """(hops within nodes, hops between nodes) from the deepest leaf to the root."""
    return layout.max_per_node - 1, max(tree.depth for tree in double_binary_tree(layout.num_nodes))


def nvls_load(fabric: Topology, layout: PlacedGroup, efficiency: float) -> LoadPerByte:
    """Load of an all_reduce inside the NVSwitch, per byte that an average rank sends in a ring.

    The switch reads every GPU's B bytes once to add them and delivers the sum to all: a GPU's port carries
    B + B/K each way, B/K for the slice that the GPU itself fetches reduced and stores; of more GPUs than
    :data:`NVLS_HEADS` so many have a slice.  Multicast and
    in-switch reads reach ``efficiency`` of the port.  Between nodes a double binary tree per slice: each GPU
    exchanges its slice with the GPUs of its rail.
    """
    load = LinkLoad(fabric)
    for node, gpus in enumerate(layout.nodes):
        heads = min(len(gpus), NVLS_HEADS)
        share = 1.0 / heads
        for place, gpu in enumerate(gpus):
            own = share if place < heads else 0.0
            load.add((fabric.nvlink_out(gpu), fabric.nvlink_in(gpu)), (1.0 + own) / efficiency)
            for tree in double_binary_tree(layout.num_nodes) if own else ():
                parent = tree.parent[node]
                if parent >= 0:
                    above = layout.nodes[parent]
                    peer = above[place % min(len(above), NVLS_HEADS)]
                    load.add(fabric.route(gpu, peer), 0.5 * share)
                    load.add(fabric.route(peer, gpu), 0.5 * share)
    num_ranks = layout.num_ranks
    return load.per_byte(2.0 * (num_ranks - 1) / num_ranks)


def nvls_one_way_load(
    fabric: Topology, layout: PlacedGroup, efficiency: float, *, gathers: bool
) -> LoadPerByte:
    """Load of an all_gather (``gathers``) or reduce_scatter in the switch, per byte that a ring would send.

    One direction of a GPU's port carries the whole buffer, the other the GPU's own n-th of it, at
    ``efficiency`` of the port: multicast stores and in-switch reads (NCCL src/device/all_gather.h and
    reduce_scatter.h under NVLS).
    """
    load = LinkLoad(fabric)
    share = 1.0 / layout.num_ranks
    for gpus in layout.nodes:
        for gpu in gpus:
            own, others = (fabric.nvlink_out(gpu), fabric.nvlink_in(gpu))
            if not gathers:
                own, others = others, own
            load.add((own,), share / efficiency)
            for _ in range(layout.num_ranks):  # multicast of everybody, reads by everybody
                load.add((others,), share / efficiency)
    return load.per_byte(1.0 - share)


def pat_load(fabric: Topology, layout: PlacedGroup, *, gathers: bool) -> LoadPerByte:
    """Load of parallel aggregated trees, per byte that each rank sends; sums travel the other way."""
    load = LinkLoad(fabric)
    order = [gpu for gpus in layout.nodes for gpu in gpus]
    num_ranks = len(order)
    for distance, come in aggregated_hops(num_ranks):
        for rank, gpu in enumerate(order):
            peer = order[(rank + (distance if gathers else -distance)) % num_ranks]
            load.add(fabric.route(gpu, peer), float(len(come)))
    return load.per_byte(num_ranks - 1.0)


def message_load(
    fabric: Topology, layout: PlacedGroup, kind: Collective, ranks: Sequence[int]
) -> LoadPerByte:
    """Load of messages between all pairs, per byte that an average rank sends to all others together.

    Between nodes, with rail routing, NCCL hands data to the GPU on the destination's rail first (PXN), member
    of the group or not: rails are never crossed, NVLink carries the extra hop.
    """
    load = LinkLoad(fabric)
    num_ranks, pieces = layout.num_ranks, kind.pieces
    place = {fabric.gpu_of_rank(rank): member for member, rank in enumerate(ranks)} if pieces else {}
    for src_gpus in layout.nodes:
        for dst_gpus in layout.nodes:
            for src in src_gpus:
                for dst in dst_gpus:
                    if src != dst:
                        size = pieces(place[src], place[dst], num_ranks) if pieces else 1.0
                        if size:
                            load.add(fabric.message_route(src, dst), size)
    return load.per_byte(num_ranks - 1.0 if pieces is None else kind.sent_share(num_ranks) * num_ranks)


def p2p_load(fabric: Topology, src: int, dst: int) -> LoadPerByte:
    """Load of one message, per byte."""
    load = LinkLoad(fabric)
    load.add(fabric.message_route(src, dst), 1.0)
    return load.per_byte(1.0)
