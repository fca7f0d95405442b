"""Matrix products: tiles to thread blocks to waves, operands from L2, bytes from HBM.

Note [GEMM model].  A kernel cuts the ``m x n`` output (times batch, times split-K slices) into tiles,
each computed by one thread block that walks along k::

    main loop   2 tm tn k' / (peak/SMs * efficiency) * (1 + I0/I) / (1 + I0/Imax),   I = tm tn / (tm + tn)
    tile        main loop + pipeline fill + epilogue * area / largest area
    waves       tiles / SMs, rounded up (``tail_share`` of the rounding is paid)
    together    small tiles of CUDA-core kernels run on an SM side by side, as many as its registers hold
                accumulators for: their main loops take turns, fill and epilogue come once for all of them
    sm time     max(waves * tile, operand bytes through L2) + split-K reduction

``k'`` is k of one slice rounded up to the tile's depth.  ``I0/I`` is operand delivery that math does not
hide: small tiles load more per multiply-add.  Of all tile and split choices the fastest is taken, as the
library's heuristic aims to.  HBM carries inputs and output once (re-reads of a wave hit L2), less what L2
still holds.  Long tensor-core kernels meet the power limit and settle at ``GpuSpec.gemm_efficiency``.
Every choice's time grows with m, n and k, so their minimum does too.  Math and memory overlap but for
``overlap_loss``; that rest is a start cost, so that taking SMs away slows the math alone.

Note [Swept operands].  CUTLASS's schedulers take tiles along the smaller of m and n first and do not swizzle
them unless told (include/cutlass/gemm/kernel/tile_scheduler_params.h: RasterOrder, max_swizzle_size = 1), so
each column of tiles walks along all of the smaller operand.  What of it L2 does not hold comes from HBM every
time.  cuBLAS's products show nothing of the kind.

Note [Products one by one].  Transformer Engine calls cuBLAS for each expert, on four streams in turn
(multi_stream_cublas_gemm).  A product's tiles take most of the SMs, and it begins and ends with nothing to do
on many: 108 products of 20 to 256 experts on a B200 take about as long as one after the other, whatever the
streams (28.8% off as one kernel, 14.9% so; ``tests/cost/b200_training_kernels.csv``): persistent kernels
hold their SMs to the end.  Where blocks come and go (before Hopper, AMD) the next product takes what becomes
free, and they are as one.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcore.cost.kernel import ELEMENT_BYTES, Context, KernelShape, Shape, Work, formula, numel
from simcore.cost.parameters import GemmParameters
from simcore.elementary import power
from simcore.errors import InputError
from simcore.hardware.specs import GpuSpec
from simcore.records import dataclass

FloatArray = npt.NDArray[np.float64]

#: Math modes whose products run on CUDA cores (A100 and later have fp64 tensor cores, but cuBLAS's DGEMM
#: tiles and efficiency are those of the CUDA-core kernels).
CUDA_CORE_MODES = ("fp32", "fp64")

SCALED_BLOCK = 128

#: In the name of a grouped product: each product is a kernel, see Note [Products one by one].
ONE_BY_ONE = ".each"


@dataclass(frozen=True)
class GemmEstimate:
    """Columns over GEMMs: time on all SMs, HBM bytes, the memory time that neither accounts for (a kernel's
    own limit below the usable bandwidth, and what does not overlap), thread blocks, and the tile chosen.
    """

    sm_s: FloatArray
    hbm_bytes: FloatArray
    exposed_s: FloatArray
    blocks: npt.NDArray[np.int64]
    choice: npt.NDArray[np.int64]  # index into ``choices(parameters)``


def choices(parameters: GemmParameters) -> npt.NDArray[np.float64]:
    """All (tile m, tile n, split) choices, one row each."""
    rows = [(m, n, split) for m, n in parameters.tiles for split in parameters.splits]
    return np.array(rows, dtype=np.float64)


def estimate_gemm(
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
    batch: FloatArray,
    *,
    gpu: GpuSpec,
    parameters: GemmParameters,
    peak_flops: float,
    sustained_efficiency: float,
    element_bytes: float,
    out_bytes: int,
    uneven: bool = False,
    traffic: float | None = None,
    warm_bytes: FloatArray | float = 0.0,
    sweeps: bool = False,
    in_a_row: int = 1,
) -> GemmEstimate:
    """Time and traffic of ``batch`` products ``[m, k] x [k, n]`` each; see Note [GEMM model].

    ``peak_flops``: flop/s of the math unit.  ``sustained_efficiency``: share of it that long kernels keep
    under the power limit.  ``element_bytes``, ``out_bytes``: of one input and one output element.
    ``uneven``: ``m`` is a mean over the batch, whose members each leave half a tile of rows empty on average.
    ``traffic``: bytes of inputs and output, where they are not what the sizes say.
    ``warm_bytes``: of the traffic that L2 holds for sure, and delivers at its own rate.
    ``sweeps``: tiles are taken in plain order, see Note [Swept operands].  ``in_a_row``: so many products
    come one after the other, for the power limit.
    """
    p = parameters
    options = choices(p)
    tile_m, tile_n, split = options.T
    area = tile_m * tile_n
    intensity = area / (tile_m + tile_n)
    column = [array[:, None].astype(np.float64) for array in (m, n, k, batch)]
    m_, n_, k_, batch_ = column

    depth = np.ceil(k_ / split / p.tile_k) * p.tile_k
    row_tiles = np.maximum(1.0, m_ / tile_m + 0.5) if uneven else np.ceil(m_ / tile_m)
    tiles = row_tiles * np.ceil(n_ / tile_n) * split * batch_
    delivery = (1 + p.operand_intensity / intensity) / (1 + p.operand_intensity / intensity.max())
    sm_flops = peak_flops * p.efficiency / gpu.num_sms
    main = 2 * area * depth / sm_flops * delivery * _misalignment(n_, k_, element_bytes, p)
    around = p.tile_latency_s + p.epilogue_s * area / area.max()
    together = np.maximum(1.0, np.floor(p.accumulators / area))
    delivered = p.l2_share * p.multicast * gpu.l2_bytes_per_s
    exact = tiles / gpu.num_sms
    whole = np.ceil(exact)
    waves = np.maximum(1.0, whole - (1 - p.tail_share) * (whole - exact))
    operands = tiles * (tile_m + tile_n) * depth * element_bytes + m_ * n_ * batch_ * out_bytes
    partial = split * m_ * n_ * batch_ * 8  # fp32 slices, written and read again
    reduction = np.where(split > 1, p.split_latency_s + partial / delivered, 0.0)
    side_by_side = np.where(together > 1, np.ceil(whole / together), waves)
    compute = np.maximum(waves * main + side_by_side * around, operands / delivered) + reduction

    whole_traffic = batch_ * (element_bytes * (m_ * k_ + k_ * n_) + out_bytes * m_ * n_)
    if traffic is not None:
        whole_traffic = np.full_like(whole_traffic, traffic)
    if sweeps and p.swept_l2_share:
        each = element_bytes * np.minimum(m_, n_) * k_
        missed = np.maximum(0.0, 1 - p.swept_l2_share * gpu.l2_bytes / each)
        columns = np.ceil(np.maximum(m_, n_) / np.minimum(tile_m, tile_n).max())
        whole_traffic = whole_traffic + batch_ * each * missed * (columns - 1)
    warm = np.reshape(warm_bytes, (-1, 1))
    cold = np.maximum(0.0, whole_traffic - np.maximum(p.warm_l2_share * gpu.l2_bytes, warm))
    memory = cold / (gpu.hbm_bytes_per_s * p.hbm_share)
    memory = np.where(warm > 0, np.maximum(memory, whole_traffic / (p.l2_share * gpu.l2_bytes_per_s)), memory)
    total = np.maximum(compute, memory) + p.overlap_loss * np.minimum(compute, memory)

    best = np.argmin(total, axis=1)
    rows = np.arange(len(best))
    sm_s = compute[rows, best]
    usable = cold[:, 0] / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency)
    exposed = np.maximum(0.0, total[rows, best] - np.maximum(sm_s, usable))
    drop = max(0.0, p.efficiency / sustained_efficiency - 1)
    lasting = sm_s * in_a_row
    sm_s = sm_s * (1 + drop * lasting / (lasting + p.throttle_s))
    return GemmEstimate(sm_s, cold[:, 0], exposed, tiles[rows, best].astype(np.int64), best)


def _misalignment(n: FloatArray, k: FloatArray, element_bytes: float, p: GemmParameters) -> FloatArray:
    """Slowdown of rows that 16-byte loads cannot take: 1 at 16-byte alignment, full at 2 bytes and below."""
    full = 1 << max(1, int(16 / element_bytes)).bit_length() - 1
    elements = np.gcd(np.gcd(n.astype(np.int64), k.astype(np.int64)), full)
    slowdown = np.array([power(p.misaligned_slowdown, min(doublings, 3) / 3) for doublings in range(5)])
    return np.asarray(slowdown[np.frexp(full // elements)[1] - 1])


@formula("gemm", "bgemm")
def gemm(kernel: KernelShape, context: Context) -> Work:
    """Dense and batched matrix products (mm, addmm, linear, bmm, baddbmm, fused weight gradients)."""
    m, n, k, batch = gemm_dims(kernel)
    if kernel.name.startswith("mxfp8") and "fp4" not in context.gpu.peak_flops:
        raise InputError(
            f"GPU {context.gpu.name!r} does not multiply fp8 in blocks of 32 (MXFP8), as GPUs with fp4 do;"
            " nearest: software.fp8_recipe=current"
        )
    narrow = kernel.element_bytes == 1
    out_bytes = 2 if narrow else kernel.element_bytes  # narrow products are stored in bf16
    if "accum" in kernel.name and m * n * batch:
        # A weight gradient is added to what is there: read and written, in fp32 unless columns say otherwise.
        out_bytes = 2 * (round(kernel.bytes_written / (m * n * batch)) or 4)
    each = ONE_BY_ONE in kernel.name and _persists(kernel, context)
    work = gemm_work(
        m, n, k, 1 if each else batch, kernel.dtype, operand_bytes(kernel.dtype, kernel.name), out_bytes,
        context, warm_bytes=kernel.warm_bytes, scales=scales_of(kernel.name),
        uneven="grouped_gemm" in kernel.name, sms_left=sms_left_by(kernel.name), sweeps=is_swept(kernel.name),
        replayed=kernel.replayed or each, in_a_row=batch if each else 1,
    )  # fmt: skip
    if not each:
        return work
    # See Note [Products one by one].
    return replace(
        work, sm_s=work.sm_s * batch, hbm_bytes=work.hbm_bytes * batch, prologue_s=work.prologue_s * batch
    )


def _persists(kernel: KernelShape, context: Context) -> bool:
    mode = context.math_mode(kernel.dtype)
    if mode in CUDA_CORE_MODES:
        return False
    p = context.parameters.products(mode, on_cuda_cores=False, in_blocks=scales_of(kernel.name) > 0)
    return p.persistent != "none"


def gemm_work(
    m: int, n: int, k: int, batch: int, dtype: str, element_bytes: float, out_bytes: int, context: Context,
    *, scales: int = 0, uneven: bool = False, sms_left: int = 0, replayed: bool = False,
    traffic: float | None = None,
    warm_bytes: int = 0, sweeps: bool = False, in_a_row: int = 1,
) -> Work:  # fmt: skip
    """Demand of ``batch`` products ``[m, k] x [k, n]`` of ``dtype``.

    ``scales``: fp8 with scales per block of ``SCALED_BLOCK`` along k (arXiv 2412.19437, 3.3.2): CUDA cores
    scale and add the tensor cores' partial sums once per block, with so many instructions per output.
    ``sms_left``: SMs that the kernel's blocks, one for each of the others, leave free.
    ``uneven``: experts' products, each with its own number of tokens; ``m`` is their mean.
    ``traffic``: bytes of HBM, where the operands are gathered on the way (convolutions).
    ``sweeps``: see Note [Swept operands].  ``in_a_row``: one of so many.
    ``replayed``: from a CUDA graph, as the benchmarks that gave ``prologue_s``.  A product launched by itself
    starts no faster than the memory-bound kernels recorded around it.
    """
    mode = context.math_mode(dtype)
    gpu = context.gpu
    on_cuda_cores = mode in CUDA_CORE_MODES
    p = context.parameters.products(mode, on_cuda_cores=on_cuda_cores, in_blocks=scales > 0)
    if min(m, n, k, batch) == 0:
        return Work(0.0, 0.0)
    peak_flops = gpu.peak(mode)
    scales = scales if p.scales_apart else 0
    if scales and mode == "fp8":
        peak_flops = 1 / (1 / peak_flops + scales / (SCALED_BLOCK * gpu.peak("fp32")))
    if (faster := context.beyond.get(mode, 1.0)) > 1:
        # Operands come as quickly as products want them: Note [Beyond fitted kernels], hardware/covered.py.
        gpu = replace(gpu, l2_bytes_per_s=gpu.l2_bytes_per_s * faster)
    if 0 < sms_left < gpu.num_sms:
        peak_flops *= 1 - sms_left / gpu.num_sms
        gpu = replace(gpu, num_sms=gpu.num_sms - sms_left)
    estimate = estimate_gemm(
        *(np.array([size], dtype=np.float64) for size in (m, n, k, batch)),
        gpu=gpu,
        parameters=p,
        peak_flops=peak_flops,
        sustained_efficiency=p.efficiency if on_cuda_cores else gpu.gemm_efficiency,
        element_bytes=element_bytes,
        out_bytes=out_bytes,
        uneven=uneven,
        traffic=traffic,
        warm_bytes=warm_bytes,
        sweeps=sweeps,
        in_a_row=in_a_row,
    )
    tiles = int(estimate.blocks[0])
    blocks = {"none": tiles, "static": min(tiles, gpu.num_sms), "dynamic": 0}[p.persistent]
    if sms_left:
        # One block on each SM: it runs as fast on a whole GPU as beside what holds the others.
        blocks = min(tiles, gpu.num_sms)
    start_s = p.prologue_s if replayed else max(p.prologue_s, context.parameters.memory.prologue_s)
    exposed_s = float(estimate.exposed_s[0])
    if scales > 1 and mode == "fp8":
        # Promoting partial sums takes the registers in which another tile's epilogue would run beside.
        usable_s = float(estimate.hbm_bytes[0]) / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency)
        exposed_s = max(exposed_s, min(usable_s, float(estimate.sm_s[0])))
    prologue_s = start_s + exposed_s
    return Work(float(estimate.sm_s[0]), float(estimate.hbm_bytes[0]), prologue_s, blocks, 1, fitted=p.fitted)


def operand_bytes(dtype: str, name: str) -> float:
    """Bytes of one element of a product's operands, with those scales that the tensor cores read.

    NVFP4: half a byte and a byte for each 16; MXFP8: a byte for each 32 beside one each.
    """
    if dtype.startswith("float4"):
        return 0.5 + 1 / 16
    return ELEMENT_BYTES[dtype] + (1 / 32 if name.startswith("mxfp8") else 0)


def scales_of(name: str) -> int:
    """Instructions per output and block of a product by its name: 0 without scales of blocks.

    A multiply-add where one operand's scale is a block's; a multiply more where both have one for each row or
    column, as weight gradients have (1 x 128 tiles of both, arXiv 2412.19437, section 3.3.2).
    """
    return 0 if "blockwise" not in name else 2 if "wgrad" in name else 1


def is_swept(name: str) -> bool:
    """Whether a product's kernel takes tiles in plain order, by its name: Note [Swept operands]."""
    return "cutlass" in name


