"""NVLS and NVLSTree as messages: the switch of a node adds what it reads and copies what it is given.

A buffer of B bytes among K GPUs of a node is K slices, one per owner.  To fetch its slice added up, the owner
has the switch read it from all K ports and send the sum down its own; to give it to all, the owner stores it
once and the switch sends a copy down each of the K ports.  So a port carries B + B/K each way, as in
:func:`simcore.collectives.loads.nvls_load`.  The switch adds as packets come, so that messages here are
pieces that the switch stores as a whole: small ones, of :data:`_PIECE_BYTES`.  Between nodes an owner's sum
climbs a double binary tree of the GPUs on its rail, piece by piece, before it is given to all.
"""

from __future__ import annotations

from typing import Final

from simcore.collectives.kinds import split
from simcore.collectives.layout import PlacedGroup
from simcore.collectives.plan import CollectivePlan
from simcore.collectives.tree import double_binary_tree
from simcore.hardware.topology import Topology
from simcore.network.packet.lanes import Builder, MessageProgram, Send
from simcore.units import KIB

#: What a GPU has on its way to the switch at once, as NCCL's NVLS chunks are (src/include/nvls.h buffers).
_PIECE_BYTES: Final = 16 * KIB
_MAX_MESSAGES: Final = 200_000
#: Pieces of one owner on their way: enough to cover the round trip through the switch at full rate.
_WINDOW: Final = 128
#: What a message does; each kind has lanes of its own, so that none waits behind another kind.
_KINDS: Final = ("read", "sum", "stored", "copy", "up", "down")


def nvls_program(topology: Topology, plan: CollectivePlan, layout: PlacedGroup) -> MessageProgram:
    """Messages of a collective inside the switches (and over the tree of nodes)."""
    builder = Builder(topology, plan, 1, _WINDOW, stores=True)
    num_bytes = max(plan.num_bytes, layout.num_ranks)
    members = layout.max_per_node
    per_piece = sum(2 * len(gpus) + 4 for gpus in layout.nodes) * members
    pieces = max(1, min(num_bytes // members // _PIECE_BYTES, _MAX_MESSAGES // per_piece))
    overhead = _port_overhead(topology, plan, layout, num_bytes)
    reads, stores = not plan.kind.gives_part, not plan.kind.gets_part
    for owner, (_, share) in enumerate(split(num_bytes, members)):
        for piece, (_, size) in enumerate(split(share, pieces)):
            _Piece(builder, topology, layout, owner, piece, size, overhead).move(reads, stores)
    return builder.program(1)


class _Piece:
    """One piece of the slices of the GPUs at one position of each node."""

    def __init__(
        self,
        builder: Builder,
        topology: Topology,
        layout: PlacedGroup,
        owner: int,
        piece: int,
        num_bytes: int,
        wire_overhead: float,
    ) -> None:
        self._builder = builder
        self._topology = topology
        self._nodes = layout.nodes
        self._owners = [gpus[owner % len(gpus)] for gpus in layout.nodes]
        self._tree = double_binary_tree(layout.num_nodes)[piece % 2]
        self._owner, self._piece, self._size = owner, piece, num_bytes
        self._overhead = wire_overhead

    def move(self, reads: bool, stores: bool) -> None:
        """Add up in each node (``reads``), over the nodes, and give to all (``stores``)."""
        summed = [self._read(node) if reads else (0, 0) for node in range(len(self._nodes))]
        if len(self._nodes) > 1:
            summed = self._over_nodes(summed)
        if stores:
            for node, after in enumerate(summed):
                self._store(node, after)

    def _read(self, node: int) -> tuple[int, int]:
        """All ports up, the sum down the owner's; the key under which it arrives, and how often."""
        at_switch = self._key("read", node)
        for gpu in self._nodes[node]:
            self._hop("read", gpu, self._topology.nvlink_out(gpu), (0, 0), at_switch)
        summed = self._key("sum", node)
        owner = self._owners[node]
        all_read = (at_switch, len(self._nodes[node]))
        self._hop("sum", owner, self._topology.nvlink_in(owner), all_read, summed)
        return summed, 1

    def _store(self, node: int, after: tuple[int, int]) -> None:
        """Up the owner's port once, down all."""
        at_switch = self._key("stored", node)
        owner = self._owners[node]
        self._hop("stored", owner, self._topology.nvlink_out(owner), after, at_switch)
        for gpu in self._nodes[node]:
            self._hop(
                "copy", gpu, self._topology.nvlink_in(gpu), (at_switch, 1), self._key("copy", node, gpu)
            )

    def _over_nodes(self, summed: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Up the tree of nodes and down again; what each node's owner then waits for."""
        level, parent = self._tree.level, self._tree.parent
        children = [sum(1 for above in parent if above == node) for node in range(len(parent))]
        by_level = sorted(range(len(level)), key=lambda node: level[node])
        # A child's sum arrives under the key of the node's own: the node goes on when it has them all.
        gathered = [(key, count + children[node]) for node, (key, count) in enumerate(summed)]
        for node in reversed(by_level):
            if parent[node] >= 0:
                self._between("up", node, parent[node], gathered[node], gathered[parent[node]][0])
        done = list(gathered)
        for node in by_level:
            if parent[node] >= 0:
                done[node] = (self._key("down", node), 1)
                self._between("down", parent[node], node, done[parent[node]], done[node][0])
        return done

    def _between(self, kind: str, src: int, dst: int, after: tuple[int, int], key: int) -> None:
        # Odd pieces take the other tree, where the same two may meet the other way round.
        lane = self._builder.lane(self._channel(kind), self._owners[src], self._owners[dst], False)
        self._builder.send(lane, Send(self._size, *after, key))

    def _hop(self, kind: str, gpu: int, link: int, after: tuple[int, int], key: int) -> None:
        lane = self._builder.half_lane(self._channel(kind), gpu, link, self._overhead)
        self._builder.send(lane, Send(self._size, *after, key))

    def _channel(self, kind: str) -> int:
        return (2 * self._owner + self._piece % 2) * len(_KINDS) + _KINDS.index(kind)

    def _key(self, what: str, node: int, gpu: int = 0) -> int:
        kind = _KINDS.index(what)
        return self._builder.key(
            (kind, node * self._topology.num_gpus + gpu, self._owner << 32 | self._piece)
        )


def _port_overhead(topology: Topology, plan: CollectivePlan, layout: PlacedGroup, num_bytes: int) -> float:
    """Wire bytes per byte on NVLink: multicast and in-switch reads reach only a share of a port's rate.

    The plan charges it on the ports; what they carry is known.
    """
    gpus = layout.nodes[0]
    owned = num_bytes / len(gpus)
    read = 0 if plan.kind.gives_part else num_bytes
    stored = 0 if plan.kind.gets_part else num_bytes
    carried = {
        topology.nvlink_out(gpus[0]): read + (owned if stored else 0.0),
        topology.nvlink_in(gpus[0]): stored + (owned if read else 0.0),
    }
    charged = {use.link: plan.volume_bytes * use.weight for use in plan.links}
    return max(1.0, *(charged.get(link, 0.0) / num for link, num in carried.items()))
