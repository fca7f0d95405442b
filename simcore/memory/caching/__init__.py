"""PyTorch's caching allocator, played on lifetimes of storages."""

from simcore.memory.caching.allocator import CachingAllocator, DeviceFullError, HistoryEntry
from simcore.memory.caching.play import MemoryEvents, PlayedMemory, play
from simcore.memory.caching.settings import AllocatorSettings

__all__ = [
    "AllocatorSettings",
    "CachingAllocator",
    "DeviceFullError",
    "HistoryEntry",
    "MemoryEvents",
    "PlayedMemory",
    "play",
]
