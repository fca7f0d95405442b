"""What a plan's ranks send to whom and after what: the collective as dependent messages.

A program is a list of lanes.  A lane is one connection: its sends leave in order, each as soon as its sender
has received what it passes on.  NCCL's channels that take the same ring are one lane with their chunks put
together, since they run in step; rotations over the GPUs of a node (:mod:`simcore.collectives.rings`,
Note [Rotation]) stay apart.  Chunks travel as slices, as NCCL's copy loops pass them on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from simcore.collectives.algorithms import Transfer, split, steps
from simcore.collectives.layout import Layout, layout_of
from simcore.collectives.plan import CollectivePlan
from simcore.collectives.protocols import NCCL_STEPS
from simcore.collectives.rings import ring_order
from simcore.collectives.tree import Tree, double_binary_tree
from simcore.errors import InputError
from simcore.hardware.topology import Topology

#: Messages of one program; beyond, chunks are put together, as it then has far more of them than steps.
_MAX_MESSAGES: Final = 600_000
#: Slices that a ring chunk of four buffer slots travels as under Simple (NCCL src/include/collectives.h).
RING_SLICES: Final = 2
_RING_SLOTS_PER_SLICE: Final = 2
_IN_STEPS: Final = ("all_reduce", "all_gather", "reduce_scatter", "barrier")


@dataclass(frozen=True)
class Send:
    """One message: leaves when ``after_count`` messages have arrived under ``after``; arrives under ``key``.

    Keys are integers that name (rank, channel, piece of data); ``after_count`` 0: may leave at once.
    """

    num_bytes: int
    after: int
    after_count: int
    key: int


@dataclass
class Lane:
    """Everything one GPU sends to another on one channel, over ``route``.

    ``window``: messages that may be on their way at once, from the slots of the receiver's buffer.
    """

    route: tuple[int, ...]
    window: int
    sends: list[Send] = field(default_factory=list)


@dataclass(frozen=True)
class Program:
    """Lanes of one collective."""

    lanes: tuple[Lane, ...]

    @property
    def num_messages(self) -> int:
        """Messages of all lanes."""
        return sum(len(lane.sends) for lane in self.lanes)

    @property
    def link_bytes(self) -> dict[int, int]:
        """Payload that crosses each link, the algorithm's volume."""
        total: dict[int, int] = {}
        for lane in self.lanes:
            size = sum(send.num_bytes for send in lane.sends)
            for link in lane.route:
                total[link] = total.get(link, 0) + size
        return total


class _Builder:
    """Turns transfers, given in an order that respects their steps, into lanes."""

    def __init__(self, topology: Topology, slices: int, window: int) -> None:
        self._topology = topology
        self._slices = slices
        self._window = window
        self._lanes: dict[tuple[int, int, int], Lane] = {}
        self._received: dict[tuple[int, int, int], int] = {}
        self._keys: dict[tuple[int, int, int], int] = {}
        self._last: dict[tuple[int, int], tuple[int, int]] = {}  # (channel, gpu) -> latest key, its count
        self._gate: dict[tuple[int, int], tuple[int, int]] = {}
        self._next_key = 0

    def next_loop(self) -> None:
        """A channel begins its next loop when its rank has received the last of the one before."""
        self._gate = dict(self._last)
        self._received.clear()
        self._keys.clear()

    def add(self, transfers: Iterable[Transfer], gpus: Iterable[tuple[int, ...]], via_rail: bool) -> None:
        """Add transfers among members whose GPUs are ``gpus[channel][member]``."""
        of_channel = list(gpus)
        for transfer in transfers:
            members = of_channel[transfer.channel]
            src, dst = members[transfer.src], members[transfer.dst]
            lane = self._lane(transfer.channel, src, dst, via_rail)
            have = (src, transfer.channel, transfer.chunk)
            give = (dst, transfer.channel, transfer.chunk)
            count = self._received.get(have, 0)
            gate = self._gate.get((transfer.channel, src))
            base, given = self._key(have) if count else 0, self._key(give)
            for piece, (_, size) in enumerate(split(transfer.num_bytes, self._slices)):
                if count:
                    send = Send(size, base + piece, count, given + piece)
                elif gate:
                    send = Send(size, *gate, given + piece)
                else:
                    send = Send(size, 0, 0, given + piece)
                lane.sends.append(send)
            total = self._received[give] = self._received.get(give, 0) + 1
            self._last[transfer.channel, dst] = (given + self._slices - 1, total)

    def program(self) -> Program:
        return Program(tuple(self._lanes.values()))

    def _key(self, data: tuple[int, int, int]) -> int:
        key = self._keys.get(data)
        if key is None:
            key = self._keys[data] = self._next_key
            self._next_key += self._slices
        return key

    def _lane(self, channel: int, src: int, dst: int, via_rail: bool) -> Lane:
        lane = self._lanes.get((channel, src, dst))
        if lane is None:
            route = rail_route(self._topology, src, dst) if via_rail else self._topology.route(src, dst)
            lane = self._lanes[channel, src, dst] = Lane(route, self._window)
        return lane


def rail_route(topology: Topology, src: int, dst: int) -> tuple[int, ...]:
    """Route of send/recv and all_to_all: on a rail fabric over the neighbour on the receiver's rail (PXN)."""
    if topology.cluster.fabric != "rail" or topology.node_of(src) == topology.node_of(dst):
        return topology.route(src, dst)
    via = src - topology.local_of(src) + topology.local_of(dst)
    return (*topology.route(src, via), *topology.route(via, dst))


