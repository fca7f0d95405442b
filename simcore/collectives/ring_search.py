"""Rings inside a node without a switch: as many as its wires feed, found as NCCL finds them.

Note [Ring search]
    For one speed after the other, fastest first, rings are laid through the node one by one; each takes its
    speed from every link on its way, and the next has to make do with what is left.  Where a ring cannot be
    closed the search goes back and tries another way, up to a number of steps (NCCL limits time).  A ring is
    taken in both directions if there is room.  The best is the largest bandwidth of all rings together, then
    the fewest (src/graph/search.cc, ncclTopoSearchRec and ncclTopoCompute).  NVLinks of a pair count
    together, and halves of a link's capacity are tried too: four fully joined GPUs are only used up by six
    rings of half a pair each.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from simcore.elementary import plain_sum
from simcore.hardware.node import NodeLinks, Way
from simcore.records import dataclass

_MAX_RINGS: Final = 16
_MAX_STEPS: Final = 20_000
#: Parts of a link that a ring may take.
_PARTS: Final = (1, 2)
#: Relative slack of sums of capacities.
_SLACK: Final = 1e-9

Order = tuple[int, ...]


@dataclass(frozen=True)
class NodeRings:
    """Rings through some GPUs of a node: local indices in ring order, each of ``bytes_per_s``."""

    orders: tuple[Order, ...]
    bytes_per_s: float

    @property
    def total_bytes_per_s(self) -> float:
        """Bandwidth of all rings together."""
        return len(self.orders) * self.bytes_per_s


@lru_cache(maxsize=512)
def find_rings(node: NodeLinks, members: Order) -> NodeRings:
    """Rings through ``members`` (local indices, at least one) of ``node``; see Note [Ring search]."""
    if len(members) == 1:
        return NodeRings((members,), float("inf"))
    search = _Search(node, members)
    best = NodeRings((members,), search.slowest(members))
    for speed in search.speeds():
        orders = search.rings_of(speed)
        if len(orders) * speed > best.total_bytes_per_s * (1 + _SLACK):
            best = NodeRings(orders, speed)
        if best.total_bytes_per_s >= search.limit * (1 - _SLACK):
            break
    return best


def disjoint_paths(node: NodeLinks, members: Order) -> tuple[Order, ...]:
    """As many paths through all ``members`` as there are members, which use each link once.

    Each begins and each ends with another member.  Empty unless links of their own join all pairs, and their
    number is even: zigzag paths, each turned by one, are a row-complete Latin square (Williams 1949).
    """
    size = len(members)
    if size % 2 or not all(node.is_joined(src, dst) for src in members for dst in members if src != dst):
        return ()
    zigzag = [(k + 1) // 2 if k % 2 else -k // 2 for k in range(size)]
    return tuple(tuple(members[(step + turn) % size] for step in zigzag) for turn in range(size))


class _Search:
    def __init__(self, node: NodeLinks, members: Order) -> None:
        self._members = members
        self._ways: dict[tuple[int, int], Way] = {
            (src, dst): node.route(src, dst) for src in members for dst in members if src != dst
        }
        self._capacity: list[float] = node.bytes_per_s.tolist()
        #: What leaves the GPU with the least: no rings can carry more.
        self.limit = min(
            plain_sum(
                self._capacity[link] for link in {self._ways[src, dst][0] for dst in members if dst != src}
            )
            for src in members
        )

    def speeds(self) -> list[float]:
        """What ways between two members carry, and parts of it, descending."""
        widths = {min(self._capacity[link] for link in way) for way in self._ways.values()}
        return sorted({width / part for width in widths for part in _PARTS}, reverse=True)

    def slowest(self, order: Order) -> float:
        """What a ring alone carries: links that it crosses k times give it a k-th."""
        crossings: dict[int, int] = {}
        for link in self._links(order):
            crossings[link] = crossings.get(link, 0) + 1
        return min(self._capacity[link] / count for link, count in crossings.items())

    def rings_of(self, speed: float) -> tuple[Order, ...]:
        """The most rings of ``speed``."""
        self._left = list(self._capacity)
        self._need = speed * (1 - _SLACK)
        self._speed = speed
        self._steps = _MAX_STEPS
        self._best: tuple[Order, ...] = ()
        self._next_ring(())
        return self._best

    def _next_ring(self, found: tuple[Order, ...]) -> bool:
        """Add rings to ``found``.  True when no more can be hoped for."""
        if len(found) > len(self._best):
            self._best = found
        if len(found) >= _MAX_RINGS or len(self._best) * self._speed >= self.limit * (1 - _SLACK):
            return True
        return self._extend((self._members[0],), found)

    def _extend(self, order: Order, found: tuple[Order, ...]) -> bool:
        """Lengthen a ring that is not closed yet; its links are already taken."""
        self._steps -= 1
        if self._steps < 0:
            return True
        if len(order) == len(self._members):
            closing = self._ways[order[-1], order[0]]
            if not self._take(closing):
                return False
            done = self._closed(order, found)
            self._give(closing)
            return done
        for member in self._nearest(order):
            way = self._ways[order[-1], member]
            if self._take(way):
                done = self._extend((*order, member), found)
                self._give(way)
                if done:
                    return True
        return False

    def _closed(self, order: Order, found: tuple[Order, ...]) -> bool:
        backwards = (order[0], *order[:0:-1])
        links = self._links(backwards)
        if backwards != order and len(found) + 2 <= _MAX_RINGS and self._take(links):
            done = self._next_ring((*found, order, backwards))
            self._give(links)
            return done
        return self._next_ring((*found, order))

    def _nearest(self, order: Order) -> list[int]:
        """Members still to come: over few links first, then over wide ones."""
        left = [member for member in self._members if member not in order]

        def distance(member: int) -> tuple[int, float, int]:
            way = self._ways[order[-1], member]
            return len(way), -min(self._left[link] for link in way), member

        return sorted(left, key=distance)

    def _links(self, order: Order) -> Way:
        pairs = zip(order, (*order[1:], order[0]), strict=True)
        return tuple(link for pair in pairs for link in self._ways[pair])

    def _take(self, links: Way) -> bool:
        """Take the speed from all of ``links``, or nothing."""
        for taken, link in enumerate(links):
            if self._left[link] < self._need:
                self._give(links[:taken])
                return False
            self._left[link] -= self._speed
        return True

    def _give(self, links: Way) -> None:
        for link in links:
            self._left[link] += self._speed
