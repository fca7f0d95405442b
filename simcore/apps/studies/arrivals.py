"""How long a schedule takes alone: messages that wait for one another at ports, in one representative part.

NCCL rotates its channels over the GPUs of a node, so the GPUs of a node see the same traffic a rotation
apart, and nodes see what other nodes at the same place of the pattern see.  One NVLink port and one NIC per
node therefore stand for all of them (Note [Folding a schedule] in :mod:`.wire`), and a ring
over 128 GPUs takes a few thousand messages where packets take millions of segments.  Connections that start
at one port share it equally, as ports that take turns do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from heapq import heappop, heappush

from simcore.records import dataclass


@dataclass(frozen=True)
class PortMessage:
    """Leaves when ``after_count`` messages have arrived under ``after``; arrives under ``key``."""

    num_bytes: float
    after: int
    after_count: int
    key: int


@dataclass
class PortLane:
    """A connection over ``ports``: its messages leave in order, ``window`` at once at most.

    All ports serve a message at the same time, as with cut-through; it arrives ``latency_s`` after the last
    of them has passed its last byte.  The next one may follow once the first port is free of it.
    """

    ports: tuple[int, ...]
    latency_s: float
    window: int
    messages: list[PortMessage] = field(default_factory=list)


def arrivals_s(
    bytes_per_s: Sequence[float], lanes: Sequence[PortLane], early: int | None = None
) -> tuple[float, float]:
    """Seconds until every lane's first ``early`` messages have arrived, and until all have.

    ``bytes_per_s`` are the rates of the ports; ``early`` None: all.  Lanes that wait for messages which never
    come are left waiting: the times are those of messages that did.
    """
    return _Playing(bytes_per_s, lanes, early).play()


_ARRIVES, _LEAVES = 0, 1


class _Playing:
    def __init__(self, bytes_per_s: Sequence[float], lanes: Sequence[PortLane], early: int | None) -> None:
        self._lanes = lanes
        self._early = early
        self._early_s = 0.0
        count = len(bytes_per_s)
        self._rate = bytes_per_s
        # Bytes that each connection at the port has been served since the start, as of ``_since``.
        self._served = [0.0] * count
        self._since = [0.0] * count
        # (bytes served at its end, lane, message) of what is at each port
        self._busy: list[list[tuple[float, int, int]]] = [[] for _ in range(count)]
        self._version = [0] * count
        self._queue: list[tuple[float, int, int, int, int]] = []
        self._number = 0
        self._passing: dict[tuple[int, int], int] = {}  # (lane, message) -> ports that still serve it
        self._arrived: dict[int, int] = {}
        self._waiting: dict[int, list[int]] = {}
        self._next = [0] * len(lanes)
        self._landed = [0] * len(lanes)
        self._sending = [False] * len(lanes)
        self._now = 0.0

    def play(self) -> tuple[float, float]:
        for lane in range(len(self._lanes)):
            self._go_on(lane)
        end = 0.0
        while self._queue:
            self._now, _, what, subject, version = heappop(self._queue)
            if what == _ARRIVES:
                end = self._now
                self._land(subject)
            elif version == self._version[subject]:
                self._leave(subject)
        return (end if self._early is None else self._early_s), end

    def _go_on(self, number: int) -> None:
        """Start the lane's next message if it may leave now."""
        lane, at = self._lanes[number], self._next[number]
        if self._sending[number] or at == len(lane.messages) or at - self._landed[number] >= lane.window:
            return
        message = lane.messages[at]
        if self._arrived.get(message.after, 0) < message.after_count:
            self._waiting.setdefault(message.after, []).append(number)
            return
        self._sending[number] = True
        if len(lane.ports) > 1:
            self._passing[number, at] = len(lane.ports)
        for port in lane.ports:
            self._advance(port)
            heappush(self._busy[port], (self._served[port] + message.num_bytes, number, at))
            self._schedule(port)

    def _advance(self, port: int) -> None:
        busy = len(self._busy[port])
        if busy:
            self._served[port] += (self._now - self._since[port]) * self._rate[port] / busy
        self._since[port] = self._now

    def _schedule(self, port: int) -> None:
        self._version[port] += 1
        busy = self._busy[port]
        if busy:
            left = max(0.0, busy[0][0] - self._served[port])
            self._push(self._now + left * len(busy) / self._rate[port], _LEAVES, port, self._version[port])

    def _push(self, time: float, what: int, subject: int, version: int) -> None:
        self._number += 1
        heappush(self._queue, (time, self._number, what, subject, version))

    def _leave(self, port: int) -> None:
        """The last byte of the message that needed least has left, and of those that needed as much."""
        self._advance(port)
        busy = self._busy[port]
        edge = busy[0][0] * (1.0 + 1e-12)
        done = []
        while busy and busy[0][0] <= edge:
            done.append(heappop(busy))
        for _, number, at in done:
            lane = self._lanes[number]
            left = self._passing.get((number, at), 1) - 1
            if left:
                self._passing[number, at] = left
            else:
                self._passing.pop((number, at), None)
                self._push(self._now + lane.latency_s, _ARRIVES, number, 0)
            if port == lane.ports[0]:
                self._next[number] += 1
                self._sending[number] = False
        for _, number, _ in done:
            self._go_on(number)
        self._schedule(port)

    def _land(self, number: int) -> None:
        key = self._lanes[number].messages[self._landed[number]].key
        self._landed[number] += 1
        if self._landed[number] == self._early:
            self._early_s = self._now
        self._arrived[key] = self._arrived.get(key, 0) + 1
        for waiting in self._waiting.pop(key, ()):
            self._go_on(waiting)
        self._go_on(number)
