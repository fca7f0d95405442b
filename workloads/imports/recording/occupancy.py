"""How many thread blocks of a kernel fit on an SM at a time, from what a profiler records of its launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simcore.graph.ops import IntArray

_WARP = 32
_MAX_BLOCKS = 32  # CUDA programming guide, table of compute capabilities: 7.0 and 8.0 to 10.0
_REGISTER_UNIT = 256  # registers are given to a warp in this unit (same source, 3.0 on)
_RESERVED_BYTES = 1024  # of shared memory, per block, for CUDA itself (compute capability 8.0 on)


def blocks_per_sm(launches: IntArray, device: Mapping[str, Any]) -> IntArray:
    """Resident blocks of each launch; 0 where the launch is not described.

    ``launches`` has the rows blocks, threads per block, registers per thread, shared memory (bytes per block)
    and estimated occupancy (percent of the GPU's warps, as limited by the grid too); ``device`` is one of
    the trace's ``deviceProperties``.  The smallest of four limits (registers, shared memory, threads,
    blocks); where the device is not described the estimated occupancy of 64 warps.
    """
    _, threads, registers, shared_bytes, percent = launches
    warps = -(-threads // _WARP)
    known = threads > 0
    per_block = np.maximum(warps, 1)
    limits = [_number(device, key) for key in _LIMITS]
    if not all(limits):
        estimate = np.maximum(1, np.rint(percent / 100 * 64 / per_block).astype(np.int64))
        return np.where(known & (percent > 0), estimate, 0)
    max_threads, max_registers, max_shared = limits
    of_warp = np.maximum(-(-registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT, 1)
    reserved = _RESERVED_BYTES if _number(device, "computeMajor") >= 8 else 0
    fits = np.minimum(max_threads // (per_block * _WARP), max_registers // (of_warp * per_block))
    fits = np.minimum(fits, max_shared // np.maximum(shared_bytes + reserved, 1))
    return np.where(known, np.clip(fits, 1, _MAX_BLOCKS), 0)


_LIMITS = ("maxThreadsPerMultiprocessor", "regsPerMultiprocessor", "sharedMemPerMultiprocessor")


def _number(device: Mapping[str, Any], key: str) -> int:
    value = device.get(key)
    return value if type(value) is int and 0 < value < 1 << 40 else 0
