"""Connections: queue pairs that cut messages into segments and may have to send slower than the line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from simcore.network.packet.port import Alarm
from simcore.network.packet.turns import URGENT, Line

if TYPE_CHECKING:
    from collections.abc import Callable

    from simcore.network.packet.port import Port
    from simcore.network.packet.roce import RateControl


class Connection:
    """A sender's messages to one receiver over a fixed route, delivered in order (a queue pair).

    ``segment_bytes`` is payload; ``wire_overhead`` wire bytes per byte of it.  ``overhead_ps``: from
    :meth:`send` to a message's first byte.  ``relay``: the hop at which a GPU on the way passes data on, as
    its own sender; 0: none.  ``control``: DCQCN's rate.
    ``answers``: the way back of an acknowledgement of ``ack_bytes``, until which a message counts as on its
    way.  ``pair_per_message``: each message waits for its turns in a queue pair of its own.  ``urgent``:
    before all others at the first port.
    """

    __slots__ = (
        "_ack_bytes", "_answers", "_limit", "_overhead_ps", "_pair_per_message", "_wire",
        "control", "is_paced", "lines", "ports", "segment_bytes",
    )  # fmt: skip

    def __init__(
        self,
        ports: Sequence[Port],
        segment_bytes: int,
        *,
        wire_overhead: float = 1.0,
        overhead_ps: int = 0,
        relay: int = 0,
        control: RateControl | None = None,
        answers: Connection | None = None,
        ack_bytes: int = 0,
        pair_per_message: bool = False,
        urgent: bool = False,
    ) -> None:
        self.ports = tuple(ports)
        self.segment_bytes = max(1, round(segment_bytes * wire_overhead))
        self.control = control
        self.is_paced = control is not None
        self._wire = wire_overhead
        self._overhead_ps = overhead_ps
        self._limit: float | None = None
        self._answers = answers
        self._ack_bytes = ack_bytes
        self._pair_per_message = pair_per_message
        self.lines = tuple(
            Line(URGENT if urgent else None) if hop in (0, relay) else port.line_from(self.ports[hop - 1])
            for hop, port in enumerate(self.ports)
        )
        self.ports[-1].ends_here = True

    def send(self, num_bytes: int, arrived: Callable[[], None]) -> None:
        """Queue a message; ``arrived`` is called when its last byte is there, or its acknowledgement here."""
        if self._answers is not None:
            arrived = partial(self._answers.send, self._ack_bytes, arrived)
        size = max(1, round(num_bytes * self._wire))
        if self._overhead_ps:
            clock = self.ports[0].env
            Alarm(clock, clock.now + self._overhead_ps, partial(self._post, size, arrived))
        else:
            self._post(size, arrived)

    def limit(self, bytes_per_ps: float | None) -> None:
        """Send no more than so many wire bytes/ps from the next segment on; None: no limit."""
        self._limit = bytes_per_ps
        self.is_paced = bytes_per_ps is not None or self.control is not None

    def gap_ps(self, num_bytes: int, now_ps: int) -> int:
        """How long after the begin of a segment, now, the next one may begin; 0: at once."""
        rate = self._limit
        if self.control is not None:
            allowed = self.control.limit(now_ps)
            if allowed is not None:
                self.control.sent(num_bytes)
                rate = allowed if rate is None else min(rate, allowed)
        return 0 if rate is None else round(num_bytes / rate)

    def marked(self, arrival_ps: int) -> None:
        """A marked segment arrives at ``arrival_ps``: the receiver may notify, over the way back."""
        control = self.control
        if control is not None and control.notifies(arrival_ps):
            clock = self.ports[0].env
            cut_ps = arrival_ps + sum(port.latency_ps for port in self.ports)
            Alarm(clock, cut_ps, lambda: control.cut(clock.now))

    def _post(self, size: int, arrived: Callable[[], None]) -> None:
        first = self.ports[0]
        line = self.lines[0]
        if self._pair_per_message:
            first.num_pairs += 1
            line = Line(first.num_pairs)
        first.push((self, 0, size, 0, arrived, False), line)
