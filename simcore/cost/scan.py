"""Scans of state-space layers in chunks, and the short convolutions before them.

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
"""

from __future__ import annotations

from typing import Final

from simcore.cost.kernel import Context, KernelShape, Work, formula
from simcore.cost.memory_bound import streaming_work, tensor_bytes, traffic_class

#: Flops that an SM does in a clock for each token of a chunk, see Note [Scans in chunks].
FLOPS_PER_CLOCK: Final = 1.8
#: Elements that an SM convolves in a clock, forward and backward, with channels side by side in memory.
CONVOLVED_PER_CLOCK: Final = (1.2, 0.62)


@formula("scan")
def scan(kernel: KernelShape, context: Context) -> Work:
    """See Note [Scans in chunks]."""
    rate = FLOPS_PER_CLOCK * _chunk(kernel) * context.gpu.num_sms
    return _work(kernel, context, kernel.flops / rate)


def _chunk(kernel: KernelShape) -> float:
    """Tokens of a chunk: what has a row for each token, over what has one for each chunk."""
    rows = [shape[0] for shape in (*kernel.in_shapes, *kernel.out_shapes) if len(shape) > 1]
    return max(rows) / min(rows) if rows and kernel.flops else 1.0


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
