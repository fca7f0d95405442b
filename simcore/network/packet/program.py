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

from simcore.collectives.algorithms import Transfer, hierarchical_all_to_all, split, steps
from simcore.collectives.layout import Layout, layout_of
from simcore.collectives.plan import CollectivePlan
from simcore.collectives.protocols import NCCL_STEPS, protocol_named
from simcore.collectives.rings import ring_order, tree_edges, tree_rotations
from simcore.collectives.tree import Tree
from simcore.errors import InputError
from simcore.hardware.topology import Topology
from simcore.units import ps_from_s

#: Messages of one program; beyond, chunks are put together, as it then has far more of them than steps.
_MAX_MESSAGES: Final = 600_000
#: Slices that a ring chunk of four buffer slots travels as under Simple (NCCL src/include/collectives.h).
RING_SLICES: Final = 2
_RING_SLOTS_PER_SLICE: Final = 2
_START: Final = (0, 0, 0)
IN_STEPS: Final = ("all_reduce", "all_gather", "reduce_scatter", "barrier")


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

    ``window``: messages that may be on their way at once, from the slots of the receiver's buffer.  ``ends``:
    (channel, source, destination), from which ECMP hashes.  ``relay``: the hop at which a GPU on the way
    sends data on (PXN), 0 for none.  ``wire_overhead``: wire bytes per byte, from the protocol.
    """

    route: tuple[int, ...]
    window: int
    ends: tuple[int, int, int] = (0, 0, 0)
    relay: int = 0
    wire_overhead: float = 1.0
    sends: list[Send] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Payload of all sends."""
        return sum(send.num_bytes for send in self.sends)


@dataclass(frozen=True)
class Program:
    """Lanes of one collective.

    ``queue_pairs``: NCCL's channels that a lane stands for, each a connection of its own between nodes.
    Of the longest chain of messages through the first loop, on idle wires: ``wire_ps`` all its time but the
    longest storing of one message, ``latency_ps`` latencies alone, ``stored_bytes`` what its members store
    before they pass it on, but for the largest message.
    """

    lanes: tuple[Lane, ...]
    queue_pairs: int = 1
    wire_ps: int = 0
    latency_ps: int = 0
    stored_bytes: int = 0

    @property
    def num_messages(self) -> int:
        """Messages of all lanes."""
        return sum(len(lane.sends) for lane in self.lanes)

    @property
    def link_bytes(self) -> dict[int, int]:
        """Payload that crosses each link, the algorithm's volume."""
        total: dict[int, int] = {}
        for lane in self.lanes:
            size = lane.num_bytes
            for link in lane.route:
                total[link] = total.get(link, 0) + size
        return total

    @property
    def message_hops(self) -> int:
        """Links that messages cross, all together."""
        return sum(len(lane.sends) * len(lane.route) for lane in self.lanes)


