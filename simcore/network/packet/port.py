"""Ports and connections: how segments cross the directed links of a topology, one event per hop.

A :class:`Port` feeds one directed link.  It sends segments one after another, in the order in which they were
handed to it; connections that start there take turns, one segment each.  A segment leaves only when the
buffer at the link's far end has room for it (credits): where it has not, the port waits, whatever is queued
there.  Room comes back when a segment leaves the next port, so that congestion spreads backwards.  Nothing is
ever dropped.  The last link of a route ends in memory, which takes everything.

Note [Early hand-over]
    A port hands a segment to the next one with the time from which that may send it (``ready``), instead of
    an event of its own for the arrival.  With cut-through this happens when the segment's first byte leaves,
    unless the next link is faster and would run dry; else when the last byte has left.  Order in a queue is
    therefore the order of leaving the port before, which differs from the order of arrival only among links
    of unequal latency.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappush

from simpy.events import NORMAL, Event

from simcore.clock import Clock

Arrival = Callable[[], None]
#: (connection, hop, bytes, earliest start in ps, what to call when its last byte has arrived)
Segment = tuple["Connection", int, int, int, Arrival | None]


class Connection:
    """A sender's messages to one receiver over a fixed route, delivered in order (a queue pair)."""

    __slots__ = ("_active", "_overhead_ps", "_waiting", "_wire", "ports", "segment_bytes")

    def __init__(
        self, ports: tuple[Port, ...], segment_bytes: int, *, wire_overhead: float = 1.0, overhead_ps: int = 0
    ) -> None:
        self.ports = ports
        self.segment_bytes = max(1, round(segment_bytes * wire_overhead))
        self._wire = wire_overhead
        self._overhead_ps = overhead_ps
        self._waiting: deque[tuple[int, Arrival]] = deque()
        self._active = False

    def send(self, num_bytes: int, arrived: Arrival) -> None:
        """Queue a message; ``arrived`` is called when its last byte is at the receiver."""
        size = max(1, round(num_bytes * self._wire))
        if self._overhead_ps:
            clock = self.ports[0].env
            _Alarm(clock, clock.now + self._overhead_ps, partial(self._post, size, arrived))
        else:
            self._post(size, arrived)

    def _post(self, size: int, arrived: Arrival) -> None:
        if self._active:
            self._waiting.append((size, arrived))
        else:
            self._active = True
            self.ports[0].push((self, 0, size, 0, arrived))

    def next_message(self) -> Segment | None:
        """The message after the one whose last segment has just left its first port."""
        if not self._waiting:
            self._active = False
            return None
        size, arrived = self._waiting.popleft()
        return self, 0, size, 0, arrived


class _Alarm(Event):
    """Calls ``action`` at a time: a message leaves its sender, or its last byte reaches the receiver."""

    def __init__(self, clock: Clock, time_ps: int, action: Arrival) -> None:
        self._ok = True
        self._value = None
        self.callbacks = [lambda _: action()]
        heappush(clock._queue, (time_ps, NORMAL, next(clock._eid), self))


class Port(Event):
    """The sending side of one directed link: an event that happens whenever a segment's last byte leaves.

    ``room_bytes`` is the buffer at the link's far end.  ``sent_bytes`` counts wire bytes, ``busy_ps`` the
    time spent sending, ``starved_ps`` the time that something waited here for room at the far end.
    """

    env: Clock

    def __init__(
        self, clock: Clock, bytes_per_s: float, latency_ps: int, room_bytes: int, cut_through: bool = True
    ) -> None:
        self.env = clock
        self._ok = True
        self._value = None
        self._on_end = [self._end]
        self.ps_per_byte = 1e12 / bytes_per_s
        self.latency_ps = latency_ps
        self.sent_bytes = 0
        self.busy_ps = 0
        self.starved_ps = 0
        self._cut_through = cut_through
        self._queue: deque[Segment] = deque()
        self._credit = self._capacity = room_bytes
        self._sending = False
        self._starved_since = -1
        self._current: Segment | None = None
        self._handed_over = False

    def widen(self, num_bytes: int) -> None:
        """Have a buffer of at least ``num_bytes`` at the far end."""
        if num_bytes > self._capacity:
            self._credit += num_bytes - self._capacity
            self._capacity = num_bytes

    def push(self, segment: Segment) -> None:
        """Queue a segment (or, at its first port, a whole message)."""
        self._queue.append(segment)
        if not self._sending:
            self._start()

    def _start(self) -> None:
        connection, hop, size, ready, arrived = self._queue[0]
        rest = 0
        if hop == 0 and size > connection.segment_bytes:
            rest = size - connection.segment_bytes
            size = connection.segment_bytes
        clock = self.env
        ports = connection.ports
        following = ports[hop + 1] if hop + 1 < len(ports) else None
        if following is not None:  # a receiver takes whatever comes, a switch what it has room for
            if self._credit < size:
                if self._starved_since < 0:
                    self._starved_since = clock.now
                return
            self._credit -= size
        self._sending = True
        queue = self._queue
        queue.popleft()
        if rest:
            queue.append((connection, 0, rest, ready, arrived))
            arrived = None
        elif hop == 0:
            message = connection.next_message()
            if message is not None:
                queue.append(message)
        begin = max(clock.now, ready)
        took = round(size * self.ps_per_byte)
        self.busy_ps += took
        self._current = (connection, hop, size, ready, arrived)
        self.callbacks = self._on_end  # type: ignore[assignment]
        heappush(clock._queue, (begin + took, NORMAL, next(clock._eid), self))
        early = following is not None and self._cut_through and following.ps_per_byte >= self.ps_per_byte
        self._handed_over = early
        if early:
            assert following is not None
            following.push((connection, hop + 1, size, begin + self.latency_ps, arrived))

    def _end(self, _: Event) -> None:
        assert self._current is not None
        connection, hop, size, _ready, arrived = self._current
        self.sent_bytes += size
        self._sending = False
        ports = connection.ports
        if hop + 1 < len(ports):
            if not self._handed_over:
                ready = self.env.now + self.latency_ps
                ports[hop + 1].push((connection, hop + 1, size, ready, arrived))
        elif arrived is not None:
            _Alarm(self.env, self.env.now + self.latency_ps, arrived)
        if hop:
            ports[hop - 1]._credit_returns(size)
        if self._queue and not self._sending:
            self._start()

    def _credit_returns(self, size: int) -> None:
        """A segment sent from here has left the buffer at the far end."""
        self._credit += size
        if self._starved_since >= 0 and not self._sending:
            self.starved_ps += self.env.now - self._starved_since
            self._starved_since = -1
            self._start()
