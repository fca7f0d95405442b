"""From links to ports: cables, the ways of connections over them, and what each transport has at a port."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from simcore.clock import Clock
from simcore.collectives.kinds import split
from simcore.errors import InputError
from simcore.hardware.topology import Topology
from simcore.network.packet.connection import Connection
from simcore.network.packet.port import Pause, Port
from simcore.network.packet.roce import Marker, RateControl
from simcore.network.packet.settings import PacketSettings
from simcore.units import ps_from_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from simcore.network.packet.lanes import Lane

#: A buffer holds at least so many segments, however large they are.
_LEAST_SEGMENTS: Final = 4
_MASK: Final = (1 << 64) - 1


class Channel:
    """Queue pairs that carry one lane's messages together, each a part of every message."""

    def __init__(self, connections: tuple[Connection, ...]) -> None:
        self.connections = connections

    def send(self, num_bytes: int, arrived: Callable[[], None]) -> None:
        """Send a message; ``arrived`` is called when its last part is there."""
        if len(self.connections) == 1:
            self.connections[0].send(num_bytes, arrived)
            return
        parts = [size for _, size in split(num_bytes, len(self.connections)) if size] or [num_bytes]
        left = len(parts)

        def part_arrived() -> None:
            nonlocal left
            left -= 1
            if not left:
                arrived()

        for connection, size in zip(self.connections, parts, strict=False):
            connection.send(size, part_arrived)

    def limit(self, bytes_per_ps: float | None) -> None:
        """Send no more than so many wire bytes/ps, all together."""
        share = None if bytes_per_ps is None else bytes_per_ps / len(self.connections)
        for connection in self.connections:
            connection.limit(share)


class Wiring:
    """Makes ports on demand.  ``ports`` by (link, cable); without hashing a link is one port, cable 0."""

    def __init__(self, clock: Clock, topology: Topology, settings: PacketSettings) -> None:
        self.ports: dict[tuple[int, int], Port] = {}
        self._clock = clock
        self._topology = topology
        self._settings = settings
        self._random = random.Random(settings.seed)
        latency = topology.links.latency_s
        self._longest_s = float(latency.max()) if len(latency) else 0.0

    def channel(self, lane: Lane, segment_bytes: int, queue_pairs: int, stretch: float = 1.0) -> Channel:
        """The connections of a lane: one, or ``queue_pairs`` where each may take another cable.

        ``stretch``: wire time that each byte takes, beyond what protocol and headers add.
        """
        settings = self._settings
        several = settings.hashes_paths and any(self.cables(link) > 1 for link in lane.route)
        overhead = settings.wire_overhead * lane.wire_overhead * stretch
        pairs = range(queue_pairs if several else 1)
        return Channel(tuple(self._connection(lane, segment_bytes, pair, overhead) for pair in pairs))

    def cables(self, link: int) -> int:
        """Physical links that ``link`` stands for, each with a buffer."""
        return int(self._topology.links.cables[link])

    def _connection(self, lane: Lane, segment_bytes: int, pair: int, wire_overhead: float) -> Connection:
        settings = self._settings
        outside = [hop for hop, link in enumerate(lane.route) if not self._topology.is_inside(link)]
        cable = dict.fromkeys(range(len(lane.route)), 0)
        if settings.hashes_paths:
            for place, hop in enumerate(outside):
                # The way up decides the way down: the n-th uplink and the n-th downlink are one spine's.
                tier = min(place, len(outside) - 1 - place)
                # NCCL deals its channels to the NICs of a GPU (tier 0) in turn.
                chosen = _mix((settings.seed, *lane.ends, pair, tier)) if tier else pair
                cable[hop] = chosen % self.cables(lane.route[hop])
        ports = [self._port(link, cable[hop]) for hop, link in enumerate(lane.route)]
        control = None
        if outside and settings.transport == "roce" and settings.roce.dcqcn:
            control = RateControl(settings.roce, 1.0 / ports[outside[0]].ps_per_byte)
        connection = Connection(
            ports,
            segment_bytes,
            wire_overhead=wire_overhead,
            overhead_ps=settings.send_overhead_ps,
            relay=lane.relay,
            control=control,
            answers=self._answers(lane) if settings.ack_bytes else None,
            ack_bytes=settings.ack_bytes,
            pair_per_message=settings.pair_per_message,
        )
        for port, link in zip(ports[:-1], lane.route, strict=False):
            cables = 1 if settings.hashes_paths else self.cables(link)
            port.widen(_LEAST_SEGMENTS * connection.segment_bytes * cables)
        return connection

    def _answers(self, lane: Lane) -> Connection:
        """The way back of acknowledgements, over the first cable of each link."""
        _, src, dst = lane.ends
        ports = [self._port(link, 0) for link in self._topology.route(dst, src)]
        return Connection(ports, self._settings.segment_bytes, urgent=True)

    def _port(self, link: int, cable: int) -> Port:
        port = self.ports.get((link, cable))
        if port is None:
            port = self.ports[link, cable] = self._made(link)
        return port

    def _made(self, link: int) -> Port:
        settings, links = self._settings, self._topology.links
        rate = float(links.bytes_per_s[link])
        if not rate > 0.0:
            raise InputError(f"link {links.names[link]!r} has no bandwidth, but packets must cross it")
        cables = self.cables(link)
        if settings.hashes_paths:
            rate, cables = rate / cables, 1
        # Credits must be back before they are needed: a round trip's content of the wire comes on top.
        room = settings.buffer_bytes * cables + round(2.0 * self._longest_s * rate)
        pause = marker = None
        if settings.transport == "roce" and not self._topology.is_inside(link):
            roce = settings.roce
            if roce.pfc:
                pause = Pause(roce.pfc_xoff_bytes * cables, roce.pfc_xon_bytes * cables)
            else:
                pause = Pause(1 << 62, 0)
            if roce.dcqcn:
                marker = Marker(roce, rate, settings.packet_bytes, self._random)
        latency = ps_from_s(float(links.latency_s[link]))
        return Port(self._clock, rate, latency, room, settings.cut_through, pause=pause, marker=marker)


def _mix(numbers: tuple[int, ...]) -> int:
    """A hash of integers that is the same everywhere (splitmix64, Steele et al. 2014)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state
