"""Thread blocks of recorded products that have a tile of the output.

CUTLASS's kernels, cuBLAS's among them, walk over the output in strips of up to eight tiles and launch whole
strips: blocks beyond the output end at once (GemmIdentityThreadblockSwizzle, NVIDIA/cutlass
include/cutlass/gemm/threadblock/threadblock_swizzle.h).  So a grid may have a third more blocks than tiles.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import ceil
from typing import Final

import numpy as np

from simcore.cost.framework_op import kernel_of_op
from simcore.cost.gemm import gemm_dims
from simcore.graph.ops import IntArray
from workloads.imports.recorded import RecordedOps

#: "cutlass_80_tensorop_s1688gemm_64x128_32x3_nt_align4": tiles of 64 columns and 128 rows, as torch has them.
_TILE: Final = re.compile(r"cutlass_\w*gemm_(?:\w+?_)?(\d{2,3})x(\d{2,3})_")
#: (tiles of a row from which on, width of a strip)
_STRIPS: Final = ((6, 8), (3, 4), (2, 2))
_PRODUCTS: Final = ("gemm", "bgemm")


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


@lru_cache(maxsize=1 << 12)
def _product(name: str, in_shapes: str, in_types: str, out_shapes: str | None) -> tuple[int, int, int] | None:
    """(m, n, batch) of a framework's op that is a product."""
    kernel = kernel_of_op(name, in_shapes, in_types, out_shapes)
    if kernel is None or kernel.op_class not in _PRODUCTS:
        return None
    m, n, _, batch = gemm_dims(kernel)
    return m, n, batch
