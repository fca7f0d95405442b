"""Streaming multiprocessors: how many blocks of a kernel fit on one, and what communication costs it.

Note [Carve-outs]
    An SM's L1 cache and shared memory are one array, split at one of a few places.  A kernel is launched with
    the least carve-out that gives all blocks of an SM their shared memory, as many as registers, threads and
    slots admit (recorded as ``sharedMemoryExecuted`` by Nsight Systems), and the split moves only while
    nothing is resident.  The two SMs of a TPC move it together: that is not documented, but what recorded
    kernels on A100 say.  Beside 24 blocks of NCCL's, one a TPC, products whose blocks need more shared memory
    than NCCL's carve-out lose 48 SMs, kernels that need less lose 24 (docs/contention.md).  Where NCCL's
    blocks come in thread block clusters, they fill TPCs, and nobody's partner is lost.

Note [Fences]
    Where a kernel ends, whoever comes next on its stream has to see what it wrote, so the GPU waits for
    writes that are on their way, whoever made them: those of a communication kernel to its peers, too (CUDA
    programming guide, "Memory Synchronization Domains").  From compute capability 9.0 on there are domains,
    and NCCL's kernels are in one of their own (NCCL_MEM_SYNC_DOMAIN).  How long that takes depends on how
    much is on its way.  While the data of a few peers moves it is what a step over NVLink takes more in
    NCCL's protocol with fences than in the one with flags in the same lines; while links are full, the
    queues before them have to drain (docs/contention.md).
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt

from simcore.records import dataclass
from simcore.tables import Plain, load_named, names
from simcore.units import PS_PER_US

_KIB: Final = 1024
_WARP: Final = 32
_REGISTER_UNIT: Final = 256  # registers are given to a warp in this unit (CUDA programming guide, 3.0 on)

Whole = Annotated[int, Plain(integer=True)]


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """What a thread block of a kernel takes of its SM: threads, registers of each, bytes of shared memory."""

    threads: int
    registers: int
    shared_bytes: int


@dataclass(frozen=True)
class CommunicationBlocks:
    """A thread block of the communication library's kernels, ``cluster`` of them in whole TPCs.

    How much longer a kernel lasts while the library's writes are under way, Note [Fences]: ``full_us`` while
    they fill the links, ``fence_us`` while a few peers' do.
    """

    threads: Whole
    registers: Whole
    shared_bytes: Whole
    cluster: Whole
    fence_us: float = 0.0
    full_us: float = 0.0
    source: str = ""


@dataclass(frozen=True)
class SmSpec:
    """An SM of one generation: what its blocks share.  See Note [Carve-outs].

    ``blocks`` is how many it holds at most, ``carve_outs_kib`` how much of its L1 cache can be shared memory,
    ``reserved_bytes`` what CUDA takes of that for each block, ``load_cycles`` how long a load from
    HBM takes.
    """

    threads: Whole
    registers: Whole
    blocks: Whole
    carve_outs_kib: tuple[int, ...]
    reserved_bytes: Whole
    sms_per_tpc: Whole
    load_cycles: float
    communication: CommunicationBlocks
    source: str = ""

    def fit(self, block: ThreadBlock) -> int:
        """Blocks that fit on an SM at a time, at least 1: what was launched fitted."""
        found = resident_blocks(
            block.threads, block.registers, block.shared_bytes,
            threads=self.threads, registers=self.registers, shared_bytes=self.carve_outs_kib[-1] * _KIB,
            reserved_bytes=self.reserved_bytes, blocks=self.blocks,
        )  # fmt: skip
        return max(1, int(found))

    def carve_out_kib(self, block: ThreadBlock) -> int:
        """Shared memory that an SM is set to for a kernel."""
        needed = self.fit(block) * (block.shared_bytes + self.reserved_bytes) if block.shared_bytes else 0
        return next((kib for kib in self.carve_outs_kib if kib * _KIB >= needed), self.carve_outs_kib[-1])

    def lost(self, block: ThreadBlock) -> int:
        """SMs that a kernel cannot use for each block of communication: its own, or all of its TPC."""
        own = self.communication
        if own.cluster >= self.sms_per_tpc:
            return 1
        beside = ThreadBlock(own.threads, own.registers, own.shared_bytes)
        return self.sms_per_tpc if self.carve_out_kib(block) > self.carve_out_kib(beside) else 1

    def large_tile(self) -> ThreadBlock:
        """A block of a product that nobody recorded: libraries' tiles for tensor cores fill shared memory."""
        return ThreadBlock(256, 128, self.carve_outs_kib[-1] * _KIB - self.reserved_bytes)


def resident_blocks(
    block_threads: npt.ArrayLike, thread_registers: npt.ArrayLike, block_bytes: npt.ArrayLike,
    *, threads: int, registers: int, shared_bytes: int, reserved_bytes: int, blocks: int,
) -> npt.NDArray[np.int64]:  # fmt: skip
    """Blocks of each launch that an SM with so much of each holds: the least of four limits."""
    warps = np.maximum(-(-np.asarray(block_threads, dtype=np.int64) // _WARP), 1)
    wanted = np.asarray(thread_registers, dtype=np.int64)
    of_warp = np.maximum(-(-wanted * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT, 1)
    fits = np.minimum(threads // (warps * _WARP), registers // (of_warp * warps))
    taken = np.asarray(block_bytes, dtype=np.int64)
    by_shared = shared_bytes // np.maximum(taken + reserved_bytes, 1)
    found: npt.NDArray[np.int64] = np.clip(np.minimum(fits, by_shared), 0, blocks)
    return found


def fences_ps(generation: str) -> tuple[int, int]:
    """How long a kernel waits for writes that fill the links, and for a few peers'; Note [Fences]."""
    if generation not in names("hardware_profiles", "sm"):
        return 0, 0
    own = load_sm(generation).communication
    return round(own.full_us * PS_PER_US), round(own.fence_us * PS_PER_US)


@cache
def load_sm(generation: str) -> SmSpec:
    """The SM of a generation.  Errors: InputError for an unknown one."""
    found: SmSpec = load_named(SmSpec, "sm", generation, "no SM of GPU generation")
    return found
