"""What is measured on a GPU, as data: kernels with the shapes that the cost model reads, and the overlaps."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

Shape = tuple[int, ...]

_BF16, _FP16, _FP32 = "bfloat16", "float16", "float32"
_ELEMENT_BYTES = {_BF16: 2, _FP16: 2, _FP32: 4}
MIB = 1 << 20

#: Thread blocks of the copy kernel that the overlapped kernels run beside.
COPY_BLOCKS = tuple(range(1, 33))


@dataclass(frozen=True)
class KernelCase:
    """One kernel: the framework's op with its shapes (exact), or bytes moved (a point of a curve).

    ``op`` is what is run; ``op_class`` and ``dtype`` are in the words of the cost model's tables.
    """

    op: str
    op_class: str
    dtype: str
    in_shapes: tuple[Shape, ...] = ()
    out_shapes: tuple[Shape, ...] = ()
    num_bytes: int = 0

    @property
    def key(self) -> str:
        """Identifies the case in a file of results."""
        return json.dumps([self.op, self.dtype, self.in_shapes, self.out_shapes, self.num_bytes])

    @property
    def flops(self) -> int:
        """Floating-point operations; 0 for kernels that only move data.  Causality is not deducted."""
        if self.op == "mm":
            (m, k), (_, n) = self.in_shapes
            return 2 * m * n * k
        if self.op == "attention":
            batch, heads, seq, dim = self.in_shapes[0]
            return 4 * batch * heads * seq * seq * dim
        return 0


def gemm_cases() -> list[KernelCase]:
    """Square and skinny products of training shapes, in three types."""
    sizes = [(n, n, n) for n in (512, 1024, 2048, 4096, 8192)]
    sizes += [
        (m, n, k) for m in (2048, 8192) for n, k in ((3072, 768), (768, 3072), (12288, 4096), (4096, 16384))
    ]
    sizes += [(4096, 1000, 4096), (16, 4096, 4096), (128, 8192, 8192), (4096, 4096, 64)]
    return [
        KernelCase("mm", "gemm", dtype, ((m, k), (k, n)), ((m, n),))
        for dtype in (_BF16, _FP16, _FP32)
        for m, n, k in sizes
    ]


def attention_cases() -> list[KernelCase]:
    """Causal attention, forward."""
    shapes = [
        (4, 16, 1024, 64),
        (4, 16, 2048, 128),
        (1, 32, 4096, 128),
        (1, 32, 8192, 128),
        (16, 12, 512, 64),
    ]
    return [KernelCase("attention", "attention_fwd", _BF16, (s, s, s), (s,)) for s in shapes]


def memory_cases() -> list[KernelCase]:
    """Points of bytes-moved curves for kernels limited by memory."""
    classes = (("add", "elementwise"), ("copy", "copy"), ("sum", "reduction"), ("fill", "fill"))
    found = [
        KernelCase(op, op_class, dtype, num_bytes=size * MIB)
        for op, op_class in classes
        for dtype in (_BF16, _FP32)
        for size in (1, 4, 16, 64, 256, 768)
    ]
    norms = [(rows, width) for rows in (2048, 8192) for width in (1024, 4096, 12288)]
    found += [KernelCase("layer_norm", "norm_fwd", _BF16, (shape,), (shape,)) for shape in norms]
    return found + [KernelCase("softmax", "softmax_fwd", _BF16, (shape,), (shape,)) for shape in norms]


def kernel_cases() -> list[KernelCase]:
    """Everything that is measured alone."""
    return [*gemm_cases(), *attention_cases(), *memory_cases()]


def overlap_cases() -> list[KernelCase]:
    """Kernels measured beside the copy kernel too: compute-bound, memory-bound, and small ones."""
    square = [KernelCase("mm", "gemm", _BF16, ((n, n), (n, n)), ((n, n),)) for n in (1024, 4096)]
    skinny = KernelCase("mm", "gemm", _BF16, ((8192, 3072), (3072, 768)), ((8192, 768),))
    attention = attention_cases()[1]
    moved = [
        KernelCase(op, kind, _BF16, num_bytes=64 * MIB)
        for op, kind in (("add", "elementwise"), ("sum", "reduction"))
    ]
    return [*square, skinny, attention, *moved, KernelCase("add", "elementwise", _BF16, num_bytes=1 * MIB)]


def num_elements(case: KernelCase) -> int:
    """Elements of the main tensor of a case that is told by its bytes."""
    passes = {"add": 3, "copy": 2, "sum": 1, "fill": 1}[case.op]
    return max(1, math.floor(case.num_bytes / passes / _ELEMENT_BYTES[case.dtype]))