def sms_left_by(name: str) -> int:
    """SMs that a product leaves to others, by its name ("blockwise_gemm.sms_left=20")."""
    found = re.search(r"\.sms_left=(\d{1,9})(?!\d)", name)
    return int(found[1]) if found else 0


def gemm_dims(kernel: KernelShape) -> tuple[int, int, int, int]:
    """(m, n, k, batch) of a product, whatever the argument order.

    The output gives m and n; k follows from the flops, else from the operands.  An op without an output
    (a weight gradient accumulated in place) has its operands' outer dims.
    """
    operands = [shape for shape in kernel.in_shapes if len(shape) >= 2]
    batched = kernel.op_class == "bgemm"
    if kernel.out_shapes and len(kernel.out_shapes[0]) >= 2:
        out = kernel.out_shapes[0]
        batch = numel(out[:-2]) if batched else 1
        n = out[-1]
        m = numel(out) // max(1, n * batch)
        size = numel(out)
        if kernel.flops > 0 and size > 0:
            return m, n, max(1, round(kernel.flops / (2 * size))), batch
        return m, n, _inner_dim(operands, out), batch
    if len(operands) >= 2:
        left, right = _rows(operands[0]), _rows(operands[1])
        shared = next((size for size in left if size in right), left[-1])
        m = left[0] * left[1] // max(1, shared)
        n = right[0] * right[1] // max(1, shared)
        return m, n, shared, 1
    side = max(1, round(power(kernel.flops / 2, 1 / 3)))
    return side, side, side, 1


def _rows(shape: Shape) -> tuple[int, int]:
    """A tensor as a matrix: leading dims folded."""
    return numel(shape[:-1]), shape[-1]


def _inner_dim(operands: list[Shape], out: Shape) -> int:
    """Inner dim from the first operand that is not shaped like the output (addmm's bias may be)."""
    for shape in operands:
        if shape != out and shape[-1] > 0:
            return shape[-1]
    return out[-1]
