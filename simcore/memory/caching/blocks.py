"""Blocks of device memory, and those of one pool and stream that are free, by size."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from simcore.memory.caching.settings import BLOCK_BYTES, SMALL_BYTES
from simcore.records import dataclass

#: A free block's key is its size above its address: the best fit is the first key that is large enough.
ADDRESS_BITS: Final = 48


@dataclass(frozen=True)
class ExpandableSegment:
    """A range of addresses to which pages of ``page_bytes`` are mapped on demand."""

    address: int
    num_bytes: int
    page_bytes: int


class Block:
    """A stretch of a segment; neighbours are ``before`` and ``after``, None at the segment's ends.

    ``collectable_since``: calls of the pool when it became free, of which its age is counted.
    """

    __slots__ = (
        "address", "after", "allocated", "before", "collectable_since", "expandable", "mapped", "pool", "size"
    )  # fmt: skip

    def __init__(self, pool: Pool, address: int, size: int, expandable: ExpandableSegment | None = None):
        self.pool = pool
        self.address = address
        self.size = size
        self.before: Block | None = None
        self.after: Block | None = None
        self.allocated = False
        self.mapped = True
        self.expandable = expandable
        self.collectable_since = 0

    @property
    def is_split(self) -> bool:
        """Whether its segment has other blocks."""
        return self.before is not None or self.after is not None

    def put_between(self, before: Block | None, after: Block | None) -> None:
        """Become the neighbour of both."""
        self.before, self.after = before, after
        if before is not None:
            before.after = self
        if after is not None:
            after.before = self


class Pool:
    """Free blocks of one pool and stream; blocks of different pools or streams never meet.

    ``owner`` is 0, or the graph whose private pool it is.  ``splits_all``: blocks of any size are split
    where a single 512 bytes are left; else ``least_rest`` bytes must be.
    """

    __slots__ = (
        "blocks",
        "calls",
        "keys",
        "least_rest",
        "owner",
        "small",
        "splits_all",
        "stream",
        "unmapped",
    )

    def __init__(self, owner: int, small: bool, stream: int, splits_all: bool):
        self.owner = owner
        self.small = small
        self.stream = stream
        self.splits_all = splits_all
        self.least_rest = BLOCK_BYTES if splits_all else SMALL_BYTES + 1
        self.calls = 0
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: list[Block] = []  # by address

    def add(self, block: Block) -> None:
        """A block is free."""
        key = block.size << ADDRESS_BITS | block.address
        block.collectable_since = self.calls
        insort(self.keys, key)
        self.blocks[key] = block

    def remove(self, block: Block) -> None:
        """A block is free no longer."""
        key = block.size << ADDRESS_BITS | block.address
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[key]

    def add_unmapped(self, block: Block) -> None:
        """Addresses of a segment have no memory."""
        insort(self.unmapped, block, key=_address)

    def free_blocks(self) -> list[Block]:
        """All of them, the smallest first."""
        return [self.blocks[key] for key in self.keys]

    def merge(self, block: Block, neighbour: Block) -> None:
        """Let ``block``, in no list, take in a ``neighbour`` that is not in use, if mapped like it."""
        if neighbour.mapped != block.mapped:
            return
        if neighbour.mapped:
            self.remove(neighbour)
        else:
            self.unmapped.remove(neighbour)
        if block.before is neighbour:
            block.address = neighbour.address
            block.before = beyond = neighbour.before
            if beyond is not None:
                beyond.after = block
        else:
            block.after = beyond = neighbour.after
            if beyond is not None:
                beyond.before = block
        block.size += neighbour.size

    def merge_with_neighbours(self, block: Block) -> None:
        """Let ``block``, which is in no list, take in those beside it that are not in use."""
        for neighbour in (block.before, block.after):
            if neighbour is not None and not neighbour.allocated:
                self.merge(block, neighbour)


def _address(block: Block) -> int:
    return block.address
