"""Convolutions as implicit products, those of single channels, copies between orders of channels, batch
norms.

Note [Implicit GEMM].  A convolution of ``[N, C, H, W]`` with K filters of R x S pixels is a product per group
(cuDNN's implicit_gemm kernels; arXiv 1410.0759)::

    forward           [N OH OW, C R S] x [C R S, K]
    input gradient    [N H W, K R S / stride^2] x [.., C]
    filter gradient   [K, N OH OW] x [N OH OW, C R S]        (split along pixels)

Rows are gathered on the way, so that HBM carries image, filters and output once, not the unfolded rows.
Images of few channels (three) are read in vectors of ``channel_vector`` all the same.  A name that ends with
".nhwc" or ".nchw" tells how the kernel finds its channels.

Note [Single channels].  A filter for each channel alone (depthwise) is no product: CUDA cores multiply, and
every input pixel is loaded into registers from cache ``R x S`` times or in rows.  Its time is the longer of
bytes at ``depthwise_share`` of bandwidth and instructions, ``depthwise_instructions`` per multiply-add.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from simcore.cost.gemm import CUDA_CORE_MODES, gemm_work
from simcore.cost.kernel import Context, KernelShape, Shape, Work, formula, numel
from simcore.cost.memory_bound import INTEGER_LANES, streaming_work, tensor_bytes, traffic_class
from simcore.records import dataclass
from simcore.tables import Share, keys_of, load, names


@dataclass(frozen=True)
class ConvolutionParameters:
    """cuDNN's convolutions beside products of the same sizes, and what stands between them.

    ``efficiency``: rate over a product's where channels lie together (NHWC); ``by_channel_efficiency``: of a
    kernel that reads images channel by channel (NCHW) in 16 bits, further; ``grouped_efficiency``: where
    channels are in groups, further.  ``grouped_direct_share``: share of CUDA cores' peak that gradients of
    groups reach in NHWC, whose kernels multiply there.  ``simt_gain``: multiplications that fast algorithms
    (Winograd) save on CUDA cores where filters are 3 x 3.  ``channel_vector``: channels that are read
    together.
    ``depthwise_share``, ``depthwise_filter_share``: share of usable bandwidth of single channels, and of the
    gradient of their filters; ``depthwise_instructions``, ``depthwise_filter_instructions``: instructions per
    multiply-add there.  ``batch_norm_kept_bytes``: what an SM keeps of an image in registers and shared
    memory between the two passes of a fused norm.  ``pool_share``, ``layout_share``, ``batch_norm_share``:
    share of usable bandwidth of pools, of copies between orders of channels, and of norms over a batch.
    """

    efficiency: Share
    by_channel_efficiency: Share
    grouped_efficiency: Share
    grouped_direct_share: Share
    simt_gain: float
    channel_vector: int
    depthwise_share: Share
    depthwise_filter_share: Share
    depthwise_instructions: float
    depthwise_filter_instructions: float
    pool_share: Share
    layout_share: Share
    batch_norm_share: Share
    batch_norm_kept_bytes: float
    fitted: bool
    source: str


#: Pixels of a filter for which fast algorithms are used.
_WINOGRAD: Final = 9


@cache
def load_convolution(generation: str) -> ConvolutionParameters:
    """Constants of cuDNN on a generation: those of the latest that has any where it has none.

    Errors: InputError for an unknown or missing key, a value out of range.
    """
    known = names("hardware_profiles", "cudnn")
    chosen = generation if generation in known else _LATEST
    table = load(keys_of(ConvolutionParameters), "hardware_profiles", f"cudnn/{chosen}.toml")
    return ConvolutionParameters(**table)


_LATEST: Final = "hopper"


@dataclass(frozen=True)
class Filters:
    """Sizes of a convolution: images, filters per group, pixels of the output."""

    images: int
    channels: int
    filters: int
    groups: int
    window: int
    pixels_in: int
    pixels_out: int

    @property
    def multiply_adds(self) -> int:
        """Of each of the products."""
        return self.images * self.pixels_out * self.filters * self.channels // self.groups * self.window

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel has filters of its own."""
        return self.groups > 1 and self.channels == self.groups

    def product(self, of: str) -> tuple[int, int, int, int]:
        """(m, n, k, groups) of the product that gives the "output", the "input" or the "filter" gradient."""
        inner, outer = self.channels // self.groups, self.filters // self.groups
        depth = inner * self.window
        rows = self.images * self.pixels_out
        if of == "filter":
            return outer, depth, rows, self.groups
        if of == "input":
            # Of the filter's pixels only those meet an input pixel that the stride lands on.
            into = self.images * self.pixels_in
            share = max(1, self.pixels_in // max(1, self.pixels_out))
            return into, inner, max(1, -(-outer * self.window // share)), self.groups
        return rows, outer, depth, self.groups


def filters_of(kernel: KernelShape) -> tuple[Filters, tuple[str, ...]] | None:
    """The sizes, and which gradients are computed; None where shapes do not tell.

    Forward has image and filters in and the output out; backward the output's gradient, image and filters in,
    and the gradients that are wanted out (ATen's ``convolution_backward``).
    """
    spatial = [shape for shape in kernel.in_shapes if len(shape) >= 3]
    backward = "backward" in kernel.name or kernel.name.endswith("_bwd")
    if len(spatial) < (3 if backward else 2):
        return None
    if backward:
        output, image, weight = spatial[:3]
        outs = [shape for shape in kernel.out_shapes if len(shape) >= 3]
        wanted = tuple("filter" if shape == weight else "input" for shape in outs) or ("input", "filter")
    else:
        image, weight = spatial[:2]
        if not kernel.out_shapes or len(kernel.out_shapes[0]) < 3:
            return None
        output, wanted = kernel.out_shapes[0], ("output",)
    if min(numel(image), numel(weight), numel(output)) == 0:
        return None
    groups = max(1, image[1] // weight[1])
    sizes = Filters(
        images=image[0], channels=image[1], filters=weight[0], groups=groups, window=_product(weight[2:]),
        pixels_in=_product(image[2:]), pixels_out=_product(output[2:]),
    )  # fmt: skip
    return sizes, wanted


def _product(shape: Shape) -> int:
    return max(1, numel(shape))


@formula("conv")
def convolution(kernel: KernelShape, context: Context) -> Work:
    """See Note [Implicit GEMM] and Note [Single channels]."""
    found = filters_of(kernel)
    if found is None:
        return _by_flops(kernel, context)
    sizes, wanted = found
    p = load_convolution(context.parameters.generation)
    size = kernel.element_bytes
    image = size * sizes.images * sizes.channels * sizes.pixels_in
    output = size * sizes.images * sizes.filters * sizes.pixels_out
    if sizes.is_depthwise:
        return _of_single_channels(sizes, wanted, image + output, context)
    simt = context.math_mode(kernel.dtype) in CUDA_CORE_MODES
    together = kernel.name.endswith(".nhwc")
    total = Work(0.0, 0.0)
    for of in wanted:
        m, n, k, groups = sizes.product(of)
        if of == "output" and sizes.channels < p.channel_vector:
            k = k // sizes.channels * p.channel_vector
        work = gemm_work(
            m, n, k, groups, kernel.dtype, size, 4 if of == "filter" else size, context,
            replayed=kernel.replayed, traffic=float(image + output),
        )  # fmt: skip
        sm_s = work.sm_s / p.efficiency
        if groups > 1 and together and of != "output" and not simt:
            sm_s = 2 * sizes.multiply_adds / (context.gpu.peak("fp32") * p.grouped_direct_share)
        elif groups > 1:
            sm_s /= p.grouped_efficiency
        elif kernel.name.endswith(".nchw") and not simt:
            sm_s /= p.by_channel_efficiency
        if simt and sizes.window == _WINOGRAD and groups == 1:
            sm_s /= p.simt_gain
        total = Work(
            total.sm_s + sm_s, total.hbm_bytes + work.hbm_bytes, max(total.prologue_s, work.prologue_s), 0, 1,
            len(wanted), fitted=p.fitted,
        )  # fmt: skip
    return total


def _of_single_channels(sizes: Filters, wanted: tuple[str, ...], num_bytes: int, context: Context) -> Work:
    p, gpu = load_convolution(context.parameters.generation), context.gpu
    macs = sizes.multiply_adds
    rate = INTEGER_LANES * gpu.num_sms * gpu.boost_clock_hz
    usable = context.hbm_bytes_per_s
    sm_s = bytes_moved = 0.0
    for of in wanted:
        share = p.depthwise_filter_share if of == "filter" else p.depthwise_share
        each = p.depthwise_filter_instructions if of == "filter" else p.depthwise_instructions
        sm_s += max(macs * each / rate, num_bytes / (usable * share))
        bytes_moved += num_bytes
    return Work(sm_s, bytes_moved, context.parameters.memory.prologue_s, 0, 1, len(wanted), fitted=p.fitted)


def _by_flops(kernel: KernelShape, context: Context) -> Work:
    """A convolution whose shapes were not recorded: a cube of as many flops."""
    side = max(1, round((kernel.flops / 2) ** (1 / 3)))
    size = kernel.element_bytes
    work = gemm_work(side, side, side, 1, kernel.dtype, size, size, context, replayed=kernel.replayed)
    read, written = tensor_bytes(kernel)
    return Work(work.sm_s, (read + written) or work.hbm_bytes, work.prologue_s, 0, 1, 1)


@formula("layout")
def layout(kernel: KernelShape, context: Context) -> Work:
    """Copies by cuDNN between orders of channels: tiles through shared memory, near the speed of a copy."""
    read, written = tensor_bytes(kernel)
    share = load_convolution(context.parameters.generation).layout_share
    return streaming_work((read + written) / share, 1, traffic_class("fill", context), context)


@formula("pool")
def pool(kernel: KernelShape, context: Context) -> Work:
    """Windows over an image: a thread for each output reads its window, mostly from cache."""
    p = traffic_class("reduction", context)
    read, written = tensor_bytes(kernel)
    return streaming_work(
        (read + written) / load_convolution(context.parameters.generation).pool_share, 1, p, context
    )


@formula("batch_norm_fwd", "batch_norm_bwd")
def batch_norm(kernel: KernelShape, context: Context) -> Work:
    """Norms over a batch: a pass for the sums over each channel, and one that uses them.

    Forward reads the image twice and writes it once, backward reads image and gradient twice.  Fused norms
    are persistent kernels: what fits into the SMs is read once.  Inference has no sums; its columns count as
    elementwise.
    """
    read, written = tensor_bytes(kernel)
    cudnn = load_convolution(context.parameters.generation)
    again = read
    if kernel.name.startswith("batch_norm_"):
        again = max(0.0, read - cudnn.batch_norm_kept_bytes * context.gpu.num_sms)
    p = traffic_class("fill", context)
    launches = 1 if kernel.name.startswith("batch_norm_") else 2
    return streaming_work((read + again + written) / cudnn.batch_norm_share, launches, p, context)
