"""NCCL's double binary tree: two trees over the same members, leaves of one are inner nodes of the other.

Each tree carries half of the data, so that every member forwards the same amount (Sanders, Speck, Traeff,
"Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; NCCL src/graph/trees.cc).
"""

from __future__ import annotations

from functools import cached_property, lru_cache

from simcore.records import dataclass


@dataclass(frozen=True)
class Tree:
    """A rooted tree over members ``0..n-1``; ``parent[root] == -1``."""

    parent: tuple[int, ...]

    @property
    def root(self) -> int:
        """The member without a parent."""
        return self.parent.index(-1)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of each member, in ascending order."""
        below: list[list[int]] = [[] for _ in self.parent]
        for member, parent in enumerate(self.parent):
            if parent >= 0:
                below[parent].append(member)
        return tuple(tuple(kids) for kids in below)

    @cached_property
    def level(self) -> tuple[int, ...]:
        """Edges between each member and the root."""
        levels = [-1] * len(self.parent)
        levels[self.root] = 0
        frontier = [self.root]
        while frontier:
            frontier = [child for member in frontier for child in self.children[member]]
            for child in frontier:
                levels[child] = levels[self.parent[child]] + 1
        return tuple(levels)

    @property
    def depth(self) -> int:
        """Edges on the longest way to the root."""
        return max(self.level)


def _in_order_parent(member: int, size: int) -> int:
    """Parent in the binary tree whose in-order walk is 1, 2, ..., size-1 below root 0.

    A member whose lowest set bit is ``bit`` sits between two members of the next level, ``bit`` away on
    either side; the one whose lowest set bit is ``2 * bit`` is its parent, unless it is out of range.
    """
    if member == 0:
        return -1
    bit = member & -member
    above = (member ^ bit) | (bit << 1)
    return above if above < size else member ^ bit


@lru_cache(maxsize=64)
def double_binary_tree(size: int) -> tuple[Tree, Tree]:
    """The two trees over ``size`` members: the second mirrors the first (even) or shifts it by one (odd)."""
    first = tuple(_in_order_parent(member, size) for member in range(size))
    if size % 2:
        moved = tuple((member + 1) % size for member in range(size))
    else:
        moved = tuple(size - 1 - member for member in range(size))
    second = [-1] * size
    for member, parent in enumerate(first):
        second[moved[member]] = -1 if parent < 0 else moved[parent]
    return Tree(first), Tree(tuple(second))
