"""Expandable segments: addresses are set aside once, and memory is mapped to them page by page.

Source: Note [Expandable Segments], ``find_expandable_block``, ``map_block``, ``unmap_block`` of
c10/cuda/CUDACachingAllocator.cpp.  Pages are 2 MiB in the small pool, 20 MiB in the large one; the addresses
of a segment span 9/8 of the device.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.memory.caching.blocks import Block, ExpandableSegment, Pool


def mapped_block(
    pool: Pool, size: int, take: Callable[[int], bool], new_segment: Callable[[], ExpandableSegment]
) -> Block | None:
    """A free block of at least ``size`` bytes, in no list, at the lowest address that can have one.

    ``take`` asks the device for bytes of physical memory; None where it has too few.
    """
    block = _candidate(pool, size) or _unmapped_segment(pool, new_segment())
    if not block.mapped and not _map(block, min(block.size, size), take):
        return None
    while block.size < size:
        beyond = block.after
        assert beyond is not None and not beyond.mapped, "only unmapped addresses follow a free block"
        if not _map(beyond, min(size - block.size, beyond.size), take):
            return None
        block = beyond  # has taken in the block before it
    pool.remove(block)
    return block


def unmapped_bytes(block: Block) -> int:
    """Give back the whole pages within a free block: how many bytes they were."""
    segment, pool = block.expandable, block.pool
    assert segment is not None
    page = segment.page_bytes
    first = -(-(block.address - segment.address) // page) * page + segment.address
    last = (block.address + block.size - segment.address) // page * page + segment.address
    if first >= last:
        return 0
    pool.remove(block)
    for address, end in ((block.address, first), (last, block.address + block.size)):
        if end > address:
            rest = Block(pool, address, end - address, segment)
            rest.put_between(*((block.before, block) if address < first else (block, block.after)))
            pool.add(rest)
    block.address, block.size, block.mapped = first, last - first, False
    pool.merge_with_neighbours(block)
    pool.add_unmapped(block)
    return last - first


def _candidate(pool: Pool, size: int) -> Block | None:
    """The first of the free or unmapped blocks in a row that have ``size`` bytes of addresses."""
    for unmapped in pool.unmapped:
        first = unmapped
        if unmapped.before is not None and not unmapped.before.allocated:
            first = unmapped.before
        found, block = 0, first
        while found < size and not block.allocated:
            found += block.size
            if block.after is None:
                break
            block = block.after
        if found >= size:
            return first
    return None


def _unmapped_segment(pool: Pool, segment: ExpandableSegment) -> Block:
    block = Block(pool, segment.address, segment.num_bytes, segment)
    block.mapped = False
    pool.add_unmapped(block)
    return block


def _map(block: Block, num_bytes: int, take: Callable[[int], bool]) -> bool:
    """Map whole pages to the first ``num_bytes`` of an unmapped block, which becomes free."""
    segment, pool = block.expandable, block.pool
    assert segment is not None
    page = segment.page_bytes
    mapped = -(-num_bytes // page) * page
    if not take(mapped):
        return False
    pool.unmapped.remove(block)
    if mapped < block.size:
        rest = Block(pool, block.address + mapped, block.size - mapped, segment)
        rest.mapped = False
        rest.put_between(block, block.after)
        pool.add_unmapped(rest)
        block.size = mapped
    block.mapped = True
    pool.merge_with_neighbours(block)
    pool.add(block)
    return True
