"""Hand-made sequences: the segments and blocks that follow from the source are written here."""

from __future__ import annotations

import pytest

from simcore.memory.caching import AllocatorSettings, CachingAllocator, DeviceFullError, MemoryEvents, play

MIB = 1 << 20
KIB = 1 << 10


def blocks(device, live):
    """[[(bytes, in use)]] by segment, ascending."""
    return [[(block.size, block.allocated) for block in blocks] for blocks in device.segments(live)]


def held(device):
    return device.allocated, device.reserved


def test_small_requests_share_segments_of_2_mib():
    device = CachingAllocator()
    one, two = device.malloc(1), device.malloc(MIB)
    # 1 byte takes 512; 1 MiB is still small: 2 MiB - 512 - 1 MiB are left.
    assert blocks(device, [one, two]) == [[(512, True), (MIB, True), (MIB - 512, False)]]
    three = device.malloc(MIB)  # does not fit any more
    assert blocks(device, [one, two, three])[1] == [(MIB, True), (MIB, False)]
    assert held(device) == (512 + 2 * MIB, 4 * MIB)


def test_middling_requests_share_segments_of_20_mib_and_keep_rests_of_1_mib():
    device = CachingAllocator()
    live = [device.malloc(3 * MIB), device.malloc(12 * MIB)]
    assert blocks(device, live) == [[(3 * MIB, True), (12 * MIB, True), (5 * MIB, False)]]
    live.append(device.malloc(4 * MIB))  # the rest would have 1 MiB, which is not split off
    assert blocks(device, live) == [[(3 * MIB, True), (12 * MIB, True), (5 * MIB, True)]]
    assert held(device) == (20 * MIB, 20 * MIB)


@pytest.mark.parametrize(
    ("num_bytes", "block", "segment"),
    [
        (MIB + 1, MIB + 512, 20 * MIB),  # the first that is not small
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),  # from here on its own segment, whole 2 MiB
        (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB is left, which is not split off
        (12 * MIB + 1, 12 * MIB + 512, 14 * MIB),  # 2 MiB - 512 are, which is more than 1 MiB
    ],
)
def test_sizes_of_blocks_and_segments(num_bytes, block, segment):
    device = CachingAllocator()
    assert device.malloc(num_bytes).size == block
    assert device.reserved == segment


def test_the_smallest_block_that_fits_is_taken_and_of_equal_ones_the_lowest():
    device = CachingAllocator()
    all_blocks = [device.malloc(size * MIB) for size in (30, 20, 10, 20)]
    for block in reversed(all_blocks):
        device.free(block)
    assert device.malloc(20 * MIB).address == 30 * MIB  # behind the 30 MiB of the first
    assert device.malloc(20 * MIB).address == 60 * MIB
    assert device.malloc(20 * MIB).address == 0  # split: 10 MiB remain
    assert sorted(block.size for block in device.free_blocks()) == [10 * MIB, 10 * MIB]
    assert device.reserved == 80 * MIB


def test_free_neighbours_become_one():
    device = CachingAllocator()
    live = [device.malloc(5 * MIB) for _ in range(4)]  # one segment of 20 MiB, exactly
    for place in (0, 2, 1):
        device.free(live[place])
    assert blocks(device, [live[3]]) == [[(15 * MIB, False), (5 * MIB, True)]]
    device.free(live[3])
    assert blocks(device, []) == [[(20 * MIB, False)]]
    assert held(device) == (0, 20 * MIB)


def test_streams_and_graphs_have_blocks_of_their_own():
    device = CachingAllocator()
    device.free(device.malloc(20 * MIB, stream=0))
    device.free(device.malloc(20 * MIB, stream=7))
    device.free(device.malloc(20 * MIB, owner=1))
    assert device.reserved == 60 * MIB
    device.malloc(20 * MIB, stream=7)
    assert device.reserved == 60 * MIB
    device.empty_cache()  # the graph's pool stays
    assert device.reserved == 40 * MIB


def test_a_full_device_gives_back_free_segments_and_then_refuses():
    device = CachingAllocator(capacity_bytes=100 * MIB)
    kept = device.malloc(40 * MIB)
    device.free(device.malloc(40 * MIB))
    device.malloc(60 * MIB)  # 40 + 40 + 60 > 100: the free one goes
    assert held(device) == (100 * MIB, 100 * MIB)
    assert device.num_retries == 1
    device.free(kept)
    with pytest.raises(DeviceFullError) as full:
        device.malloc(42 * MIB)
    assert full.value.requested == 42 * MIB


