"""PyTorch's caching allocator on one device: which blocks requests get, and what the device is asked for.

Note [Caching allocator]
    A request is rounded to 512 bytes (or to a step between powers of two) and served from the free blocks
    of its pool and stream: the smallest that is large enough, of equal ones the lowest address.  What is left
    of a block is split off if it has at least 512 bytes (small pool, expandable segments) or more than 1 MiB.
    If none is free, a segment is asked of the device: 2 MiB up to 1 MiB, 20 MiB below 10 MiB, whole 2 MiB
    above.  A block that is freed joins its free neighbours.  If the device is full, blocks too large to be
    split and then all free segments are given back, and the request is tried again.  Graphs that are captured
    have pools of their own, which are never given back.

    Facts are those of c10/cuda/CUDACachingAllocator.cpp (``malloc``, ``get_free_block``, ``should_split``,
    ``alloc_block``, ``free_block``, ``try_merge_blocks``, ``garbage_collect_cached_blocks``,
    ``release_available_cached_blocks``, ``release_blocks``).  Assumed: the device gives segments ascending
    addresses, which decides only between free blocks of equal size.  A block that another stream has used
    (``record_stream``) is free when that stream has passed: whoever plays says when.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

from simcore.memory.caching.blocks import ADDRESS_BITS, Block, ExpandableSegment, Pool
from simcore.memory.caching.expandable import mapped_block, unmapped_bytes
from simcore.memory.caching.settings import (
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorSettings,
)

#: Addresses that an expandable segment spans where the device's size is not known.
_UNKNOWN_DEVICE: Final = 1 << 40

#: (what, address, bytes, stream) as PyTorch's memory history names it: "alloc", "free_completed",
#: "segment_alloc", "segment_free", "segment_map", "segment_unmap".
HistoryEntry = tuple[str, int, int, int]


class DeviceFullError(Exception):
    """The device cannot give ``requested`` more bytes, whatever is released."""

    def __init__(self, requested: int):
        super().__init__(f"{requested} bytes")
        self.requested = requested


class CachingAllocator:
    """One device's memory; see Note [Caching allocator].

    ``capacity_bytes``: what the device can give (None: anything).  ``history`` is appended to, if given.
    ``allocated`` and ``reserved`` are bytes in blocks handed out, and of all segments, now.
    """

    def __init__(
        self, settings: AllocatorSettings | None = None, capacity_bytes: int | None = None,
        history: list[HistoryEntry] | None = None,
    ):  # fmt: skip
        self.settings = settings or AllocatorSettings()
        self.capacity_bytes = capacity_bytes
        self.history = history
        self.allocated = 0
        self.reserved = 0
        self.num_segments = 0
        self.num_retries = 0
        self._sizes: dict[int, int] = {}
        self._pools: dict[tuple[int, bool, int], Pool] = {}
        self._next_address = 0
        fraction, device = self.settings.memory_fraction, capacity_bytes or 0
        self._allowed = int(fraction * device) if fraction and capacity_bytes is not None else None
        self._collects = self._allowed is not None and self.settings.garbage_collection_threshold > 0
        self._max_split = self.settings.max_split_bytes or 1 << 62

    def malloc(self, num_bytes: int, stream: int = 0, owner: int = 0) -> Block:
        """A block of at least ``num_bytes`` for ``stream``, from the private pool of graph ``owner`` if any.

        DeviceFullError where there is none, after all that could be released was.
        """
        size = self._sizes.get(num_bytes) or self._rounded(num_bytes)
        pool = self._pools.get((owner, size <= SMALL_BYTES, stream)) or self._new_pool(owner, size, stream)
        block = self._free_block(pool, size) or self._new_block(pool, size)
        rest = block.size - size
        if rest >= pool.least_rest and (size < self._max_split or pool.splits_all):
            left = Block(pool, block.address, size, block.expandable)
            left.put_between(block.before, block)
            block.address += size
            block.size = rest
            pool.add(block)
            block = left
        block.allocated = True
        self.allocated += block.size
        if self.history is not None:
            self.history.append(("alloc", block.address, num_bytes, stream))
        return block

    def free(self, block: Block) -> None:
        """Take a block back."""
        block.allocated = False
        self.allocated -= block.size
        pool, before, after = block.pool, block.before, block.after
        if self.history is not None:
            self.history.append(("free_completed", block.address, block.size, pool.stream))
        if before is not None and not before.allocated:
            pool.merge(block, before)
        if after is not None and not after.allocated:
            pool.merge(block, after)
        pool.add(block)

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``: give back what is not in use, but for private pools."""
        for small in (False, True):
            for pool in self._shared_pools(small):
                self._release_free(pool)

    def free_blocks(self) -> Iterator[Block]:
        """Blocks that are cached."""
        for pool in self._pools.values():
            yield from pool.free_blocks()

    def segments(self, live: Iterable[Block]) -> list[list[Block]]:
        """All blocks by segment (of expandable ones by mapped stretch), ascending; ``live``: those in use."""
        heads = [
            block for block in (*self.free_blocks(), *live) if block.before is None or not block.before.mapped
        ]
        found: list[list[Block]] = []
        for head in sorted(heads, key=lambda block: block.address):
            found.append([])
            block: Block | None = head
            while block is not None and block.mapped:
                found[-1].append(block)
                block = block.after
        return found

    def _rounded(self, num_bytes: int) -> int:
        size = self._sizes[num_bytes] = self.settings.rounded(num_bytes)
        return size

    def _new_pool(self, owner: int, size: int, stream: int) -> Pool:
        small = size <= SMALL_BYTES
        pool = Pool(owner, small, stream, small or self.settings.expandable_segments)
        self._pools[owner, small, stream] = pool
        return pool

    def _shared_pools(self, small: bool) -> list[Pool]:
        """Of all streams, in their order."""
        found = [pool for pool in self._pools.values() if pool.small == small and not pool.owner]
        return sorted(found, key=lambda pool: pool.stream)

    def _free_block(self, pool: Pool, size: int) -> Block | None:
        """The best fit among the free blocks, taken out of their list."""
        if self._collects:
            for one in self._pools.values():
                one.calls += one.owner == pool.owner and one.small == pool.small
        keys = pool.keys
        at = bisect_left(keys, size << ADDRESS_BITS)
        if at == len(keys):
            return None
        block = pool.blocks[keys[at]]
        if block.expandable is not None:
            # What can grow counts as large as it can become: a block that cannot may fit better.
            while at + 1 < len(keys):
                following = pool.blocks[keys[at + 1]]
                if _expandable_size(following) >= _expandable_size(block):
                    break
                at, block = at + 1, following
        if size < self._max_split <= block.size:
            return None
        if size >= self._max_split and block.size >= size + self.settings.max_non_split_rounding_bytes:
            return None
        del pool.blocks[keys[at]]
        del keys[at]
        return block

    def _new_block(self, pool: Pool, size: int) -> Block:
        """Of a new segment; DeviceFullError where there is no room for one."""
        if self._collects:
            self._collect_garbage()
        block = self._asked(pool, size)
        splits_any = not self.settings.max_split_bytes or self.settings.expandable_segments
        if block is None and not splits_any and self._release_oversize(pool, size):
            block = self._asked(pool, size)
        if block is None and not pool.owner:  # nothing is released while a graph is captured
            self.empty_cache()
            self.num_retries += 1
            block = self._asked(pool, size)
        if block is None:
            raise DeviceFullError(self.settings.segment_bytes(size))
        return block

    def _asked(self, pool: Pool, size: int) -> Block | None:
        num_bytes = self.settings.segment_bytes(size)
        if self._allowed is not None and self.reserved + num_bytes > self._allowed:
            return None
        if self.settings.expandable_segments:
            return mapped_block(pool, size, self._take, lambda: self._new_addresses(pool))
        if not self._take(num_bytes):
            return None
        block = Block(pool, self._next_address, num_bytes)
        self._next_address += num_bytes
        self.num_segments += 1
        self._note("segment_alloc", block.address, num_bytes, pool.stream)
        return block

    def _take(self, num_bytes: int) -> bool:
        if self.capacity_bytes is not None and self.reserved + num_bytes > self.capacity_bytes:
            return False
        self.reserved += num_bytes
        return True

    def _new_addresses(self, pool: Pool) -> ExpandableSegment:
        page = SMALL_SEGMENT_BYTES if pool.small else self.settings.large_segment_bytes
        device = _UNKNOWN_DEVICE if self.capacity_bytes is None else self.capacity_bytes
        num_bytes = -(-(device + device // 8) // page) * page
        segment = ExpandableSegment(self._next_address, num_bytes, page)
        self._next_address += num_bytes
        return segment

    def _release(self, block: Block) -> None:
        """Give a whole segment back."""
        block.pool.remove(block)
        self.reserved -= block.size
        self.num_segments -= 1
        self._note("segment_free", block.address, block.size, block.pool.stream)

    def _release_free(self, pool: Pool) -> None:
        """All free segments of a pool, and the free pages of expandable ones."""
        for block in pool.free_blocks():
            if block.expandable is not None:
                self.reserved -= unmapped_bytes(block)
                if not block.mapped and not block.is_split:
                    pool.unmapped.remove(block)
            elif not block.is_split:
                self._release(block)

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Free one block too large to be split that has room for ``size``, or else several, largest first."""
        wanted = max(size, self._max_split)
        at = bisect_left(pool.keys, wanted << ADDRESS_BITS)
        if at < len(pool.keys):
            self._release(pool.blocks[pool.keys[at]])
            return True
        released = 0
        while released < wanted and pool.keys:
            block = pool.blocks[pool.keys[-1]]
            if block.size < self._max_split:
                break
            released += block.size
            self._release(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Free segments that were not asked for longer than the average, until below the threshold."""
        assert self._allowed is not None
        threshold = int(self.settings.garbage_collection_threshold * self._allowed)
        excess = self.reserved - threshold
        if excess <= 0:
            return
        pools = self._shared_pools(small=False)
        ages = {
            block: pool.calls - block.collectable_since
            for pool in pools
            for block in pool.free_blocks()
            if not block.is_split
        }
        reclaimed = 0
        while reclaimed < excess and ages:
            average = sum(ages.values()) / len(ages)
            aged = [block for block, age in ages.items() if age >= average]
            for block in aged:
                reclaimed += block.size
                del ages[block]
                self._release(block)

    def _note(self, what: str, address: int, num_bytes: int, stream: int) -> None:
        if self.history is not None:
            self.history.append((what, address, num_bytes, stream))


def _expandable_size(block: Block) -> int:
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)
