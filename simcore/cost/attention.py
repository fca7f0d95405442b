"""Fused attention (flash attention 1 to 3, cuDNN): blocks of query rows that walk along the keys.

Note [attention model].  One thread block owns ``tile_q`` query rows of one head.  Per score (query, key),
with 2 products in forward and 5 in backward, an SM spends on its units::

    products   2 d products / (peak/SMs * math efficiency)                    tensor cores
    operands   d products * element bytes / operand rows / (128 * clock)      shared memory
    softmax    (1/16 + instructions / fp32 lanes) / clock                     special functions, CUDA cores
    score      the longest + overlap_loss * (the other two)
    step       a tile of keys: its scores * score, at least ``step_s``
    block      tiles of keys it visits * step + block start and end
    sm time    max(all blocks / SMs, the longest block)

What differs between generations follows: tensor cores became faster than the rest of an SM.  A key read
from shared memory serves as many query rows as one instruction, or one warp's registers, hold
(``operand_rows``: 16 for a warp of mma.sync tiles, 32 for two, 64 for a Hopper warpgroup): with 16 rows an
A100 spends as long on operands as on products, an H100 would spend twice as long.  Softmax takes
``softmax_instructions`` and, in forward, head dim / key tile more to rescale the output; H100 has twice the
lanes of A100 for them, and both 16 exponentials per clock.

Causal kernels skip key tiles above the diagonal.  Tiles on it and at the ends of the sequence are done
whole, so short and odd sequences pay more.  Those with a window also skip what lies before it: a block visits
the tiles of a window and of its own rows, 3 of 128 keys for 256 rows in a window of 128.
Of one block of 128 rows scores, softmax and values wait for each other; two blocks on an SM hide that.
Backward adds the query gradient up in fp32: around the main kernel one reads output and its gradient and
clears the sums, and one converts them, both at HBM's speed.
16 exponentials per clock and SM: CUDA programming guide, arithmetic throughput, compute 7.0 to 9.0; 128
bytes per clock and SM: the same guide, shared memory (32 banks of 4 bytes).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcore.cost.kernel import Context, KernelShape, Work, formula, numel
from simcore.cost.parameters import AttentionParameters
from simcore.errors import InputError
from simcore.hardware.specs import GpuSpec
from simcore.records import dataclass

FloatArray = npt.NDArray[np.float64]

SHARED_MEMORY_BYTES_PER_CLOCK_PER_SM = 128
FORWARD_PRODUCTS = 2  # scores, values
BACKWARD_PRODUCTS = 5  # scores again, and gradients of q, k, v and scores

#: CUDA-core instructions per score beside the exponential in backward: forward's multiply-add, a subtraction,
#: a product, and two conversions.
BACKWARD_INSTRUCTIONS = 4.0


@dataclass(frozen=True)
class AttentionShape:
    """One attention: ``heads`` counts batch x heads; ``num_kv_heads`` batch x key/value heads."""

    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    causal: bool
    windowed: bool = False


def estimate_attention(
    heads: FloatArray,
    seq_q: FloatArray,
    seq_k: FloatArray,
    head_dim: FloatArray,
    causal: npt.NDArray[np.bool_],
    *,
    gpu: GpuSpec,
    parameters: AttentionParameters,
    peak_flops: float,
    element_bytes: int,
    backward: bool,
    windowed: bool = False,
) -> FloatArray:
    """Seconds on all SMs; see Note [attention model].  ``heads`` counts batch x heads.

    ``windowed``: ``seq_k`` is how many keys each query sees, up to its own.
    """
    p = parameters
    if backward and p.backward_wide_share and np.all(head_dim > p.wide_head_dim):
        p = replace(p, wide_share=p.backward_wide_share)

    def of(dim: FloatArray, tile_q: int, sms_of_block: int = 1) -> FloatArray:
        score = score_seconds(
            dim, gpu=gpu, parameters=p, peak_flops=peak_flops, element_bytes=element_bytes, backward=backward
        )
        rows, tiles = np.ceil(seq_q / tile_q), np.ceil(seq_k / p.tile_k)
        # Key tiles up to and on the diagonal: r, 2 r, ... over the blocks of a head, and those before them
        # all; the last block has no more than there are.
        ratio, before = tile_q / p.tile_k, np.ceil(np.maximum(0, seq_k - seq_q) / p.tile_k)
        diagonal = ratio * rows * (rows + 1) / 2 + before * rows
        diagonal -= np.maximum(0.0, ratio * rows + before - tiles)
        visited = np.where(causal, diagonal, rows * tiles)
        if windowed:
            tiles = np.minimum(tiles + ratio, np.ceil(seq_q / p.tile_k))
            visited = np.minimum(rows * tiles, ratio * rows * (rows + 1) / 2)
        step = np.maximum(tile_q * p.tile_k * score / sms_of_block, p.step_s)
        total = heads * (visited * step + rows * p.block_s) / (gpu.num_sms / sms_of_block)
        longest = tiles * step + p.block_s
        return np.asarray(np.maximum(total, longest), dtype=np.float64)

    if not p.wide_tile_q:
        return of(head_dim, p.tile_q)
    # What takes wide heads takes narrow ones, too: padded.
    padded = np.maximum(head_dim, p.wide_head_dim + 1)
    wide = of(padded, p.wide_tile_q)
    if p.wide_pairs:
        wide = np.minimum(wide, of(padded, p.wide_tile_q, 2))
    return np.where(head_dim > p.wide_head_dim, wide, np.minimum(of(head_dim, p.tile_q), wide))


def score_seconds(
    head_dim: FloatArray,
    *,
    gpu: GpuSpec,
    parameters: AttentionParameters,
    peak_flops: float,
    element_bytes: int,
    backward: bool,
) -> FloatArray:
    """Seconds of one SM for one score; see Note [attention model].  ``peak_flops``: of all SMs."""
    p = parameters
    efficiency = p.backward_efficiency if backward else p.math_efficiency
    overlap_loss = p.backward_overlap_loss if backward else p.overlap_loss
    count = BACKWARD_PRODUCTS if backward else FORWARD_PRODUCTS
    reached = efficiency * np.where(head_dim > p.wide_head_dim, p.wide_share, 1.0)
    products = 2 * count * head_dim / (peak_flops / gpu.num_sms * reached)
    clock = gpu.boost_clock_hz
    operands = count * head_dim * element_bytes / p.operand_rows
    operands = operands / (SHARED_MEMORY_BYTES_PER_CLOCK_PER_SM * clock)
    lanes_per_s = gpu.peak("fp32") / (2 * gpu.num_sms)  # a multiply-add counts 2
    instructions = BACKWARD_INSTRUCTIONS if backward else p.softmax_instructions + head_dim / p.tile_k
    softmax = 1 / (gpu.exp_per_clock_per_sm * clock) + instructions / lanes_per_s
    longest = np.maximum(np.maximum(products, operands), softmax)
    return np.asarray(longest + overlap_loss * (products + operands + softmax - longest), dtype=np.float64)


@formula("attention_fwd", "attention_bwd")
def attention(kernel: KernelShape, context: Context) -> Work:
    """Fused attention forward or backward (one demand for all its launches)."""
    p = context.parameters.attention[family(kernel.name, context)]
    backward = kernel.op_class == "attention_bwd"
    shape = attention_shape(kernel)
    gpu = context.gpu
    peak = attention_peak_flops(kernel.dtype, context)
    seconds = estimate_attention(
        np.array([float(shape.heads)]),
        np.array([float(shape.seq_q)]),
        np.array([float(shape.seq_k)]),
        np.array([float(shape.head_dim)]),
        np.array([shape.causal]),
        gpu=gpu,
        parameters=p,
        peak_flops=peak,
        element_bytes=kernel.element_bytes,
        backward=backward,
        windowed=shape.windowed,
    )
    traffic = float(kernel.bytes_read + kernel.bytes_written)
    query = shape.heads * shape.seq_q * shape.head_dim
    if traffic == 0:
        keys = shape.kv_heads * shape.seq_k * shape.head_dim
        traffic = kernel.element_bytes * ((4 * query + 4 * keys) if backward else (2 * query + 2 * keys))
    sm_s = float(seconds[0])
    if backward:
        around = query * (2 * kernel.element_bytes + 4 + 4 + kernel.element_bytes)
        sm_s += around / context.hbm_bytes_per_s
        traffic += around
    rows = math.ceil(shape.seq_q / p.tile_q)
    blocks = {"none": shape.heads * rows, "static": gpu.num_sms, "dynamic": 0}[p.persistent]
    launches = 3 if backward else 1
    fitted = p.fitted and kernel.dtype != "float32"
    return Work(sm_s, traffic, p.prologue_s, blocks, 1, launches, fitted=fitted)


def attention_peak_flops(dtype: str, context: Context) -> float:
    """Flop/s of the products inside fused attention.

    In fp32 only memory-efficient attention exists.  From Ampere on it takes three tf32 products for an fp32
    one (CUTLASS OpMultiplyAddFastF32; PyTorch, aten/src/ATen/native/transformers/cuda/mem_eff_attention/
    gemm_kernel_utils.h at 1f1047b7), whatever the math mode of other products; before, CUDA cores.
    """
    peaks = context.gpu.peak_flops
    if dtype == "float32" and "tf32" in peaks:
        return peaks["tf32"] / 3
    return context.gpu.peak(context.math_mode(dtype))


def family(name: str, context: Context) -> str:
    """Kernel family of an attention op: the one its name contains, else the software preset's."""
    lowered = name.lower()
    named = [known for known in context.parameters.attention if known in lowered]
    if named:
        return max(named, key=len)
    return context.attention