class Builder:
    """Turns transfers, given in an order that respects their steps, into lanes.

    ``stores``: each member stores a chunk before it passes it on, so that chunks fill a pipeline.
    """

    def __init__(
        self, topology: Topology, plan: CollectivePlan, slices: int, window: int, stores: bool
    ) -> None:
        self._topology = topology
        self._slices = slices
        self._window = window
        self._overhead = protocol_named(plan.protocol).wire_overhead
        self._stores = stores
        self._lanes: dict[tuple[int, int, int], Lane] = {}
        self._received: dict[tuple[int, int, int], int] = {}
        self._keys: dict[tuple[int, int, int], int] = {}
        self._last: dict[tuple[int, int], tuple[int, int]] = {}  # (channel, gpu) -> latest key, its count
        self._gate: dict[tuple[int, int], tuple[int, int]] = {}
        self._next_key = 0
        self._costs: dict[tuple[int, ...], tuple[int, float]] = {}  # route -> latency ps, ps per byte
        # key -> (when its last message arrives on idle wires, latency alone, bytes stored on the way)
        self._when: dict[int, tuple[int, int, int]] = {}
        self._largest = self._longest_store = 0
        self._first_loop = True

    def next_loop(self) -> None:
        """A channel begins its next loop when its rank has received the last of the one before."""
        self._gate = dict(self._last)
        self._received.clear()
        self._keys.clear()
        self._first_loop = False

    def add(self, transfers: Iterable[Transfer], gpus: Iterable[tuple[int, ...]], via_rail: bool) -> None:
        """Add transfers among members whose GPUs are ``gpus[channel][member]``."""
        of_channel = list(gpus)
        for transfer in transfers:
            members = of_channel[transfer.channel]
            src, dst = members[transfer.src], members[transfer.dst]
            lane = self.lane(transfer.channel, src, dst, via_rail)
            have = (src, transfer.channel, transfer.chunk)
            give = (dst, transfer.channel, transfer.chunk)
            count = self._received.get(have, 0)
            gate = self._gate.get((transfer.channel, src))
            base, given = self.key(have) if count else 0, self.key(give)
            for piece, (_, size) in enumerate(split(transfer.num_bytes, self._slices)):
                after = (base + piece, count) if count else gate or (0, 0)
                self.send(lane, Send(size, *after, given + piece))
            total = self._received[give] = self._received.get(give, 0) + 1
            self._last[transfer.channel, dst] = (given + self._slices - 1, total)

    def send(self, lane: Lane, send: Send) -> None:
        """Add one message; those that it comes after must have been added."""
        lane.sends.append(send)
        if self._first_loop:
            latency, ps_per_byte = self._cost(lane.route)
            stored = send.num_bytes if self._stores else 0
            self._largest = max(self._largest, stored)
            begin = self._when.get(send.after, _START) if send.after_count else _START
            store_ps = round(stored * ps_per_byte * lane.wire_overhead)
            self._longest_store = max(self._longest_store, store_ps)
            arrival = begin[0] + latency + store_ps, begin[1] + latency, begin[2] + stored
            self._when[send.key] = max(self._when.get(send.key, _START), arrival)

    def program(self, queue_pairs: int = 1) -> Program:
        """All that has been added."""
        wire_ps, latency_ps, stored = max(self._when.values(), default=_START)
        return Program(
            tuple(self._lanes.values()),
            max(1, queue_pairs),
            wire_ps - self._longest_store,
            latency_ps,
            stored - self._largest,
        )

    def key(self, data: tuple[int, int, int]) -> int:
        """The key of (rank, channel, piece of data), followed by one for each further slice."""
        key = self._keys.get(data)
        if key is None:
            key = self._keys[data] = self._next_key
            self._next_key += self._slices
        return key

    def lane(self, channel: int, src: int, dst: int, via_rail: bool) -> Lane:
        """The lane between two GPUs on a channel."""
        lane = self._lanes.get((channel, src, dst))
        if lane is None:
            first, second = rail_legs(self._topology, src, dst) if via_rail else ((), ())
            route = (*first, *second) if via_rail else self._topology.route(src, dst)
            relay = len(first) if second else 0
            lane = Lane(route, self._window, (channel, src, dst), relay, self._overhead)
            self._lanes[channel, src, dst] = lane
        return lane

    def half_lane(self, channel: int, gpu: int, link: int, wire_overhead: float) -> Lane:
        """The lane between a GPU and the switch of its node, over one link."""
        found = self._lanes.get((channel, gpu, -1 - link))
        if found is None:
            found = Lane((link,), self._window, (channel, gpu, gpu), 0, self._overhead * wire_overhead)
            self._lanes[channel, gpu, -1 - link] = found
        return found

    def _cost(self, route: tuple[int, ...]) -> tuple[int, float]:
        cost = self._costs.get(route)
        if cost is None:
            links = self._topology.links
            latency = sum(ps_from_s(float(links.latency_s[link])) for link in route)
            slowest = min((float(links.bytes_per_s[link]) for link in route), default=0.0)
            cost = self._costs[route] = latency, 1e12 / slowest if slowest > 0.0 else 0.0
        return cost


def rail_route(topology: Topology, src: int, dst: int) -> tuple[int, ...]:
    """Route of send/recv and all_to_all: with rail routing over the receiver's neighbour (PXN)."""
    first, second = rail_legs(topology, src, dst)
    return (*first, *second)


