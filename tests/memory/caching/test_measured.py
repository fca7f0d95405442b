"""What PyTorch's own allocator did on a GPU, event by event: PyTorch 2.11 with CUDA 13.0 on one H200.

``measured/random*.csv``: random requests on two streams, with ``torch.cuda.memory_stats()`` behind each
(allocated_bytes, reserved_bytes, segment: all.current).  ``measured/gpt.csv``: four steps of a GPT of two
layers under AdamW, as ``torch.cuda.memory._record_memory_history`` has them; reserved is the sum of its
segment_alloc.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simcore.memory.caching import AllocatorSettings, MemoryEvents, play

#: Of ``torch.cuda.mem_get_info()``.
DEVICE_BYTES = 150_109_880_320
MEASURED = Path(__file__).parent / "measured"


def columns(name):
    lines = (MEASURED / name).read_text(encoding="utf-8").split()
    table = np.array([line.split(",") for line in lines[1:]], dtype=np.int64)
    return dict(zip(lines[0].split(","), table.T, strict=True))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("random.csv", ""),
        ("random_expandable.csv", "expandable_segments:True"),
        ("random_max_split.csv", "max_split_size_mb:64"),
        # Free segments are given back from the event 1,002 on.
        ("random_collected.csv", "garbage_collection_threshold:0.5"),
    ],
)
def test_random_requests_find_the_blocks_that_they_found_on_the_gpu(name, settings):
    found = columns(name)
    events = MemoryEvents.of(found["storage"], found["num_bytes"], np.maximum(found["stream"], 0))
    how = AllocatorSettings.from_text(settings)
    if how.garbage_collection_threshold:  # by torch.cuda.set_per_process_memory_fraction: of 24 GiB
        how = replace(how, memory_fraction=(24 << 30) / DEVICE_BYTES)
    played = play(events, how, DEVICE_BYTES)
    assert played.allocated.tolist() == found["allocated"].tolist()
    assert played.reserved.tolist() == found["reserved"].tolist()
    assert played.segments.tolist() == found["segments"].tolist()


def test_training_steps_reserve_what_they_did_on_the_gpu_at_every_event():
    found = columns("gpt.csv")
    played = play(MemoryEvents.of(found["storage"], found["num_bytes"]))
    assert played.reserved.tolist() == found["reserved"].tolist()
    assert played.segments.tolist() == found["segments"].tolist()
    # Its memory_stats() had 123.041 MiB at most.
    assert played.peak_allocated == 129017856
