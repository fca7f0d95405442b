"""Whatever is asked: nothing is lost, nothing overlaps, and the best block is the one that a search finds."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.memory.caching import AllocatorSettings, CachingAllocator, DeviceFullError, MemoryEvents, play

MIB = 1 << 20
SIZES = st.one_of(
    st.integers(1, MIB), st.integers(MIB, 12 * MIB), st.sampled_from([512, MIB, 3 * MIB, 10 * MIB, 40 * MIB]),
    st.integers(10 * MIB, 100 * MIB),
)  # fmt: skip
#: (True: allocate so many bytes on a stream for a graph; False: free one of the live ones)
STEPS = st.lists(
    st.tuples(st.booleans(), SIZES, st.integers(0, 1), st.sampled_from([0, 0, 0, 1]), st.integers(0, 99)),
    max_size=60,
)
SETTINGS = st.sampled_from(
    [
        AllocatorSettings(),
        AllocatorSettings(max_split_bytes=20 * MIB),
        AllocatorSettings(expandable_segments=True),
        AllocatorSettings(roundup_divisions=(4,) * 16),
        AllocatorSettings(garbage_collection_threshold=0.3, memory_fraction=0.8),
        AllocatorSettings(expandable_segments=True, garbage_collection_threshold=0.3, memory_fraction=0.8),
    ]
)


@settings(max_examples=150, deadline=None)
@given(STEPS, SETTINGS, st.sampled_from([None, 150 * MIB, 400 * MIB]))
def test_allocated_and_cached_are_reserved_and_blocks_tile_their_segments(steps, how, capacity):
    device, live = CachingAllocator(how, capacity), []
    for allocates, num_bytes, stream, owner, which in steps:
        if allocates or not live:
            try:
                live.append(device.malloc(num_bytes, stream, owner))
            except DeviceFullError as full:
                limit = min(capacity, int(capacity * (how.memory_fraction or 1)))
                assert device.reserved + full.requested > limit or how.expandable_segments
                break
            assert live[-1].size >= num_bytes
        else:
            device.free(live.pop(which % len(live)))
        cached = sum(block.size for block in device.free_blocks())
        assert device.allocated == sum(block.size for block in live)
        assert device.allocated + cached == device.reserved
        assert capacity is None or device.reserved <= capacity
        segments = device.segments(live)
        assert sum(len(blocks) for blocks in segments) == len(live) + len(list(device.free_blocks()))
        for blocks in segments:
            for one, following in pairwise(blocks):
                assert one.address + one.size == following.address
                assert one.allocated or following.allocated  # else they were one
        ends = [(blocks[0].address, blocks[-1].address + blocks[-1].size) for blocks in segments]
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))


class Searched:
    """The default allocator without lists: every request looks at every block of every segment."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.segments = []  # (pool, [[bytes, storage or None], ...]); a pool: small?, stream, graph
        self.retries = 0

    @property
    def reserved(self):
        return sum(size for _, blocks in self.segments for size, _ in blocks)

    @property
    def allocated(self):
        return sum(size for _, blocks in self.segments for size, storage in blocks if storage is not None)

    def malloc(self, storage, num_bytes, stream, owner):
        size = max(1, -(-num_bytes // 512)) * 512
        pool = size <= MIB, stream, owner
        if not self.place(storage, size, pool):
            whole = 2 * MIB if pool[0] else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            if self.capacity is not None and self.reserved + whole > self.capacity and not owner:
                self.segments = [
                    one for one in self.segments if one[0][2] or len(one[1]) > 1 or one[1][0][1] is not None
                ]
            if self.capacity is not None and self.reserved + whole > self.capacity:
                return False
            self.segments.append((pool, [[whole, None]]))
            assert self.place(storage, size, pool)
        return True

    def place(self, storage, size, pool):
        fits = [
            (block[0], place, at)
            for place, (own, blocks) in enumerate(self.segments)
            for at, block in enumerate(blocks)
            if own == pool and block[1] is None and block[0] >= size
        ]
        if not fits:
            return False
        found, place, at = min(fits)
        rest = found - size
        split = rest >= 512 if pool[0] else rest > MIB
        cut = [[size, storage], [rest, None]] if split else [[found, storage]]
        self.segments[place][1][at : at + 1] = cut
        return True

    def free(self, storage):
        for _, blocks in self.segments:
            for at, block in enumerate(blocks):
                if block[1] == storage:
                    block[1] = None
                    for left in (at, at - 1):
                        if 0 <= left < len(blocks) - 1 and blocks[left][1] is blocks[left + 1][1] is None:
                            blocks[left : left + 2] = [[blocks[left][0] + blocks[left + 1][0], None]]
                    return


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from([None, 150 * MIB, 300 * MIB]))
def test_the_best_fit_is_what_a_search_of_all_blocks_finds(steps, capacity):
    oracle, live, events, expected = Searched(capacity), [], [], []
    for number, (allocates, num_bytes, stream, owner, which) in enumerate(steps):
        if allocates or not live:
            events.append((number, num_bytes, stream, owner))
            if not oracle.malloc(number, num_bytes, stream, owner):
                break
            live.append(number)
        else:
            storage = live.pop(which % len(live))
            oracle.free(storage)
            events.append((storage, -1, 0, 0))
        expected.append((oracle.allocated, oracle.reserved, len(oracle.segments)))
    columns = list(zip(*events, strict=True)) or [[], [], [], []]
    played = play(MemoryEvents.of(*map(list, columns)), capacity_bytes=capacity)
    found = [played.allocated.tolist(), played.reserved.tolist(), played.segments.tolist()]
    assert list(zip(*found, strict=True)) == expected
    assert played.full_at == (len(expected) if len(expected) < len(events) else -1)
