"""How many thread blocks of a kernel fit on an SM at a time, from what a profiler records of its launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simcore.graph.ops import IntArray
from simcore.hardware.sm import resident_blocks

_WARP = 32
_MAX_BLOCKS = 32  # CUDA programming guide, table of compute capabilities: 7.0 and 8.0 to 10.0
_RESERVED_BYTES = 1024  # of shared memory, per block, for CUDA itself (compute capability 8.0 on)


def blocks_per_sm(launches: IntArray, device: Mapping[str, Any]) -> IntArray:
    """Resident blocks of each launch; 0 where the launch is not described.

    ``launches`` has the rows blocks, threads per block, registers per thread, shared memory (bytes per block)
    and estimated occupancy (percent of the GPU's warps, as limited by the grid too); ``device`` is one of
    the trace's ``deviceProperties``.  The smallest of four limits (registers, shared memory, threads,
    blocks); where the device is not described the estimated occupancy of 64 warps.
    """
    _, threads, registers, shared_bytes, percent = launches
    known = threads > 0
    limits = [_number(device, key) for key in _LIMITS]
    if not all(limits):
        per_block = np.maximum(-(-threads // _WARP), 1)
        estimate = np.maximum(1, np.rint(percent / 100 * 64 / per_block).astype(np.int64))
        return np.where(known & (percent > 0), estimate, 0)
    max_threads, max_registers, max_shared = limits
    fits = resident_blocks(
        threads, registers, shared_bytes, threads=max_threads, registers=max_registers,
        shared_bytes=max_shared, blocks=_MAX_BLOCKS,
        reserved_bytes=_RESERVED_BYTES if _number(device, "computeMajor") >= 8 else 0,
    )  # fmt: skip
    return np.where(known, np.maximum(fits, 1), 0)


_LIMITS = ("maxThreadsPerMultiprocessor", "regsPerMultiprocessor", "sharedMemPerMultiprocessor")


def _number(device: Mapping[str, Any], key: str) -> int:
    value = device.get(key)
    return value if type(value) is int and 0 < value < 1 << 40 else 0
