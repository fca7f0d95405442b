"""Thread blocks of recorded products that have a tile of the output, and of those whose grid nobody recorded.

CUTLASS's kernels, cuBLAS's among them, walk over the output in strips of up to eight tiles and launch whole
strips: blocks beyond the output end at once (GemmIdentityThreadblockSwizzle, NVIDIA/cutlass
include/cutlass/gemm/threadblock/threadblock_swizzle.h).  So a grid may have a third more blocks than tiles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from math import ceil
from typing import Final

import numpy as np

from simcore.cost.framework_op import kernel_of_op
from simcore.cost.gemm import gemm_dims
from simcore.graph.ops import IntArray
from simcore.hardware.sm import ThreadBlock, load_sm
from simcore.hardware.specs import GpuSpec
from simcore.tables import names
from simcore.units import PS_PER_S
from workloads.imports.recorded import RecordedOps

#: "cutlass_80_tensorop_s1688gemm_64x128_32x3_nt_align4": tiles of 64 columns and 128 rows, as torch has them.
_TILE: Final = re.compile(r"cutlass_\w*gemm_(?:\w+?_)?(\d{2,3})x(\d{2,3})_")
#: (tiles of a row from which on, width of a strip)
_STRIPS: Final = ((6, 8), (3, 4), (2, 2))
_PRODUCTS: Final = ("gemm", "bgemm")
_PRODUCT: Final = "gemm/conv"

#: The largest tile of cuBLAS's products for tensor cores, elements of two bytes.
_LARGE_TILE: Final = 128 * 256
_ELEMENT_BYTES: Final = 2
#: Scratch that XLA passes to cuBLAS as a result: what cuBLAS recommends (its manual, cublasSetWorkspace).
_SCRATCH_BYTES: Final[Mapping[str, int]] = {"volta": 4 << 20, "ampere": 4 << 20}
_SCRATCH_LATER_BYTES: Final = 32 << 20
#: A product of which nothing but its time is known is taken to be as deep as small language models are wide,
#: and tiles of a wave to be a multiple of 32, as sizes are powers of two.  A guess (docs/contention.md,
#: "Products without a grid").
_USUAL_DEPTH: Final = 2048
_WAVE_MULTIPLE: Final = 32


def tiles_of(name: str, blocks: int, m: int, n: int, batch: int) -> int:
    """Tiles of products ``[m, k] x [k, n]``, in slices of k if there are any, that ``blocks`` have.

    All blocks where the name tells no tile that makes such a grid.
    """
    found = _TILE.search(name.lower())
    if found is None or min(m, n, batch) < 1:
        return blocks
    columns, rows = ceil(n / int(found[1])), ceil(m / int(found[2]))
    strip = next((width for least, width in _STRIPS if columns >= least), 1)
    slices, rest = divmod(blocks, ceil(columns / strip) * strip * rows * batch)
    return columns * rows * batch * slices if slices and not rest else blocks


def recorded_tiles(ops: RecordedOps) -> IntArray:
    """Blocks of each kernel that have something to do; 0 where no grid is recorded."""
    tiles, shapes = ops.blocks.copy(), ops.shapes
    if shapes is None:
        return tiles
    is_cutlass = np.array(["cutlass" in name.lower() for name in ops.name.values], dtype=np.bool_)
    for op in np.flatnonzero(is_cutlass[ops.name.codes] & (ops.blocks > 0) & (shapes.of_op >= 0)).tolist():
        call = int(shapes.of_op[op])
        outs = shapes.out_shapes[call] if shapes.out_shapes is not None else None
        told = _product(shapes.name[call], shapes.in_shapes[call], shapes.in_types[call], outs)
        if told is not None:
            tiles[op] = tiles_of(ops.name[op], int(ops.blocks[op]), *told)
    return tiles


def unrecorded_launch(
    name: str, kind: str, time_ps: int, written_bytes: int, gpu: GpuSpec
) -> tuple[int, int, ThreadBlock | None]:
    """Blocks, blocks per SM and a block of a product of a library that XLA calls and whose grid nobody
    recorded; (0, 0, None) for any other kernel.

    ``kind`` is its category.  Its result says how many tiles there are; where that is not recorded either
    they are as many as its time alone leaves for waves of large tiles.  Of such a guess nothing is said that
    need not be: where no partner is lost to communication, its waves last alike.
    """
    if kind != _PRODUCT or "custom-call" not in name:
        return 0, 0, None
    generation = gpu.table("sm")
    sm = load_sm(generation) if generation in names("hardware_profiles", "sm") else None
    block = sm.large_tile() if sm is not None else None
    scratch = _SCRATCH_BYTES.get(gpu.generation, _SCRATCH_LATER_BYTES) if "cublas" in name else 0
    if written_bytes > scratch:
        return ceil((written_bytes - scratch) / (_ELEMENT_BYTES * _LARGE_TILE)), 1, block
    flops = gpu.peak_flops.get("bf16", gpu.peak_flops.get("fp16", 0.0)) * gpu.gemm_efficiency / gpu.num_sms
    waves = max(1, round(time_ps / PS_PER_S * flops / (2 * _LARGE_TILE * _USUAL_DEPTH)))
    if sm is not None and block is not None and sm.lost(block) == 1:
        block = None
    return waves * max(1, gpu.num_sms // _WAVE_MULTIPLE) * _WAVE_MULTIPLE, 1, block


@lru_cache(maxsize=1 << 12)
def _product(name: str, in_shapes: str, in_types: str, out_shapes: str | None) -> tuple[int, int, int] | None:
    """(m, n, batch) of a framework's op that is a product."""
    kernel = kernel_of_op(name, in_shapes, in_types, out_shapes)
    if kernel is None or kernel.op_class not in _PRODUCTS:
        return None
    m, n, _, batch = gemm_dims(kernel)
    return m, n, batch
