"""A played stage in the form of PyTorch's memory snapshot: a pickle that its memory viewer opens.

Source: ``_snapshot`` of torch/cuda/memory.py; fields as torch/cuda/_memory_viz.py reads them.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simcore.files import whole_file
from simcore.memory.caching import CachingAllocator, HistoryEntry, play

if TYPE_CHECKING:
    from simcore.memory.played import PlayedStage

#: Of the pickle: what the viewer in a browser reads.
_PROTOCOL: Final = 3


def snapshot_of(stage: PlayedStage) -> dict[str, Any]:
    """Segments as they are at the end of the step, and its history; an event takes a microsecond.

    Frames say who holds a block: its category and layer, then the pass that made it.
    """
    history: list[HistoryEntry] = []
    device = CachingAllocator(stage.settings, history=history)
    played = play(stage.lifetimes.events, allocator=device)
    events = stage.lifetimes.events
    made = [k for k, num_bytes in enumerate(events.num_bytes.tolist()) if num_bytes > 0]
    frames_at: dict[int, list[dict[str, Any]]] = {}
    trace: list[dict[str, Any]] = []
    allocations = iter(made)
    for time_us, (action, address, num_bytes, stream) in enumerate(history):
        if action == "alloc":
            frames_at[address] = _frames(stage, next(allocations))
        entry = {
            "action": action, "addr": address, "size": num_bytes, "stream": stream, "time_us": time_us,
            "frames": frames_at.get(address, []) if not action.startswith("segment") else [],
        }  # fmt: skip
        if action == "free_completed":
            trace.append({**entry, "action": "free_requested"})
        trace.append(entry)
    segments = []
    for blocks in device.segments(played.live.values()):
        first, pool = blocks[0], blocks[0].pool
        held = sum(block.size for block in blocks if block.allocated)
        segments.append(
            {
                "device": 0, "address": first.address, "total_size": sum(block.size for block in blocks),
                "stream": pool.stream, "segment_type": "small" if pool.small else "large",
                "allocated_size": held, "active_size": held, "requested_size": held,
                "segment_pool_id": (0, 0), "is_expandable": first.expandable is not None, "frames": [],
                "blocks": [
                    {
                        "address": block.address, "size": block.size, "requested_size": block.size,
                        "state": "active_allocated" if block.allocated else "inactive",
                        "frames": frames_at[block.address] if block.allocated else [],
                    }
                    for block in blocks
                ],
            }
        )  # fmt: skip
    settings = {"expandable_segments": stage.settings.expandable_segments}
    return {
        "segments": segments, "device_traces": [trace], "allocator_settings": settings,
        "external_annotations": [],
    }  # fmt: skip


def write_snapshot(stage: PlayedStage, path: Path) -> None:
    """The snapshot as a pickle at ``path``.  InputError where it cannot be written."""
    with whole_file(path) as beside:
        beside.write_bytes(pickle.dumps(snapshot_of(stage), protocol=_PROTOCOL))


def _frames(stage: PlayedStage, event: int) -> list[dict[str, Any]]:
    lifetimes = stage.lifetimes
    holder = lifetimes.holders[int(lifetimes.holder[event])]
    number = int(lifetimes.action[event])
    frames = [
        {
            "filename": holder.category, "line": max(0, holder.layer),
            "name": f"{holder.module} {holder.name}".strip(),
        }
    ]  # fmt: skip
    if number >= 0:
        action = lifetimes.actions[number]
        frames.append({"filename": "microbatch", "line": action.microbatch, "name": str(action)})
    return frames