def test_a_split_segment_cannot_be_given_back():
    device = CachingAllocator(capacity_bytes=40 * MIB)
    first, _second = device.malloc(15 * MIB), device.malloc(5 * MIB)
    # 15 MiB are rounded up to a segment of 16, whose rest of 1 MiB is not split off.
    assert first.size == 16 * MIB
    whole = device.malloc(4 * MIB)  # in the segment of 20 MiB that the 5 MiB began
    assert device.reserved == 36 * MIB
    device.free(whole)
    with pytest.raises(DeviceFullError):  # 24 MiB are free or cached, 11 MiB of them beside the 5
        device.malloc(20 * MIB)
    assert device.reserved == 36 * MIB


def test_blocks_from_max_split_size_on_stay_whole():
    settings = AllocatorSettings.from_text("max_split_size_mb:40")
    device = CachingAllocator(settings, capacity_bytes=200 * MIB)
    large = device.malloc(100 * MIB)
    device.free(large)
    device.malloc(20 * MIB)  # must not have a part of it
    assert device.reserved == 120 * MIB
    device.malloc(60 * MIB)  # 100 >= 60 + 20 (max_non_split_rounding): not this one either
    assert device.reserved == 180 * MIB
    assert device.malloc(81 * MIB) is large  # 100 < 81 + 20: as it is
    assert device.allocated == 180 * MIB
    device.free(large)
    device.malloc(110 * MIB)  # none is as large: the largest one is given back
    assert device.reserved == 190 * MIB


def test_garbage_is_collected_above_the_threshold():
    settings = AllocatorSettings(garbage_collection_threshold=0.5, memory_fraction=1.0)
    device = CachingAllocator(settings, capacity_bytes=200 * MIB)
    old = device.malloc(60 * MIB)
    device.free(old)
    device.free(device.malloc(80 * MIB))  # nothing yet: 60 of 100 MiB are reserved when it is asked for
    assert device.reserved == 140 * MIB
    # 140 MiB > 0.5 * 200: of the two (2 and 1 requests old, 1.5 on average) the older goes, and as 60 MiB are
    # more than the excess of 40, no other.
    device.malloc(90 * MIB)
    assert device.reserved == (80 + 90) * MIB


def test_without_a_memory_fraction_nothing_is_collected():
    device = CachingAllocator(AllocatorSettings(garbage_collection_threshold=0.1), capacity_bytes=200 * MIB)
    device.free(device.malloc(60 * MIB))
    device.malloc(80 * MIB)
    assert device.reserved == 140 * MIB


def test_expandable_segments_grow_by_pages_of_20_mib():
    device = CachingAllocator(AllocatorSettings(expandable_segments=True))
    live = [device.malloc(15 * MIB)]
    assert blocks(device, live) == [[(15 * MIB, True), (5 * MIB, False)]]
    live.append(device.malloc(30 * MIB))  # 5 MiB are there, 25 missing: two pages
    assert blocks(device, live) == [[(15 * MIB, True), (30 * MIB, True), (15 * MIB, False)]]
    device.free(live.pop(0))
    live.append(device.malloc(16 * MIB))  # 15 at the front do not do, 15 at the end can grow
    assert device.reserved == 80 * MIB
    assert device.num_segments == 0  # memory_stats() counts none of these
    device.malloc(512)  # the small pool has pages of 2 MiB
    assert device.reserved == 82 * MIB


def test_expandable_pages_are_unmapped_when_the_device_is_full_and_mapped_again():
    device = CachingAllocator(AllocatorSettings(expandable_segments=True), capacity_bytes=100 * MIB)
    front, middle, back = (device.malloc(30 * MIB) for _ in range(3))  # pages to 100 MiB, 10 free
    device.free(middle)
    # Bytes 30 to 60 are free: the one whole page there, 40 to 60, is given back, and 90 to 100 are not whole.
    device.malloc(20 * MIB, stream=1)
    assert device.reserved == 100 * MIB
    assert blocks(device, [front, back])[:2] == [
        [(30 * MIB, True), (10 * MIB, False)],
        [(30 * MIB, True), (10 * MIB, False)],
    ]
    device.free(front)
    assert device.malloc(40 * MIB).address == 0  # 30 and 10 are one block
    assert device.reserved == 100 * MIB


