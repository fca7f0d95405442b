"""Storages of tensors: when they appear, who wrote which bytes last, and when they die."""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from simcore.records import dataclass

#: Told when a storage is given other memory: (storage, bytes).
on_resize: Callable[[torch.UntypedStorage, int], None] | None = None

_DEVICE = "_simcore_device"

#: The storage of a tensor, fetched for ourselves: a program's own call also notes which device it shows.
storage_of = torch.Tensor.untyped_storage


def watch_resizes() -> None:
    """Follow ``UntypedStorage.resize_``, with which FSDP frees and brings back memory; once per process."""
    storage_type: Any = torch.UntypedStorage
    original = storage_type.resize_

    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        if on_resize is not None:
            on_resize(self, int(size))
        return original(self, size)

    storage_type.resize_ = resize_


def show_as_of_device() -> None:
    """A storage without data says the device of its tensors, and can be taken in parts; once per process.

    Programs make tensors of (parts of) the storage of another: a view of flat memory in another dtype.
    """
    storage_type: Any = torch.UntypedStorage
    own_device = storage_type.device
    whole_part = storage_type.__getitem__
    of_buffer = storage_type.from_buffer
    set_memory = torch.Tensor.set_

    def untyped_storage(self: FakeTensor) -> torch.UntypedStorage:
        storage = storage_of(self)
        vars(storage)[_DEVICE] = self.fake_device
        return storage

    def device(self: torch.UntypedStorage) -> torch.device:
        shown: torch.device | None = vars(self).get(_DEVICE)
        return shown or own_device.__get__(self)

    def part(self: torch.UntypedStorage, index: Any) -> Any:
        if isinstance(index, slice) and _DEVICE in vars(self):
            return StoragePart(self, *index.indices(self.nbytes())[:2])
        return whole_part(self, index)

    def from_buffer(*args: Any, **kwargs: Any) -> torch.UntypedStorage:
        with _disable_current_modes():  # under a fake mode torch takes bytes of the host for no memory
            made: torch.UntypedStorage = of_buffer(*args, **kwargs)
        return made

    def set_(self: FakeTensor, source: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(source, StoragePart):
            size = self.element_size()
            return set_memory(self, source.whole, source.low // size, (source.nbytes() // size,), (1,))
        return set_memory(self, *(() if source is None else (source,)), *args, **kwargs)

    shape: Any = FakeTensor
    shape.untyped_storage, shape.set_ = untyped_storage, set_
    storage_type.device, storage_type.__getitem__ = property(device), part
    storage_type.from_buffer = staticmethod(from_buffer)


@dataclass(frozen=True)
class StoragePart:
    """Bytes ``[low, high)`` of a storage without data, for ``Tensor.set_``."""

    whole: torch.UntypedStorage
    low: int
    high: int

    @property
    def device(self) -> torch.device:
        """The storage's."""
        return self.whole.device

    def nbytes(self) -> int:
        """Bytes of the part."""
        return max(0, self.high - self.low)

    size = __len__ = nbytes

    def element_size(self) -> int:
        """One byte."""
        return 1

    def __getitem__(self, index: slice) -> StoragePart:
        low, high, _ = index.indices(self.nbytes())
        return StoragePart(self.whole, self.low + low, self.low + high)


class ByteWriters:
    """Last writer of every byte of a storage, as disjoint intervals in ascending order.

    Buckets of a gradient buffer share one storage: without intervals, reducing one bucket would seem
    to depend on accumulating into another.
    """

    __slots__ = ("_ends", "_starts", "_writers")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._writers: list[int] = []

    def overlapping(self, low: int, high: int) -> list[int]:
        """Writers of any byte in ``[low, high)``, in byte order."""
        first, last = bisect_right(self._ends, low), bisect_left(self._starts, high)
        return self._writers[first:last]

    def write(self, low: int, high: int, writer: int) -> None:
        """``writer`` becomes the last writer of ``[low, high)``."""
        first, last = bisect_right(self._ends, low), bisect_left(self._starts, high)
        starts, ends, writers = [low], [high], [writer]
        if first < last:
            if self._starts[first] < low:
                starts.insert(0, self._starts[first])
                ends.insert(0, low)
                writers.insert(0, self._writers[first])
            if self._ends[last - 1] > high:
                starts.append(high)
                ends.append(self._ends[last - 1])
                writers.append(self._writers[last - 1])
        self._starts[first:last] = starts
        self._ends[first:last] = ends
        self._writers[first:last] = writers


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
    dies; with ``whole_life``, of every storage that was ever recorded.  ``live_bytes`` counts those alive.

    Records hang on the storage's own Python object, which torch keeps as long as the storage lives: addresses
    are reused, objects are not.
    """

    _ATTRIBUTE = "_simcore_record"

    def __init__(self, on_death: Callable[[StorageRecord], None], *, whole_life: bool = False) -> None:
        self._on_death = on_death
        self._whole_life = whole_life
        self.live_bytes = 0

    def resized(self, storage: torch.UntypedStorage, num_bytes: int) -> None:
        """``storage`` gets other memory, of ``num_bytes``: the old one dies, the new one is unborn."""
        found: StorageRecord | None = getattr(storage, self._ATTRIBUTE, None)
        if found is not None and found.table is self and found.num_bytes != num_bytes:
            self._died(found)
            found.num_bytes, found.owner = num_bytes, StorageRecord.UNTOUCHED
            self.live_bytes += num_bytes

    def record(self, tensor: torch.Tensor, *, newborn: bool) -> StorageRecord:
        """The record; created when the storage is first seen, ``newborn`` when this call allocates it."""
        storage = storage_of(tensor)
        found: StorageRecord | None = getattr(storage, self._ATTRIBUTE, None)
        if found is not None and found.table is self:
            return found
        made = StorageRecord(
            self, storage.nbytes(), StorageRecord.UNTOUCHED if newborn else StorageRecord.OLDER
        )
        setattr(storage, self._ATTRIBUTE, made)
        if newborn or self._whole_life:
            finalizer = weakref.finalize(storage, self._died, made)
            finalizer.atexit = False
            self.live_bytes += made.num_bytes
        return made

    def _died(self, record: StorageRecord) -> None:
        self.live_bytes -= record.num_bytes
        self._on_death(record)


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor that has elements is all of its storage."""
    num_bytes = tensor.numel() * tensor.element_size()
    return tensor.layout is torch.strided and 0 < num_bytes == storage_of(tensor).nbytes()


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


def new_bytes(tensors: Iterable[torch.Tensor], seen: set[int]) -> list[int]:
    """Bytes of each storage behind ``tensors`` that is not in ``seen`` yet, and is from now on."""
    found = []
    for tensor in tensors:
        storage = storage_of(tensor)
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            found.append(storage.nbytes())
    return found
