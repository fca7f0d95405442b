"""Lifetimes of storages played on the caching allocator: what is allocated and reserved, event by event."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from simcore.errors import InputError
from simcore.memory.caching.allocator import CachingAllocator, DeviceFullError
from simcore.memory.caching.blocks import Block
from simcore.memory.caching.settings import MOST_BYTES, AllocatorSettings
from simcore.records import dataclass

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MemoryEvents:
    """Allocations and releases in the order in which the host makes them, a column each.

    ``storage``: a number of the storage, free to be used again once it is released.  ``num_bytes``: what is
    asked for it, of a release -1; a storage of 0 bytes has no block.  ``stream`` and ``owner`` (the graph
    whose private pool it comes from, 0: none) count where it is allocated.
    """

    storage: IntArray
    num_bytes: IntArray
    stream: IntArray
    owner: IntArray

    @classmethod
    def of(cls, storage: object, num_bytes: object, stream: object = 0, owner: object = 0) -> MemoryEvents:
        """From anything like columns; one number stands for a column of it.

        Errors: InputError for columns of unlike length, and for sizes that no device has.
        """
        found = [np.atleast_1d(np.asarray(column)) for column in (storage, num_bytes, stream, owner)]
        if any(column.dtype.kind not in "iu" for column in found if column.size):
            raise InputError("events of memory are columns of whole numbers: storage, bytes, stream, owner")
        length = max(len(found[0]), len(found[1]))
        if any(len(column) not in (1, length) for column in found):
            raise InputError(f"columns of {', '.join(str(len(column)) for column in found)} events of memory")
        if found[1].size and (int(found[1].max()) >= MOST_BYTES or int(found[1].min()) < -1):
            wrong = int(found[1].max()) if int(found[1].max()) >= MOST_BYTES else int(found[1].min())
            raise InputError(f"a storage of {wrong} bytes; it can have 0 to {MOST_BYTES - 1}")
        return cls(*(np.broadcast_to(column, (length,)).astype(np.int64, copy=False) for column in found))

    def __len__(self) -> int:
        return len(self.storage)


@dataclass(frozen=True)
class PlayedMemory:
    """What a device holds after each event, bytes.

    ``full_at``: the event that the device has no room for, -1 where it has for all; what comes after it was
    not played, and ``requested`` bytes were asked of the device.  ``segments`` are those that are not
    expandable.  ``live``: blocks in use at the end, by storage.  ``retries``: how often cached blocks were
    given back to make room.
    """

    allocated: IntArray
    reserved: IntArray
    segments: IntArray
    full_at: int
    requested: int
    retries: int
    allocator: CachingAllocator
    live: dict[int, Block]

    @cached_property
    def peak_allocated(self) -> int:
        """Most bytes in blocks handed out."""
        return int(self.allocated.max(initial=0))

    @cached_property
    def peak_reserved(self) -> int:
        """Most bytes of all segments."""
        return int(self.reserved.max(initial=0))

    @property
    def peak_at(self) -> int:
        """The first event at which most is allocated; -1 without events."""
        return int(self.allocated.argmax()) if len(self.allocated) else -1


def play(
    events: MemoryEvents, settings: AllocatorSettings | None = None, capacity_bytes: int | None = None,
    allocator: CachingAllocator | None = None,
) -> PlayedMemory:  # fmt: skip
    """Play ``events`` on a device that can give ``capacity_bytes`` (None: anything).

    ``allocator`` is one to go on with, instead of a fresh one.  Errors: InputError for a storage that is
    allocated twice, or released without having been allocated.
    """
    device = allocator or CachingAllocator(settings, capacity_bytes)
    malloc, free = device.malloc, device.free
    live: dict[int, Block] = {}
    empty: set[int] = set()
    allocated: list[int] = []
    reserved: list[int] = []
    segments: list[int] = []
    full_at, requested = -1, 0
    columns = (
        events.storage.tolist(),
        events.num_bytes.tolist(),
        events.stream.tolist(),
        events.owner.tolist(),
    )
    for storage, num_bytes, stream, owner in zip(*columns, strict=True):
        if num_bytes < 0:
            block = live.pop(storage, None)
            if block is not None:
                free(block)
            elif storage in empty:
                empty.remove(storage)
            else:
                raise InputError(f"event {len(allocated)} releases storage {storage}, which is not allocated")
        elif storage in live or storage in empty:
            raise InputError(f"event {len(allocated)} allocates storage {storage} again, which is in use")
        elif num_bytes:
            try:
                live[storage] = malloc(num_bytes, stream, owner)
            except DeviceFullError as full:
                full_at, requested = len(allocated), full.requested
                break
        else:
            empty.add(storage)
        allocated.append(device.allocated)
        reserved.append(device.reserved)
        segments.append(device.num_segments)
    return PlayedMemory(
        np.array(allocated, dtype=np.int64), np.array(reserved, dtype=np.int64),
        np.array(segments, dtype=np.int64), full_at, requested, device.num_retries, device, live,
    )  # fmt: skip