def test_played_events_are_the_allocator_step_by_step():
    # 3 MiB, 12 MiB, the first freed, 4 MiB in the last 5 MiB of the segment (whole), 3 MiB again.
    events = MemoryEvents.of([0, 1, 0, 2, 0], [3 * MIB, 12 * MIB, -1, 4 * MIB, 3 * MIB])
    played = play(events)
    assert played.allocated.tolist() == [3 * MIB, 15 * MIB, 12 * MIB, 17 * MIB, 20 * MIB]
    assert played.reserved.tolist() == [20 * MIB] * 5
    assert (played.peak_allocated, played.peak_at, played.full_at) == (20 * MIB, 4, -1)
    full = play(events, capacity_bytes=19 * MIB)
    assert (full.full_at, full.requested, len(full.allocated)) == (0, 20 * MIB, 0)


def test_history_names_what_happened():
    history = []
    device = CachingAllocator(capacity_bytes=40 * MIB, history=history)
    device.free(device.malloc(100, stream=3))
    device.malloc(39 * MIB)
    assert history == [
        ("segment_alloc", 0, 2 * MIB, 3),
        ("alloc", 0, 100, 3),
        ("free_completed", 0, 512, 3),
        ("segment_free", 0, 2 * MIB, 3),
        ("segment_alloc", 2 * MIB, 40 * MIB, 0),
        ("alloc", 2 * MIB, 39 * MIB, 0),
    ]


def test_several_oversize_blocks_are_given_back_largest_first_where_none_is_large_enough():
    settings = AllocatorSettings.from_text("max_split_size_mb:40")
    device = CachingAllocator(settings, capacity_bytes=250 * MIB)
    all_blocks = [device.malloc(size * MIB) for size in (40, 70, 60, 80)]
    for block in all_blocks:
        device.free(block)
    # 90 + 250 > 250: no block has 90, so 80 and 70 go, which are 150 of the 90 asked for; 60 and 40 stay.
    live = device.malloc(90 * MIB)
    assert blocks(device, [live]) == [[(40 * MIB, False)], [(60 * MIB, False)], [(90 * MIB, True)]]
    assert device.num_retries == 0
    assert held(device) == (90 * MIB, 190 * MIB)


def test_oversize_blocks_of_another_stream_are_left_until_all_are_given_back():
    settings = AllocatorSettings.from_text("max_split_size_mb:40")
    device = CachingAllocator(settings, capacity_bytes=100 * MIB)
    device.free(device.malloc(60 * MIB, stream=1))
    device.malloc(50 * MIB, stream=0)  # the other stream's 60 MiB go with the second try alone
    assert held(device) == (50 * MIB, 50 * MIB)
    assert device.num_retries == 1


def test_garbage_of_all_streams_is_collected_oldest_first():
    text = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.8"
    device = CachingAllocator(AllocatorSettings.from_text(text), capacity_bytes=200 * MIB)
    # 160 MiB are allowed: above 80 free blocks go whose age, in requests, is at least the average.
    old = device.malloc(30 * MIB, stream=1)
    device.free(old)  # freed after one request of the large pool
    young = device.malloc(40 * MIB, stream=0)
    device.malloc(20 * MIB, stream=0)
    device.free(young)  # after three
    # The fourth finds 90 reserved, 10 too many: ages 4 - 1 = 3 and 4 - 3 = 1, in mean 2.
    device.malloc(50 * MIB, stream=0)
    assert device.reserved == (40 + 20 + 50) * MIB


def test_of_expandable_blocks_the_one_that_can_grow_counts_as_large_as_it_can_become():
    settings = AllocatorSettings.from_text("expandable_segments:True")
    device = CachingAllocator(settings, capacity_bytes=1 << 30)
    first, kept, last = (device.malloc(size * MIB) for size in (30, 10, 20))
    # Pages of 20 MiB: 30 + 10 + 20 are three of them, and nothing is left.
    assert device.reserved == 60 * MIB
    device.free(first)
    device.free(last)
    # The last block is 20 MiB, but it can grow to all addresses: of the 30 MiB in front they are taken.
    assert device.malloc(20 * MIB).address == 0
    assert kept.address == 30 * MIB


def test_pages_mapped_before_the_device_was_full_stay_mapped():
    settings = AllocatorSettings.from_text("expandable_segments:True")
    device = CachingAllocator(settings, capacity_bytes=70 * MIB)
    live = [device.malloc(30 * MIB)]  # two pages of 20 MiB, 10 MiB of which are free
    device.malloc(1 * MIB)  # the small pool's page of 2 MiB
    assert device.reserved == 42 * MIB
    with pytest.raises(DeviceFullError):
        device.malloc(50 * MIB)  # 40 MiB more than the 10 that are free: two pages, one too many
    # What is free of the second page is not a whole page and cannot be unmapped.
    assert device.reserved == 42 * MIB
    assert blocks(device, live)[0][:2] == [(30 * MIB, True), (10 * MIB, False)]
