"""Ports: how segments cross the directed links of a topology, one event per hop.

A :class:`Port` feeds one cable of a directed link.  What waits there stands in lines, which take turns by
segment: a line for each connection that starts at the port (a NIC's queue pairs), and at a switch a line for
each input port (InfiniBand's and NVLink's arbiters), or one for all (an Ethernet switch's output queue).

Note [Flow control]
    Credits (InfiniBand, NVLink): a segment leaves only when the buffer at the cable's far end has room for
    it.  Room comes back when a segment leaves the next port, so that congestion spreads backwards.
    Pause frames (Ethernet): the far end counts what waits there; at ``xoff_bytes`` it has the port pause,
    at ``xon_bytes`` go on.  A frame acts one latency after it was sent; the level is compared when a
    segment's last byte leaves the sender, so that the frame is due one latency later for its way here, and
    one for its way back.
    What has arrived at its last hop is in memory, which takes everything.  Nothing is ever dropped.

Note [Early hand-over]
    A port hands a segment to the next one with the time from which that may send it (``ready``), instead of
    an event of its own for the arrival.  With cut-through this happens when the segment's first byte leaves,
    unless the next link is faster and would run dry; else when the last byte has left.  Order in a line is
    therefore the order of leaving the port before, which differs from the order of arrival only among links
    of unequal latency.  A port that has nothing else waits for a segment that is not there yet; one that
    comes meanwhile comes after it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from simpy.events import Event

from simcore.clock import Clock
from simcore.network.packet.turns import Line, Turns
from simcore.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from simcore.network.packet.connection import Connection
    from simcore.network.packet.roce import Marker

    Arrival = Callable[[], None]
    #: (connection, hop, bytes, earliest start in ps, what to call when its last byte has arrived, marked)
    Segment = tuple[Connection, int, int, int, Arrival | None, bool]

#: Credits of a port that pauses instead: more than ever waits.
_ENDLESS: Final = 1 << 62


class Alarm(Event):
    """Calls ``action`` at a time."""

    def __init__(self, clock: Clock, time_ps: int, action: Arrival) -> None:
        super().__init__(clock)
        self._ok = True
        self._value = None
        self.callbacks.append(lambda _: action())
        clock.schedule_at(self, time_ps)


@dataclass(frozen=True)
class Pause:
    """Thresholds of the buffer at a cable's far end, bytes."""

    xoff_bytes: int
    xon_bytes: int


