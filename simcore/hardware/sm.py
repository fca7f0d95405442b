"""Streaming multiprocessors: how many thread blocks of a kernel fit on one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt

from simcore.tables import Plain, load_named

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
class SmSpec:
    """An SM of one generation: what its blocks share.

    ``blocks`` is how many it holds at most, ``shared_kib`` the most of its L1 cache that can be shared
    memory, ``reserved_bytes`` what CUDA takes of that for each block.
    """

    threads: Whole
    registers: Whole
    blocks: Whole
    shared_kib: Whole
    reserved_bytes: Whole
    source: str = ""

    def fit(self, launch: ThreadBlock) -> int:
        """Blocks that fit on an SM at a time, at least 1: what was launched fitted."""
        found = resident_blocks(
            launch.threads, launch.registers, launch.shared_bytes,
            threads=self.threads, registers=self.registers, shared_bytes=self.shared_kib * _KIB,
            reserved_bytes=self.reserved_bytes, blocks=self.blocks,
        )  # fmt: skip
        return max(1, int(found))


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


@cache
def load_sm(generation: str) -> SmSpec:
    """The SM of a generation.  Errors: InputError for an unknown one."""
    found: SmSpec = load_named(SmSpec, "sm", generation, "no SM of GPU generation")
    return found
