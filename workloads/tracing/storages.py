"""Storages of tensors: when they appear, who writes them, and when they die."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from workloads.tracing.byte_writers import ByteWriters


class StorageRecord:
    """One storage during a recording: bytes, writers, and the op that brought it to life.

    ``owner`` is -1 for a storage older than the step and -2 for one that no op has touched yet.
    """

    __slots__ = ("num_bytes", "owner", "table", "writers")

    OLDER, UNTOUCHED = -1, -2

    def __init__(self, table: StorageTable, num_bytes: int, owner: int) -> None:
        self.table = table
        self.num_bytes = num_bytes
        self.owner = owner
        self.writers = ByteWriters()


class StorageTable:
    """Finds the record of a tensor's storage.  ``on_death`` hears of every storage born in the step that
    dies.

    Records hang on the storage's own Python object, which torch keeps as long as the storage lives: addresses
    are reused, objects are not.
    """

    _ATTRIBUTE = "_simcore_record"

    def __init__(self, on_death: Callable[[StorageRecord], None]) -> None:
        self._on_death = on_death

    def record(self, tensor: torch.Tensor, *, newborn: bool) -> StorageRecord:
        """The record; created when the storage is first seen, ``newborn`` when this call allocates it."""
        storage = tensor.untyped_storage()
        found: StorageRecord | None = getattr(storage, self._ATTRIBUTE, None)
        if found is not None and found.table is self:
            return found
        made = StorageRecord(
            self, storage.nbytes(), StorageRecord.UNTOUCHED if newborn else StorageRecord.OLDER
        )
        setattr(storage, self._ATTRIBUTE, made)
        if newborn:
            finalizer = weakref.finalize(storage, self._on_death, made)
            finalizer.atexit = False
        return made


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Bytes of its storage that a tensor spans, ``[low, high)``."""
    size = tensor.element_size()
    low = int(tensor.storage_offset()) * size
    if tensor.numel() == 0:
        return low, low
    reach = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return low, low + (int(reach) + 1) * size


def touched_bytes(tensor: torch.Tensor) -> int:
    """Distinct bytes behind a tensor: broadcast dimensions (stride 0) count once."""
    elements = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride != 0:
            elements *= length
    return elements * tensor.element_size() if tensor.numel() else 0


def storage_bytes(tensors: Any) -> int:
    """Bytes of all distinct storages behind ``tensors``."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())
