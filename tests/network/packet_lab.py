"""Ports on one clock, by hand: wires of 1 byte per ns (1e9 bytes/s) and latencies in ns."""

from simcore.clock import Clock
from simcore.network.packet import Connection, Port

NS = 1000  # ps


class Lab:
    """Ports on one clock, and when messages arrived, in ns."""

    def __init__(self):
        self.clock = Clock()
        self.arrived = {}

    def port(self, bytes_per_ns=1.0, latency_ns=0, room=10**9, cut_through=True, **kw):
        return Port(self.clock, bytes_per_ns * 1e9, latency_ns * NS, room, cut_through, **kw)

    def send(self, name, size, *ports, segment=100, **kw):
        Connection(ports, segment, **kw).send(size, lambda: self.note(name))

    def note(self, name):
        self.arrived[name] = self.clock.now / NS

    def run(self):
        self.clock.drain()
        return self.arrived
