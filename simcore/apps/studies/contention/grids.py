"""Grids of recorded products beside those that the cost model gives them by their shapes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from simcore.apps.replay.categories import CATEGORIES, categories
from simcore.apps.replay.shapes import kernel_of_call
from simcore.apps.replay.tiles import recorded_tiles
from simcore.cost.roofline import RooflineCost
from simcore.hardware.specs import GpuSpec
from workloads.imports import ImportedJob

#: The next tile of a library has twice or half the area.
_ONE_CHOICE: Final = 2.0
_ON_CUDA_CORES: Final = ("sgemm", "simt", "gemv")
_SECOND: Final = ("splitkreduce", "reduce_kernel", "gemmk1")  # launched behind a product, or none of tiles


def product_grids(job: ImportedJob, gpu: GpuSpec) -> dict[str, Any]:
    """Of distinct products with recorded grids and shapes: how many, shares equal and within one tile.

    What is compared are blocks that have a tile, see :mod:`simcore.apps.replay.tiles`.

    Empty without any, or where the model spreads products over all SMs (Hopper).
    """
    costs = {math: RooflineCost(gpu, math) for math in ("ieee", "tf32")}
    seen: dict[tuple[str, int, str], float] = {}
    for rank in job.ranks:
        ops = rank.recorded
        if ops.shapes is None:
            continue
        kinds, tiles = categories(ops), recorded_tiles(ops)
        products = (kinds == CATEGORIES.index("gemm/conv")) & ops.is_kernel & (ops.blocks > 0)
        for op in np.flatnonzero(products & (ops.shapes.of_op >= 0)).tolist():
            call, name, blocks = int(ops.shapes.of_op[op]), ops.name[op].lower(), int(ops.blocks[op])
            key = name, blocks, ops.shapes.in_shapes[call]
            kernel = kernel_of_call(ops.shapes, call)
            if key in seen or kernel is None or any(word in name for word in _SECOND):
                continue
            if kernel.op_class not in ("gemm", "bgemm"):
                continue
            on_cuda_cores = any(word in name for word in _ON_CUDA_CORES)
            asked = costs["ieee" if on_cuda_cores else "tf32"].work(kernel).blocks
            if asked:
                seen[key] = asked / int(tiles[op])
    ratios = np.array(list(seen.values()))
    if not len(ratios):
        return {}
    near = (ratios <= _ONE_CHOICE) & (ratios >= 1 / _ONE_CHOICE)
    return {
        "products": len(ratios), "equal": float((ratios == 1.0).mean()), "one_choice": float(near.mean()),
    }  # fmt: skip
