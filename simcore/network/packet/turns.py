"""Who is next at a port: lines of waiting segments that take turns."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from simcore.network.packet.port import Segment

#: Order of a line that is served before all others (acknowledgements).
URGENT: Final = -1


class Line(deque["Segment"]):
    """Segments that wait at a port in order; ``parked`` while its connection's rate forbids the next.

    ``order``: None to queue up for each turn behind those who wait; else the line's place in a fixed cycle.
    """

    __slots__ = ("order", "parked")

    def __init__(self, order: int | None = None) -> None:
        super().__init__()
        self.order = order
        self.parked = False


class Turns(deque[Line]):
    """Lines in the order in which they will be served."""

    __slots__ = ("_served",)

    def __init__(self) -> None:
        super().__init__()
        self._served = 0

    def join(self, line: Line) -> None:
        """Have ``line`` wait for its turn: last, or at its place in the cycle from the one served last."""
        order = line.order
        if order is None:
            self.append(line)
        elif order == URGENT:
            self.appendleft(line)
        else:
            rank = self._rank(order)
            for place, other in enumerate(self):
                if other.order is not None and other.order != URGENT and self._rank(other.order) > rank:
                    self.insert(place, line)
                    return
            self.append(line)

    def take(self, place: int) -> None:
        """The line at ``place`` has its turn, and leaves."""
        order = self[place].order
        if order is not None and order != URGENT:
            self._served = order
        del self[place]

    def _rank(self, order: int) -> tuple[bool, int]:
        return order <= self._served, order
