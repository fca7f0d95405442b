"""The packet network: collectives as segments that queue at ports, the reference of the fidelity ladder.

Only wires and switches are modelled.  What ranks and their software spend before data moves (kernel start,
protocol flags) is not in it, beyond :attr:`PacketSettings.send_overhead_ps`; a plan's ``latency_ps`` and
``rate_cap_bytes_per_s`` are the fluid rung's words and are not read.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final

from simcore.clock import Clock
from simcore.collectives.plan import CollectivePlan
from simcore.errors import InputError
from simcore.hardware.topology import Topology
from simcore.network.packet.port import Connection, Port
from simcore.network.packet.program import Lane, Program, program_of
from simcore.network.packet.settings import PacketSettings
from simcore.units import ps_from_s

if TYPE_CHECKING:
    from simcore.network.flow import Endpoint, Flow

#: A buffer holds at least so many segments, however large they are.
_LEAST_SEGMENTS: Final = 4


class PacketNetwork:
    """Carries flows as packets; :class:`simcore.network.Network` of the finest grain.

    Members' HBM does not limit it and sees no load.  Errors: InputError for a link without bandwidth on a
    route, and for plans without messages between ranks (NVLS).
    """

    def __init__(self, clock: Clock, topology: Topology, settings: PacketSettings | None = None) -> None:
        self.settings = settings or PacketSettings()
        self._clock = clock
        self._topology = topology
        self._ports: dict[int, Port] = {}
        latency = topology.links.latency_s
        self._longest_s = float(latency.max()) if len(latency) else 0.0
        self._programs: dict[CollectivePlan, Program] = {}

    @property
    def ports(self) -> dict[int, Port]:
        """Ports used so far by link index."""
        return self._ports

    def start(self, flow: Flow) -> None:
        """Let the plan's first messages leave now; the flow fires when all have arrived."""
        flow.network = self
        program = self._program(flow.plan)
        if not program.lanes:
            flow.set(self._clock.now)
            return
        _Run(self, flow, program)

    def flow_due(self, flow: Flow) -> None:
        """A plan without messages is over at once."""
        flow.fire()

    def limit(self, flow: Flow, member: Endpoint, cap: float | None) -> None:
        """Members' HBM does not limit packets."""

    def finish(self, flow: Flow) -> None:
        """The last message of the flow has arrived."""
        flow.fire()
        for member in flow.members:
            member.refresh()

    def connect(self, lane: Lane, segment_bytes: int) -> Connection:
        """A connection over the lane's route, whose links' buffers hold at least four of its segments."""
        settings = self.settings
        ports = tuple(self._port(link) for link in lane.route)
        connection = Connection(
            ports,
            segment_bytes,
            wire_overhead=settings.wire_overhead,
            overhead_ps=settings.send_overhead_ps,
        )
        for port, link in zip(ports[:-1], lane.route, strict=False):
            port.widen(_LEAST_SEGMENTS * connection.segment_bytes * self._cables(link))
        return connection

    def _cables(self, link: int) -> int:
        """Physical links that ``link`` stands for, each with a buffer: as many as NICs could fill."""
        line = self._topology.cluster.nic_bytes_per_s
        return max(1, math.ceil(float(self._topology.links.bytes_per_s[link]) / line - 0.01))

    def _program(self, plan: CollectivePlan) -> Program:
        program = self._programs.get(plan)
        if program is None:
            program = self._programs[plan] = program_of(self._topology, plan, self.settings.slices)
        return program

    def _port(self, link: int) -> Port:
        port = self._ports.get(link)
        if port is None:
            links = self._topology.links
            rate = float(links.bytes_per_s[link])
            if not rate > 0.0:
                raise InputError(f"link {links.names[link]!r} has no bandwidth, but packets must cross it")
            # Credits must be back before they are needed: a round trip's content of the wire comes on top.
            room = self.settings.buffer_bytes * self._cables(link) + round(2.0 * self._longest_s * rate)
            latency = ps_from_s(float(links.latency_s[link]))
            port = Port(self._clock, rate, latency, room, self.settings.cut_through)
            self._ports[link] = port
        return port


class _Run:
    """One program being carried out."""

    def __init__(self, network: PacketNetwork, flow: Flow, program: Program) -> None:
        self._network = network
        self._flow = flow
        self._arrived: dict[int, int] = {}
        self._waiting: dict[int, list[_Sender]] = {}
        self._left = program.num_messages
        segment = network.settings.segment_for(sum(program.link_bytes.values()))
        senders = [_Sender(self, lane, network.connect(lane, segment)) for lane in program.lanes]
        for sender in senders:
            sender.go_on()

    def has(self, key: int, count: int, sender: _Sender) -> bool:
        """Whether ``count`` messages have arrived under ``key``; if not, ``sender`` hears of the next."""
        if self._arrived.get(key, 0) >= count:
            return True
        self._waiting.setdefault(key, []).append(sender)
        return False

    def landed(self, sender: _Sender, key: int) -> None:
        """A message of ``sender`` has arrived."""
        self._arrived[key] = self._arrived.get(key, 0) + 1
        self._left -= 1
        for waiting in self._waiting.pop(key, ()):
            waiting.waits = False
            waiting.go_on()
        sender.in_flight -= 1
        sender.go_on()
        if not self._left:
            self._network.finish(self._flow)


class _Sender:
    """A lane at work: sends as far as data and the receiver's slots allow."""

    __slots__ = ("_connection", "_position", "_run", "_sends", "_window", "in_flight", "waits")

    def __init__(self, run: _Run, lane: Lane, connection: Connection) -> None:
        self._run = run
        self._connection = connection
        self._sends = lane.sends
        self._window = lane.window
        self._position = 0
        self.in_flight = 0
        self.waits = False

    def go_on(self) -> None:
        """Send whatever may leave now."""
        while not self.waits and self.in_flight < self._window and self._position < len(self._sends):
            send = self._sends[self._position]
            if send.after_count and not self._run.has(send.after, send.after_count, self):
                self.waits = True
                return
            self._position += 1
            self.in_flight += 1
            self._connection.send(send.num_bytes, partial(self._run.landed, self, send.key))