def attention_shape(kernel: KernelShape) -> AttentionShape:
    """Heads, lengths and head dim from q, k, v (first three inputs; in backward after the gradient).

    ``aten`` ops hold ``[batch, heads, seq, dim]``.  Flash-attention packages hold ``[batch, seq, heads,
    dim]`` or Megatron's ``[seq, batch, heads, dim]``: there the lengths follow from the flops when they are
    recorded (multiply-adds count 2, causality not deducted), which no layout changes.  Packed sequences,
    ``[tokens, heads, dim]``, are taken to be as long as each other: tokens as many, scores as many.
    Causal unless the name says "full" or "noncausal", or the lengths differ.  Where it says "window" a query
    sees as many keys as there are, up to its own.
    Errors: InputError when the inputs are not tensors of rank 3 or 4.
    """
    backward = kernel.op_class == "attention_bwd"
    tensors = [shape for shape in kernel.in_shapes if len(shape) >= 3]
    if backward and len(tensors) >= 4:
        tensors = tensors[1:]  # the first is the gradient of the output
    if len(tensors) < 2:
        raise InputError(f"attention op {kernel.name!r} needs q, k, v of rank 3 or 4, got {kernel.in_shapes}")
    query, key = tensors[0], tensors[1]
    dim = query[-1]
    if "scaled_dot_product" in kernel.name or kernel.flops <= 0:
        seq_q, seq_k = query[-2], key[-2]
    else:
        per_score = 2 * (BACKWARD_PRODUCTS if backward else FORWARD_PRODUCTS)
        seq_k = max(1, round(kernel.flops / (per_score * max(1, numel(query)))))
        # Self-attention when some axis has the keys' length, whatever the layout and number of key heads.
        packed = len(query) == 3 and query[0] == key[0] and seq_k != key[-2]
        seq_q = seq_k if packed or seq_k in query[:-1] else query[-2]
    heads = numel(query) // max(1, seq_q * dim)
    kv_heads = numel(key) // max(1, seq_k * key[-1])
    named_full = "full" in kernel.name or "noncausal" in kernel.name
    causal = seq_q == seq_k and not named_full
    windowed = "window" in kernel.name and not causal
    return AttentionShape(max(1, heads), max(1, kv_heads), seq_q, seq_k, dim, causal, windowed)
