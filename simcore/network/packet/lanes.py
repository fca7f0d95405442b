"""Lanes: connections with the messages that they carry, and how transfers become them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Final

from simcore.collectives.kinds import Transfer, split
from simcore.collectives.plan import CollectivePlan
from simcore.collectives.protocols import protocol_named
from simcore.hardware.topology import Topology
from simcore.records import dataclass
from simcore.units import ps_from_s

_START: Final = (0, 0, 0)


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
class MessageProgram:
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

    def program(self, queue_pairs: int = 1) -> MessageProgram:
        """All that has been added."""
        wire_ps, latency_ps, stored = max(self._when.values(), default=_START)
        return MessageProgram(
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
