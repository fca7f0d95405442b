"""Scans of state-space and delta-rule layers in chunks, and the short convolutions before them.

Note [Scans in chunks].  Triton's kernels of mamba_ssm give a chunk of a head to a block, whose loops over a
chunk are a few steps deep: each waits for its operands and for decays that are found pair by pair, and tensor
cores are idle most of the time.  A block takes about as long for a long chunk as for a short one, so what an
SM does in a clock grows with the chunk, and hardly with the rate of its tensor cores.  A kernel takes the
longer of its flops at that rate and its bytes.
Measured: Nemotron 3 Nano under NeMo Automodel on eight Hopper GPUs, an Nsight breakdown by kernel (8,192
tokens, 64 heads of 64, states of 128, 8 groups, chunks of 128): all kernels of a layer 3.11 ms, the gradient
of inputs 343 us, states 161 us, the convolution 191 and 365 us; five forward kernels on an H100
(vllm-project/vllm pull request 27299: 128 heads, one group, chunks of 256) 12.6 million tokens/s at 8,192
tokens, 11.8 at 32,768.  At 1.7 GHz one rate gives 3.2 ms, 295, 170, 191 and 366 us, and 12.9 and 13.2
million tokens/s.

Note [Walks through chunks].  flash-linear-attention's kernels of the gated delta rule are the longer of their
bytes and of their flops at a rate of an SM, but two that walk through the states of a sequence: a block holds
32 columns of a head's state and goes from chunk to chunk, an SM has one block at a time, and a step takes
about as many clocks as there are rows of the state, for each of its products (two forward, three backward).
So a walk's time is that of its steps, whether 4 heads or 32 are on a GPU of 132 SMs. Measured (heads of 128,
forward unless said): chunk_gdn 2.033 ms (8,192 tokens of 96 heads) and 1.342 ms (two of 16,384, 16 heads) on
H800 (PaddlePaddle/flash-attention pull request 133); 0.11 and 0.22 ms for two of 4,096 and 8,192 tokens with
four heads of 64 on H200 (tile-ai/TileOPs pull request 476); backward 2.48 to 2.60 times forward for 32 and 64
heads of 4,096 to 65,536 tokens on Hopper (by what FlashQLA gains on each: NVIDIA/Megatron-LM pull request
5564). Both constants are from these. Not seen by them: B200, 0.263 and 0.362 ms for 8 heads of 4,096 and
8,192 tokens, 0.412 for 16 of 8,192 (vllm-project/vllm pull request 38981), 0.774 and 1.492 for 96 of 4,096
and 8,192 (flashinfer-ai/flashinfer pull request 2742); ``tests/models/test_delta_net.py`` has what comes out.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from simcore.cost.kernel import Context, KernelShape, Work, formula
from simcore.cost.memory_bound import streaming_work, tensor_bytes, traffic_class

#: Flops that an SM does in a clock for each token of a chunk, see Note [Scans in chunks].
FLOPS_PER_CLOCK: Final = 1.8
#: Elements that an SM convolves in a clock, forward and backward, with channels side by side in memory.
CONVOLVED_PER_CLOCK: Final = (1.2, 0.62)

#: Flops that an SM does in a clock in kernels of the delta rule, and clocks of a step for each row of a state
#: and each product, see Note [Walks through chunks].
DELTA_FLOPS_PER_CLOCK: Final = 505.0
WALK_CLOCKS: Final = 16.4
#: Columns of a state that a block holds; kernels that walk from chunk to chunk, and dimensions of the states
#: that they write: sequences, chunks, heads, rows and columns.
_COLUMNS: Final = 32
_WALKS: Final = re.compile(r"kernel_(h|dhu)")
_STATES: Final = 5


@formula("scan")
def scan(kernel: KernelShape, context: Context) -> Work:
    """See Note [Scans in chunks]."""
    rate = FLOPS_PER_CLOCK * _chunk(kernel) * context.gpu.num_sms
    return _work(kernel, context, kernel.flops / rate)


def _chunk(kernel: KernelShape) -> float:
    """Tokens of a chunk: what has a row for each token, over what has one for each chunk."""
    rows = [shape[0] for shape in (*kernel.in_shapes, *kernel.out_shapes) if len(shape) > 1]
    return max(rows) / min(rows) if rows and kernel.flops else 1.0


@formula("delta_rule")
def delta_rule(kernel: KernelShape, context: Context) -> Work:
    """See Note [Walks through chunks]."""
    states = next((shape for shape in kernel.out_shapes if len(shape) == _STATES), None)
    if states is None or not _WALKS.search(kernel.name):
        return _work(kernel, context, kernel.flops / (DELTA_FLOPS_PER_CLOCK * context.gpu.num_sms))
    batch, chunks, heads, rows, columns = states
    blocks = batch * heads * -(-columns // _COLUMNS)
    products = 3 if "bwd" in kernel.name else 2
    waves = -(-blocks // context.gpu.num_sms)
    work = _work(kernel, context, chunks * rows * products * WALK_CLOCKS * waves)
    return replace(work, blocks=blocks)


@formula("short_conv")
def short_conv(kernel: KernelShape, context: Context) -> Work:
    """A causal convolution over a few tokens, channel by channel (causal_conv1d)."""
    forward, backward = CONVOLVED_PER_CLOCK
    each = backward if "bwd" in kernel.name else forward
    _, written = tensor_bytes(kernel)
    return _work(kernel, context, written / kernel.element_bytes / (each * context.gpu.num_sms))


def _work(kernel: KernelShape, context: Context, clocks: float) -> Work:
    traffic = sum(tensor_bytes(kernel))
    return streaming_work(
        traffic, 1, traffic_class("elementwise", context), context,
        instructions=clocks / context.gpu.boost_clock_hz,
    )  # fmt: skip
