"""``PYTORCH_ALLOC_CONF`` is read as PyTorch reads it; what it refuses is refused, with the nearest word."""

from __future__ import annotations

import pytest

from simcore.errors import InputError
from simcore.memory.caching import AllocatorSettings, MemoryEvents, play

MIB = 1 << 20


def test_words_and_values():
    found = AllocatorSettings.from_text(
        "max_split_size_mb:128, garbage_collection_threshold:0.8,expandable_segments:True,"
        "backend:native,pinned_use_background_threads:True"
    )
    assert found == AllocatorSettings(
        max_split_bytes=128 * MIB, garbage_collection_threshold=0.8, expandable_segments=True
    )
    assert AllocatorSettings.from_text("") == AllocatorSettings()


@pytest.mark.parametrize(
    ("text", "divisions"),
    [  # PyTorch's own cases (c10/test/core/AllocatorConfig_test.cpp): MiB, divisions
        ("[64:8,128:2,256:4,512:2,1024:4,>:1]", {32: 8, 64: 8, 128: 2, 256: 4, 512: 2, 1024: 4, 2048: 1}),
        ("[128:8,256:16,512:1,2048:8,>:2]", {64: 8, 128: 8, 256: 16, 512: 1, 1024: 0, 2048: 8, 4096: 2}),
        ("4", {64: 4, 256: 4, 2048: 4}),
    ],
)
def test_divisions_by_interval(text, divisions):
    found = AllocatorSettings.from_text(f"roundup_power2_divisions:{text}").roundup_divisions
    # The first interval is from 1 MiB to 2.
    assert {mib: found[mib.bit_length() - 1] for mib in divisions} == divisions


@pytest.mark.parametrize(
    ("divisions", "asked", "rounded"),
    [
        (0, 1, 512),
        (0, 513, 1024),
        (4, 1200, 1536),  # up to 512 * 4 bytes, steps are of 512
        (4, 1200 * 1024, 1280 * 1024),  # 1, 1.25, 1.5, 1.75 MiB
        (4, 1280 * 1024, 1280 * 1024),
        (2, 5 * MIB, 6 * MIB),  # 4, 6, 8 MiB
        (8, 4 * MIB, 4 * MIB),
    ],
)
def test_rounding(divisions, asked, rounded):
    assert AllocatorSettings(roundup_divisions=(divisions,) * 16).rounded(asked) == rounded


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expandable_segment:True", "expandable_segments"),
        ("expandable_segments:true", "True"),
        ("max_split_size_mb:9", "at least 10"),
        ("max_split_size_mb:20,large_segment_size_mb:25", "nearest: 25"),
        ("max_split_size_mb:many", "no number"),
        ("garbage_collection_threshold:1.5", "at most 1"),
        ("roundup_power2_divisions:6", "nearest: 4"),
        ("backend:cudaMallocAsync", "backend:native"),
        ("expandable_segments", "word:value"),
    ],
)
def test_what_pytorch_refuses(text, message):
    with pytest.raises(InputError, match=message):
        AllocatorSettings.from_text(text)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0], [1 << 60]), "1152921504606846976 bytes"),
        (([0], [-2]), "-2 bytes"),
        (([0, 1], [1, 1, 1]), "2, 3, 1, 1 events"),
        (([0.5], [1]), "whole numbers"),
    ],
)
def test_columns_that_cannot_be(columns, message):
    with pytest.raises(InputError, match=message):
        MemoryEvents.of(*columns)


def test_storages_are_released_once_and_not_allocated_twice():
    with pytest.raises(InputError, match="event 1 allocates storage 7 again"):
        play(MemoryEvents.of([7, 7], [1, 1]))
    with pytest.raises(InputError, match="event 2 releases storage 7, which"):
        play(MemoryEvents.of([7, 7, 7], [0, -1, -1]))
