"""Kernels whose time is the movement of bytes: elementwise, norms, softmax, optimizers, copies.

Note [memory-bound model].  Time is traffic over bandwidth plus the latency of the first bytes.  A class
has a number of passes over its inputs and outputs, the kernels it launches, and the share of usable HBM
bandwidth that its access pattern reaches.  What earlier kernels left in L2 is read from there.  Integer
instructions may take longer than the bytes: PyTorch's kernels for tensors that are not contiguous or are
broadcast divide an index into coordinates for every element, its concatenations and gathers too.  Thread
blocks are many and small: the fluid limit (``blocks == 0``).

Note [ATen's softmax].  PyTorch's kernels (aten/src/ATen/native/cuda: PersistentSoftmax.cuh, SoftMax.cu) hold
a row of up to 1,024 elements in a warp's registers; a block takes a longer one through shared memory where it
fits, and else reads it again for the maximum, the sum and the result (backward: the sum and the result).  On
a GPU with much bandwidth for its SMs the instructions of an element take longer than its bytes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from simcore.cost.classify import normalise
from simcore.cost.kernel import Context, KernelShape, Work, formula, numel
from simcore.cost.parameters import TrafficParameters

#: ATen's multi-tensor kernels (aten/src/ATen/native/cuda/MultiTensorApply.cuh): tensors per launch by number
#: of tensor lists, blocks per launch, elements per block.
TENSORS_PER_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
BLOCKS_PER_LAUNCH = 320
ELEMENTS_PER_BLOCK = 65536


#: Integer instructions per SM and clock (CUDA programming guide, arithmetic throughput, 7.0 to 9.0).
INTEGER_LANES = 64

#: Instructions an element of ATen's softmax: of rows that a warp holds, of longer ones, and with a result of
#: another type, which is not vectorised.  Fitted to 25 rows of an H200 (torch 2.11; 49% off by their bytes
#: alone, 10% by these).
SOFTMAX_WARP_ROW, SOFTMAX_WARP, SOFTMAX_BLOCK, SOFTMAX_CONVERTS = 1024, 25.0, 36.0, 80.0
#: Bytes of a row that shared memory holds without asking for more, and reads of one that it does not.
SOFTMAX_SHARED_BYTES, SOFTMAX_READS, SOFTMAX_BACKWARD_READS = 48 << 10, 3.0, 2.0

#: Bytes that an SM moves in a clock in ATen's layer norm, whose blocks have few loads in flight: median of 13
#: shapes of an H200 in bf16 (1.8 to 2.4 TB/s of 4.3) and of fp32 ones in three programs there (2.0 to 2.2).
LAYER_NORM_BYTES_PER_CLOCK = 8.4

#: Copies that rearrange: no other reason to launch them exists.
_REARRANGING = frozenset(
    [
        "clone",
        "contiguous",
        "cat",
        "concat",
        "stack",
        "repeat",
        "roll",
        "flip",
        "tile",
        "permute_copy",
        "transpose_copy",
        "split_copy",
        "split_with_sizes_copy",
        "slice_scatter",
        "select_scatter",
        "transpose_for_gemm",
    ]
)


def computes_addresses(kernel: KernelShape) -> bool:
    """Whether PyTorch runs its kernel that computes an address for every element, as far as shapes tell."""
    if kernel.strided:
        return True
    if kernel.op_class == "copy":
        return normalise(kernel.name) in _REARRANGING or _widens(kernel)
    shapes = {shape for shape in kernel.in_shapes if numel(shape) > 1}
    return kernel.op_class == "elementwise" and kernel.name.startswith("aten::") and len(shapes) > 1


def _widens(kernel: KernelShape) -> bool:
    """Whether a copy makes 16 bits fp32, which ATen's kernel does one element at a time.

    The other direction is vectorised: on an H200 412 million logits to fp32 take 1,179 us, back 567 us.
    """
    elements = sum(map(numel, kernel.out_shapes))
    return kernel.element_bytes == 2 and kernel.bytes_read < 4 * elements <= kernel.bytes_written


def instructions_s(elements: float, instructions: float, context: Context) -> float:
    """Seconds of ``instructions`` integer instructions for each of ``elements`` on all SMs."""
    gpu = context.gpu
    return elements * instructions / (INTEGER_LANES * gpu.num_sms * gpu.boost_clock_hz)


def num_elements(kernel: KernelShape) -> int:
    """Elements of the largest side: what is written, or the largest input of what is reduced."""
    written = sum(map(numel, kernel.out_shapes))
    return max(written, *map(numel, kernel.in_shapes)) if kernel.in_shapes else written


def streaming_work(
    traffic: float, launches: int, p: TrafficParameters, context: Context, *,
    instructions: float = 0.0, waits: float = 0.0,
) -> Work:  # fmt: skip
    """Demand of kernels that move ``traffic`` bytes; ``instructions`` s of integer instructions on the way.

    ``waits``: more latencies than a start, in starts.  See Note [memory-bound model].
    """
    bandwidth_share = p.bandwidth_share
    gpu, memory = context.gpu, context.parameters.memory
    usable = context.hbm_bytes_per_s
    cold = max(0.0, traffic - memory.warm_l2_share * gpu.l2_bytes)
    # The class's own limit (strided access, atomics, register pressure) and L2 are no HBM traffic.
    own = cold / (usable * bandwidth_share) if bandwidth_share < 1 else 0.0
    sm_s = max(own, traffic / gpu.l2_bytes_per_s, instructions)
    ramp = min(traffic, memory.ramp_bytes) / usable
    prologue_s = memory.prologue_s * (1 + p.waits + waits) + ramp / launches
    return Work(sm_s, cold, prologue_s, 0, 1, launches, fitted=p.fitted)


def tensor_bytes(kernel: KernelShape) -> tuple[float, float]:
    """(read, written) bytes of the kernel, from its columns or else from its shapes."""
    if kernel.bytes_read or kernel.bytes_written:
        return float(kernel.bytes_read), float(kernel.bytes_written)
    size = kernel.element_bytes
    return (
        float(size * sum(map(numel, kernel.in_shapes))),
        float(size * sum(map(numel, kernel.out_shapes))),
    )


def traffic_class(op_class: str, context: Context) -> TrafficParameters:
    """Constants of a memory-bound class."""
    return context.parameters.memory.classes[op_class]


@formula(
    "elementwise",
    "reduction",
    "softmax_fwd",
    "softmax_bwd",
    "norm_fwd",
    "norm_bwd",
    "embedding_fwd",
    "embedding_bwd",
    "cross_entropy",
    "dropout",
    "optimizer",
    "copy",
    "fill",
    "transpose",
    "quantize",
)
def streaming(kernel: KernelShape, context: Context) -> Work:
    """Any class that streams its tensors a fixed number of times."""
    p = traffic_class(kernel.op_class, context)
    read, written = tensor_bytes(kernel)
    traffic = read * p.read_passes + written * p.write_passes
    each, waits = 0.0 if "backward" in kernel.name else p.instructions, 0.0
    if computes_addresses(kernel):
        memory = context.parameters.memory
        each, waits = max(each, memory.index_instructions), memory.index_waits
    if kernel.op_class.startswith("softmax") and kernel.name.startswith("aten::") and kernel.in_shapes:
        passes, each = aten_softmax(kernel, written)
        p, traffic = replace(p, bandwidth_share=1.0), read * passes + written
    elements = (
        num_elements(kernel) if kernel.op_class != "embedding_fwd" else sum(map(numel, kernel.out_shapes))
    )
    instructions = instructions_s(elements, each, context)
    if kernel.name in ("aten::native_layer_norm", "aten::layer_norm"):
        per_s = LAYER_NORM_BYTES_PER_CLOCK * context.gpu.num_sms * context.gpu.boost_clock_hz
        instructions = max(instructions, traffic / per_s)
    return streaming_work(traffic, p.launches, p, context, instructions=instructions, waits=waits)


def aten_softmax(kernel: KernelShape, written: float) -> tuple[float, float]:
    """(times that its input is read, instructions an element); see Note [ATen's softmax]."""
    width = kernel.in_shapes[0][-1] if kernel.in_shapes[0] else 1
    backward = kernel.op_class == "softmax_bwd"
    if width * kernel.element_bytes > SOFTMAX_SHARED_BYTES:
        return (SOFTMAX_BACKWARD_READS if backward else SOFTMAX_READS), 0.0
    if backward:
        return 1.0, 0.0
    if written > kernel.element_bytes * numel(kernel.in_shapes[0]):
        return 1.0, SOFTMAX_CONVERTS
    return 1.0, SOFTMAX_WARP if width <= SOFTMAX_WARP_ROW else SOFTMAX_BLOCK


@formula("foreach")
def foreach(kernel: KernelShape, context: Context) -> Work:
    """Multi-tensor kernels: as many launches as tensors and blocks need."""
    p = traffic_class("foreach", context)
    read, written = tensor_bytes(kernel)
    traffic = read * p.read_passes + written * p.write_passes
    return streaming_work(traffic, foreach_launches(kernel), p, context)


def foreach_launches(kernel: KernelShape) -> int:
    """Launches of one multi-tensor op, from the limits of ATen's kernels."""
    shapes = kernel.out_shapes or kernel.in_shapes
    if not shapes:
        return 1
    lists = min(5, max(1, round(len(kernel.in_shapes) / len(shapes))))
    blocks = sum(math.ceil(numel(shape) / ELEMENTS_PER_BLOCK) for shape in shapes)
    return max(1, math.ceil(len(shapes) / TENSORS_PER_LAUNCH[lists]), math.ceil(blocks / BLOCKS_PER_LAUNCH))


@formula("other")
def other(kernel: KernelShape, context: Context) -> Work:
    """Fallback without knowledge of the op: the slower of its flops on CUDA cores and its bytes."""
    read, written = tensor_bytes(kernel)
    work = streaming_work(read + written, 1, traffic_class("elementwise", context), context)
    compute = kernel.flops / context.gpu.peak("fp32")
    return Work(max(work.sm_s, compute), work.hbm_bytes, work.prologue_s, fitted=False)


#: A GPU's share of a host's memory: two sockets of eight channels of DDR5-4800 for eight GPUs (DGX H100).
_HOST_MEMORY_BYTES_PER_S = 77e9
#: Of it what an optimizer's pass over its states reaches (assumption; streams reach 0.8).
_HOST_PASS_SHARE = 0.5


def memcpy_work(kernel: KernelShape, context: Context) -> Work:
    """Copies on a copy engine: over PCIe to or from the host, or within HBM.  "cpu_..." is what the host does
    to its own memory between two copies.

    The latter are those with "dtod" in the name, and what NCCL makes of a collective in a group of one.
    """
    read, written = tensor_bytes(kernel)
    moved = max(read, written)
    name = kernel.name.lower()
    prologue = context.parameters.memory.prologue_s
    if "dtod" in name or "d2d" in name or name.startswith("nccl::"):
        return Work(2 * moved / context.hbm_bytes_per_s, 2 * moved, prologue)
    if name.startswith("cpu_"):
        rate = context.gpu.host_memory_bytes_per_s or _HOST_MEMORY_BYTES_PER_S
        return Work(moved / (rate * _HOST_PASS_SHARE), 0.0, prologue)
    rate = context.gpu.host_bytes_per_s or context.parameters.memory.pcie_bytes_per_s
    return Work(moved / rate, moved, prologue)