class Port(Event):
    """The sending side of one cable: an event that happens whenever a segment's last byte leaves.

    ``room_bytes`` is the buffer at the far end.  ``pause``: pause frames instead of credits, and one line
    for all inputs.  ``marker`` marks what leaves (ECN).  ``sent_bytes`` counts wire bytes, ``busy_ps`` the
    time spent sending, ``starved_ps`` the time that it sent nothing for want of room at the far end or
    because of a pause, ``num_pauses`` how often it was paused, ``most_bytes`` the most that was on the wire
    and in the buffer at the far end.
    """

    env: Clock

    def __init__(
        self,
        clock: Clock,
        bytes_per_s: float,
        latency_ps: int,
        room_bytes: int,
        cut_through: bool = True,
        *,
        pause: Pause | None = None,
        marker: Marker | None = None,
    ) -> None:
        super().__init__(clock)
        self._ok = True
        self._value = None
        self._on_end = [self._end]
        self.ps_per_byte = 1e12 / bytes_per_s
        self.latency_ps = latency_ps
        self.sent_bytes = 0
        self.busy_ps = 0
        self.starved_ps = 0
        self.num_pauses = 0
        self.most_bytes = 0
        self.num_pairs = 0  # queue pairs made so far that have a message each
        self.ends_here = False  # whether some connection's last hop is this one
        self._cut_through = cut_through
        self._pause = pause
        self._marker = marker
        self._lines: dict[Port | None, Line] = {}
        self._turns = Turns()
        self._queued = 0
        self._credit = self._capacity = room_bytes if pause is None else _ENDLESS
        self._sending = False
        self._paused = False
        self._pause_sent = False  # what the far end said last
        self._orders = self._obeyed = 0  # orders to pause or go on, the latest carried out
        self._starved_since = -1
        self._current: Segment | None = None
        self._handed_over = False

    def widen(self, num_bytes: int) -> None:
        """Have a buffer of at least ``num_bytes`` at the far end."""
        if num_bytes > self._capacity:
            self._credit += num_bytes - self._capacity
            self._capacity = num_bytes

    def line_from(self, before: Port) -> Line:
        """Where segments wait that come in from ``before``."""
        source = None if self._pause is not None else before
        line = self._lines.get(source)
        if line is None:
            line = self._lines[source] = Line()
        return line

    def push(self, segment: Segment, line: Line) -> None:
        """Have a segment (or, at its first port, a whole message) wait in ``line``."""
        if segment[1]:
            self._queued += segment[2]
        if not line and not line.parked:
            self._turns.join(line)
        line.append(segment)
        if not self._sending and self._turns:
            self._start()

    def _start(self) -> None:
        clock = self.env
        turns = self._turns
        if self._paused:
            self._starve()
            return
        now = clock.now
        chosen = 0
        line = turns[0]
        connection, hop, size, ready, arrived, marked = line[0]
        last = hop + 1 == len(connection.ports)
        if ready > now or (not last and self._credit < min(size, connection.segment_bytes)):
            chosen = self._choose(now)
            if chosen < 0:
                self._starve()
                return
            line = turns[chosen]
            connection, hop, size, ready, arrived, marked = line[0]
            last = hop + 1 == len(connection.ports)
        if hop == 0 and size > connection.segment_bytes:
            size = connection.segment_bytes
        ports = connection.ports
        self._sending = True
        if self._starved_since >= 0:
            self.starved_ps += now - self._starved_since
            self._starved_since = -1
        turns.take(chosen)
        begin = max(now, ready)
        took = round(size * self.ps_per_byte)
        if hop:
            line.popleft()
            if self._marker is not None:
                marked = marked or self._marker.marks(self._queued, size)
            self._queued -= size
        else:
            rest = line[0][2] - size
            if rest:
                line[0] = (connection, 0, rest, ready, arrived, False)
                arrived = None
            else:
                line.popleft()
            if connection.is_paced:
                gap = connection.gap_ps(size, begin)
                if gap > took:
                    line.parked = True
                    Alarm(clock, begin + gap, partial(self._unpark, line))
        if line and not line.parked:
            turns.join(line)
        self.busy_ps += took
        self._current = (connection, hop, size, ready, arrived, marked)
        self.callbacks = self._on_end  # type: ignore[assignment]
        clock.schedule_at(self, begin + took)
        self._handed_over = False
        if not last:
            self._credit -= size
            following = ports[hop + 1]
            if self._cut_through and following.ps_per_byte >= self.ps_per_byte:
                self._handed_over = True
                onward = (connection, hop + 1, size, begin + self.latency_ps, arrived, marked)
                following.push(onward, connection.lines[hop + 1])

    def _end(self, _: Event) -> None:
        assert self._current is not None
        connection, hop, size, _ready, arrived, marked = self._current
        self.sent_bytes += size
        self._sending = False
        ports = connection.ports
        if hop + 1 < len(ports):
            if not self._handed_over:
                onward = (connection, hop + 1, size, self.env.now + self.latency_ps, arrived, marked)
                ports[hop + 1].push(onward, connection.lines[hop + 1])
            waiting = self._capacity - self._credit
            self.most_bytes = max(self.most_bytes, waiting)
            if self._pause is not None and not self._pause_sent and waiting >= self._pause.xoff_bytes:
                self.num_pauses += 1
                self._order_pause(True, 2 * self.latency_ps)
        else:
            if marked:
                connection.marked(self.env.now + self.latency_ps)
            if arrived is not None:
                Alarm(self.env, self.env.now + self.latency_ps, arrived)
        if hop:
            ports[hop - 1]._room_returns(size)
        if self._turns and not self._sending:
            self._start()

    def _room_returns(self, size: int) -> None:
        """A segment sent from here has left the buffer at the far end."""
        self._credit += size
        if self._pause_sent:
            assert self._pause is not None
            if self._capacity - self._credit <= self._pause.xon_bytes:
                self._order_pause(False, self.latency_ps)
        if self._starved_since >= 0 and not self._sending:
            self._start()

    # -- waiting ---------------------------------------------------------------------------------

    def _starve(self) -> None:
        if self._starved_since < 0:
            self._starved_since = self.env.now

    def _choose(self, now: int) -> int:
        """The first line in turn that may send, or the one that may soonest; -1: there is no room for any.

        What has been handed over early does not keep others waiting, see Note [Early hand-over].
        """
        best, soonest = -1, 0
        for number, line in enumerate(self._turns):
            connection, hop, size, ready, *_ = line[0]
            # A receiver takes whatever comes, a switch what it has room for.
            last = hop + 1 == len(connection.ports)
            if not last and self._credit < min(size, connection.segment_bytes):
                if not self.ends_here:
                    break
            elif ready <= now:
                return number
            elif best < 0 or ready < soonest:
                best, soonest = number, ready
        return best

    def _unpark(self, line: Line) -> None:
        line.parked = False
        if line:
            self._turns.join(line)
            if not self._sending:
                self._start()

    def _order_pause(self, pause: bool, delay_ps: int) -> None:
        """The far end orders to pause or to go on."""
        self._pause_sent = pause
        self._orders += 1
        Alarm(self.env, self.env.now + delay_ps, partial(self._obey, pause, self._orders))

    def _obey(self, pause: bool, order: int) -> None:
        if order < self._obeyed:
            return  # a pause for a segment that had left again before it had arrived: never sent
        self._obeyed = order
        self._paused = pause
        if pause:
            return
        if self._starved_since >= 0:
            self.starved_ps += self.env.now - self._starved_since
            self._starved_since = -1
        if self._turns and not self._sending:
            self._start()
