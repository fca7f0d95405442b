"""What a process holds of its GPU outside of its framework's allocator, item by item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from simcore.collectives.communicator import CommunicatorUse
from simcore.hardware.specs import GpuSpec
from simcore.records import dataclass
from simcore.units import GIB, MIB

#: Kernels of PyTorch and its libraries as they are first launched, and all of them at once (pytorch/pytorch
#: pull request 86509, October 2022: 287 MB with a context become 667 MB before cuBLAS, cuDNN and NCCL are
#: touched; issue 107667: about 300 MB become more than 1,000 MB).
LOADED_KERNELS_BYTES: Final = 256 * MIB
ALL_KERNELS_BYTES: Final = GIB


@dataclass(frozen=True)
class OutsideHolders:
    """Who holds memory of a process's GPU beside its allocator.

    ``communicators`` of each of the ranks among which one holds most; ``buffers`` of other libraries, names
    and bytes; ``lazy_loading``: kernels are loaded when they are first launched, else all there are.
    """

    communicators: tuple[tuple[CommunicatorUse, ...], ...]
    buffers: tuple[tuple[str, int], ...] = ()
    lazy_loading: bool = True


@dataclass(frozen=True)
class OutsideMemory:
    """Bytes by name: what every process has, and ``buffers`` of libraries."""

    every: tuple[tuple[str, int], ...]
    buffers: tuple[tuple[str, int], ...] = ()

    @property
    def items(self) -> tuple[tuple[str, int], ...]:
        """All of them, the GPU's own share first."""
        return *self.every, *self.buffers

    @property
    def total(self) -> int:
        """All of them."""
        return sum(num_bytes for _, num_bytes in self.items)

    def available_bytes(self, gpu: GpuSpec) -> int:
        """What is left of ``gpu`` for the allocator."""
        return max(0, gpu.hbm_bytes - self.total)

    def __str__(self) -> str:
        shown = [(name, num_bytes) for name, num_bytes in self.items if num_bytes >= GIB // 100]
        return ", ".join(f"{name} {num_bytes / GIB:.2f}" for name, num_bytes in shown)

    def as_object(self) -> dict[str, Any]:
        """For ``--json``: bytes by name."""
        return dict(self.items)


def outside_memory(
    gpu: GpuSpec, holders: OutsideHolders, buffer_bytes: Callable[[CommunicatorUse], int]
) -> OutsideMemory:
    """Of the rank with most; ``buffer_bytes``: what a communicator's buffers take of each GPU."""
    kernels = LOADED_KERNELS_BYTES if holders.lazy_loading else ALL_KERNELS_BYTES
    every = (("driver and context", gpu.reserved_bytes), ("loaded kernels", kernels))
    ranks = [[(f"NCCL {one.name}", buffer_bytes(one)) for one in of] for of in holders.communicators]
    nccl = max(ranks, key=lambda of: sum(size for _, size in of), default=[])
    return OutsideMemory(every, tuple(one for one in (*nccl, *holders.buffers) if one[1]))
