"""Every storage of a rank through its steps: when it comes, when it goes, and who holds it."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from simcore.graph.schedules import Action
from simcore.memory.caching import MemoryEvents
from simcore.records import dataclass

IntArray = npt.NDArray[np.int64]

#: Beside layers, which count from 0: no layer, embedding, head.
NO_LAYER, EMBEDDING, HEAD = -1, -2, -3
#: Of an event: before the first step, or in the optimizer; other actions count from 0.
BEFORE, OPTIMIZER = -1, -2

CATEGORIES: Final = (
    "parameters", "gradients", "optimizer states", "buffers", "activations", "logits and loss", "temporaries",
    "gathered parameters", "messages",
)  # fmt: skip


@dataclass(frozen=True)
class StorageHolder:
    """Who holds a storage: its category, the launch that made it, that launch's module and layer."""

    category: str
    name: str
    module: str = ""
    layer: int = NO_LAYER


@dataclass(frozen=True)
class StageLifetimes:
    """Events of a stage's rank; of each event the place of its action (:data:`BEFORE` the first, or in the
    :data:`OPTIMIZER`), its layer, its microbatch (-1: none), and the number of who holds the storage (-1: it
    is released).
    """

    events: MemoryEvents
    action: IntArray
    layer: IntArray
    holder: IntArray
    microbatch: IntArray
    holders: tuple[StorageHolder, ...]
    actions: tuple[Action, ...]

    @property
    def changes(self) -> IntArray:
        """Bytes by which each event changes what storages take, of whose numbers none has two sizes."""
        storage, num_bytes = self.events.storage, self.events.num_bytes
        allocates = num_bytes >= 0
        size_of = np.zeros(int(storage.max(initial=0)) + 1, dtype=np.int64)
        size_of[storage[allocates]] = num_bytes[allocates]
        return np.where(allocates, num_bytes, -size_of[storage])

    @property
    def peak_bytes(self) -> int:
        """Most that storages take together, without what their blocks have beside."""
        return int(np.cumsum(self.changes).max(initial=0))


#: Threads that ask for products, each with a workspace of its own: forward's, autograd's.
PRODUCT_THREADS: Final = 2
_WORKSPACE_WIDE, _WORKSPACE = 8 * 4096 << 10, (2 * 4096 + 8 * 16) << 10


def product_workspace(generation: str, *, same_bits: bool = False) -> int:
    """Bytes that cuBLAS takes of the allocator for a thread's products and never gives back.

    Since Hopper, and for ``same_bits`` each time, eight of 4 MiB, else two, and eight of 16 KiB
    (ATen/cuda/CublasHandlePool.cpp).
    """
    return _WORKSPACE_WIDE if same_bits or generation in ("hopper", "blackwell") else _WORKSPACE