def program_of(topology: Topology, plan: CollectivePlan, slices: int | None = None) -> Program:
    """The messages of ``plan``, chunked as the plan says; ``slices`` per chunk, None for NCCL's number.

    InputError for an algorithm inside switches (nvls, nvls_tree), which has no messages between ranks.
    """
    if plan.algorithm == "none":
        return Program(())
    if plan.algorithm not in ("ring", "tree", "pairwise", "p2p"):
        raise InputError(f"the packet network has no model of {plan.algorithm!r}; force ring or tree instead")
    if plan.algorithm == "p2p":
        return _p2p(topology, plan, slices or 1)
    layout = layout_of(topology, plan.ranks)
    if plan.algorithm == "ring":
        return _ring(topology, plan, layout, slices)
    if plan.algorithm == "tree":
        return _tree(topology, plan, layout, slices or 1)
    return _pairwise(topology, plan, layout, slices or 1)


def _ring(topology: Topology, plan: CollectivePlan, layout: Layout, slices: int | None) -> Program:
    rotations = layout.max_per_node if layout.num_nodes > 1 else 1
    orders = [ring_order(layout, rotation) for rotation in range(rotations)]
    ranks = layout.num_ranks
    in_steps = plan.collective in _IN_STEPS
    if slices is None:
        slices = RING_SLICES if plan.protocol == "Simple" and in_steps else 1
    window = NCCL_STEPS // _RING_SLOTS_PER_SLICE if in_steps else NCCL_STEPS
    builder = _Builder(topology, slices, window)
    num_bytes = max(plan.num_bytes, 4)
    if in_steps:
        loops = plan.num_chunks // ranks
        for number, (_, size) in enumerate(split(num_bytes, loops)):
            if number:
                builder.next_loop()
            builder.add(steps("ring", plan.collective, ranks, size, rotations), orders, via_rail=False)
    else:
        chunks = _affordable(plan.num_chunks, rotations * ranks * slices)
        transfers = steps("ring", plan.collective, ranks, num_bytes, rotations, chunks)
        builder.add(transfers, orders, via_rail=False)
    return builder.program()


def _tree(topology: Topology, plan: CollectivePlan, layout: Layout, slices: int) -> Program:
    """One channel per rotation and tree: a chain in each node, its head in one of two trees of nodes."""
    rotations = layout.max_per_node
    channels = 2 * rotations
    chunks = _affordable(plan.num_chunks, 2 * channels * layout.num_ranks * slices)
    gpus = tuple(gpu for members in layout.nodes for gpu in members)
    builder = _Builder(topology, slices, NCCL_STEPS)
    for channel, (_, share) in enumerate(split(max(plan.num_bytes, 4), channels)):
        tree = _rank_tree(layout, channel // 2, channel % 2)
        builder.add(_tree_transfers(tree, channel, share, chunks), [gpus] * channels, via_rail=False)
    return builder.program()


def _rank_tree(layout: Layout, rotation: int, which: int) -> Tree:
    """Parents by position in the group, in the order of ``layout.nodes``."""
    nodes = double_binary_tree(layout.num_nodes)[which]
    first = [0]
    for gpus in layout.nodes:
        first.append(first[-1] + len(gpus))
    parent = [-1] * layout.num_ranks
    for node, gpus in enumerate(layout.nodes):
        size, start = len(gpus), rotation % len(gpus)
        for link in range(1, size):
            parent[first[node] + (start + link) % size] = first[node] + (start + link - 1) % size
        above = nodes.parent[node]
        if above >= 0:
            parent[first[node] + start] = first[above] + rotation % len(layout.nodes[above])
    return Tree(tuple(parent))


def _tree_transfers(tree: Tree, channel: int, num_bytes: int, chunks: int) -> Iterator[Transfer]:
    """Each chunk up from the leaves, then down; a lane's order is the order of chunks."""
    level = tree.level
    by_level = sorted(range(len(level)), key=lambda member: level[member])
    for chunk, (offset, size) in enumerate(split(num_bytes, chunks)):
        for member in reversed(by_level):
            if tree.parent[member] >= 0:
                yield Transfer(
                    -level[member], channel, member, tree.parent[member], chunk, offset, size, True
                )
        for member in by_level:
            if tree.parent[member] >= 0:
                yield Transfer(
                    level[member], channel, tree.parent[member], member, chunk, offset, size, False
                )


def _pairwise(topology: Topology, plan: CollectivePlan, layout: Layout, slices: int) -> Program:
    """Every rank's messages to all others, each cut into chunks that follow one another."""
    gpus = tuple(topology.gpu_of_rank(rank) for rank in plan.ranks)
    ranks = layout.num_ranks
    message = plan.num_bytes // ranks
    chunks = -(-message // max(1, plan.chunk_bytes * plan.channels))
    pieces = max(1, _affordable(chunks, ranks * ranks * slices) * slices)
    builder = _Builder(topology, pieces, NCCL_STEPS)
    transfers = steps("pairwise", "all_to_all", ranks, max(plan.num_bytes, ranks))
    builder.add(transfers, [gpus], via_rail=True)
    return builder.program()


def _p2p(topology: Topology, plan: CollectivePlan, slices: int) -> Program:
    gpus = tuple(topology.gpu_of_rank(rank) for rank in plan.ranks)
    chunks = -(-plan.num_bytes // max(1, plan.chunk_bytes * plan.channels))
    builder = _Builder(topology, max(1, _affordable(chunks, slices) * slices), NCCL_STEPS)
    builder.add([Transfer(0, 0, 0, 1, 0, 0, max(1, plan.num_bytes), False)], [gpus], via_rail=True)
    return builder.program()


def _affordable(chunks: int, messages_per_chunk: int) -> int:
    return max(1, min(chunks, _MAX_MESSAGES // messages_per_chunk))