def rail_legs(topology: Topology, src: int, dst: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """:func:`rail_route` up to the neighbour and from there on; the second part is empty without one."""
    via = topology.relay(src, dst)
    first, second = topology.route(src, via), topology.route(via, dst)
    return (first, second) if first else (second, ())


def program_of(topology: Topology, plan: CollectivePlan, slices: int | None = None) -> Program:
    """The messages of ``plan``, chunked as the plan says; ``slices`` per chunk, None for NCCL's number.

    InputError for an algorithm that is not known here.
    """
    match plan.algorithm:
        case "none":
            return Program(())
        case "p2p":
            return _p2p(topology, plan, slices or 1)
        case "ring":
            return _ring(topology, plan, layout_of(topology, plan.ranks), slices)
        case "tree":
            return _tree(topology, plan, layout_of(topology, plan.ranks), slices or 1)
        case "pairwise":
            return _pairwise(topology, plan, layout_of(topology, plan.ranks), slices or 1)
        case "hierarchical":
            return _two_levels(topology, plan, layout_of(topology, plan.ranks), slices or 1)
        case "pat":
            return _pat(topology, plan, slices or 1)
        case "nvls" | "nvls_tree":
            from simcore.network.packet.nvls import nvls_program

            return nvls_program(topology, plan, layout_of(topology, plan.ranks))
    raise InputError(f"the packet network has no messages of {plan.algorithm!r}; force another algorithm")


def _ring(topology: Topology, plan: CollectivePlan, layout: Layout, slices: int | None) -> Program:
    rotations = layout.num_rings
    orders = [ring_order(layout, rotation) for rotation in range(rotations)]
    ranks = layout.num_ranks
    in_steps = plan.collective in IN_STEPS
    if slices is None:
        slices = RING_SLICES if plan.protocol == "Simple" and in_steps else 1
    window = NCCL_STEPS // _RING_SLOTS_PER_SLICE if in_steps else NCCL_STEPS
    builder = Builder(topology, plan, slices, window, stores=not in_steps)
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
    return builder.program(plan.channels // rotations)


def _tree(topology: Topology, plan: CollectivePlan, layout: Layout, slices: int) -> Program:
    """One channel per rotation and tree: a chain in each node, its head in one of two trees of nodes."""
    rotations = tree_rotations(layout)
    channels = 2 * rotations
    chunks = _affordable(plan.num_chunks, 2 * channels * layout.num_ranks * slices)
    gpus = tuple(gpu for members in layout.nodes for gpu in members)
    builder = Builder(topology, plan, slices, NCCL_STEPS, stores=True)
    for channel, (_, share) in enumerate(split(max(plan.num_bytes, 4), channels)):
        tree = _rank_tree(layout, channel // 2, channel % 2)
        builder.add(_tree_transfers(tree, channel, share, chunks), [gpus] * channels, via_rail=False)
    return builder.program(plan.channels // rotations)


def _rank_tree(layout: Layout, rotation: int, which: int) -> Tree:
    """Parents by position in the group, in the order of ``layout.nodes``."""
    position = {gpu: n for n, gpu in enumerate(gpu for gpus in layout.nodes for gpu in gpus)}
    parent = [-1] * layout.num_ranks
    for child, above in tree_edges(layout, rotation, which):
        parent[position[child]] = position[above]
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
    builder = Builder(topology, plan, pieces, NCCL_STEPS, stores=False)
    transfers = steps("pairwise", "all_to_all", ranks, max(plan.num_bytes, ranks))
    builder.add(transfers, [gpus], via_rail=True)
    return builder.program()


def _two_levels(topology: Topology, plan: CollectivePlan, layout: Layout, slices: int) -> Program:
    """Exchanges in each node, then along rails once a rank has the last message of its node."""
    gpus = tuple(gpu for members in layout.nodes for gpu in members)
    local = layout.max_per_node
    builder = Builder(topology, plan, slices, NCCL_STEPS, stores=False)
    transfers = list(hierarchical_all_to_all(len(gpus), max(plan.num_bytes, len(gpus)), ranks_per_node=local))
    builder.add((t for t in transfers if t.step < local - 1), [gpus], via_rail=False)
    builder.next_loop()
    builder.add((t for t in transfers if t.step >= local - 1), [gpus], via_rail=False)
    return builder.program(plan.channels)


def _p2p(topology: Topology, plan: CollectivePlan, slices: int) -> Program:
    gpus = tuple(topology.gpu_of_rank(rank) for rank in plan.ranks)
    chunks = -(-plan.num_bytes // max(1, plan.chunk_bytes * plan.channels))
    pieces = max(1, _affordable(chunks, slices) * slices)
    builder = Builder(topology, plan, pieces, NCCL_STEPS, stores=False)
    builder.add([Transfer(0, 0, 0, 1, 0, 0, max(1, plan.num_bytes), False)], [gpus], via_rail=True)
    return builder.program(plan.channels)


def _pat(topology: Topology, plan: CollectivePlan, slices: int) -> Program:
    """Binomial trees of all ranks at once; chunks that go the same way follow each other on one lane."""
    gpus = tuple(topology.gpu_of_rank(rank) for rank in plan.ranks)
    builder = Builder(topology, plan, slices, NCCL_STEPS, stores=False)
    transfers = steps("pat", plan.collective, len(gpus), max(plan.num_bytes, len(gpus)))
    builder.add(transfers, [gpus], via_rail=False)
    return builder.program(plan.channels)


def _affordable(chunks: int, messages_per_chunk: int) -> int:
    return max(1, min(chunks, _MAX_MESSAGES // messages_per_chunk))
