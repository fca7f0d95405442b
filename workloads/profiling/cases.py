"""What is measured on a GPU, as data: kernels with the shapes that the cost model reads, and the overlaps."""

from __future__ import annotations

import json
import math

from simcore.records import dataclass

Shape = tuple[int, ...]

_BF16, _FP16, _FP32, _FP8 = "bfloat16", "float16", "float32", "float8_e4m3fn"
_ELEMENT_BYTES = {_BF16: 2, _FP16: 2, _FP32: 4}
#: Tensors of one size that an op told by its bytes reads, and writes.
_PASSES = {"add": (2, 1), "copy": (1, 1), "sum": (1, 0), "fill": (0, 1), "fused_adamw": (4, 3)}
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
        if self.op_class in ("gemm", "bgemm"):
            left, right = self.in_shapes[:2]
            return 2 * math.prod(left) * right[-1]
        if self.op.startswith("scaled_dot_product"):
            batch, heads, seq, dim = self.in_shapes[0]
            return (10 if self.op_class == "attention_bwd" else 4) * batch * heads * seq * seq * dim
        if self.op_class == "conv":
            image, weight = self.in_shapes[-2:]
            each = 2 * math.prod(weight) * image[0] * math.prod(image[2:])
            return each * (2 if "backward" in self.op else 1)
        return 0


def gemm_cases() -> list[KernelCase]:
    """Square and skinny products of training shapes in three types, in fp8, in batches, and by experts."""
    sizes = [(n, n, n) for n in (512, 1024, 2048, 4096, 8192)]
    sizes += [
        (m, n, k) for m in (2048, 8192) for n, k in ((3072, 768), (768, 3072), (12288, 4096), (4096, 16384))
    ]
    sizes += [(4096, 1000, 4096), (16, 4096, 4096), (128, 8192, 8192), (4096, 4096, 64)]
    found = [
        KernelCase("mm", "gemm", dtype, ((m, k), (k, n)), ((m, n),))
        for dtype in (_BF16, _FP16, _FP32)
        for m, n, k in sizes
    ]
    found += [
        KernelCase("scaled_mm", "gemm", _FP8, ((m, k), (k, n)), ((m, n),))
        for m, n, k in [*sizes[1:5], (8192, 12288, 4096), (8192, 4096, 16384)]
    ]
    found += [
        KernelCase("bmm", "bgemm", _BF16, ((b, m, k), (b, k, n)), ((b, m, n),))
        for b, m, n, k in ((128, 1024, 1024, 64), (128, 1024, 64, 1024), (16, 2048, 2048, 2048))
    ]
    return found + [
        KernelCase("grouped_mm", "bgemm", _BF16, ((tokens, k), (experts, k, n)), ((tokens, n),))
        for tokens, experts, n, k in ((16384, 8, 14336, 4096), (16384, 64, 1408, 2048))
    ]


def attention_cases() -> list[KernelCase]:
    """Causal attention by FlashAttention's kernels, forward and backward."""
    shapes = [
        (4, 16, 1024, 64),
        (4, 16, 2048, 128),
        (1, 32, 4096, 128),
        (1, 32, 8192, 128),
        (16, 12, 512, 64),
    ]
    op = "scaled_dot_product_flash_attention"
    found = [KernelCase(op, "attention_fwd", _BF16, (s, s, s), (s,)) for s in shapes]
    return found + [
        KernelCase(f"{op}_backward", "attention_bwd", _BF16, (s, s, s, s), (s, s, s)) for s in shapes
    ]


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
    found += [KernelCase("softmax", "softmax_fwd", _BF16, (shape,), (shape,)) for shape in norms]
    found += [
        KernelCase(
            "layer_norm_backward",
            "norm_bwd",
            _BF16,
            ((r, w), (r, w), (r, 1), (r, 1), (w,)),
            ((r, w), (w,), (w,)),
        )
        for r, w in norms
    ]
    wide = [(rows, width) for rows in (4096, 16384) for width in (5120, 8192)]
    found += [KernelCase("rms_norm", "norm_fwd", _BF16, (shape, shape[1:]), (shape,)) for shape in wide]
    logits = ((4096, 50304), (2048, 128256))
    found += [KernelCase("log_softmax", "softmax_fwd", _FP32, (shape,), (shape,)) for shape in logits]
    found += [
        KernelCase("log_softmax_backward", "softmax_bwd", _FP32, (shape, shape), (shape,)) for shape in logits
    ]
    table, rows = (50304, 4096), (8192, 4096)
    found.append(KernelCase("embedding", "embedding_fwd", _BF16, (table, rows[:1]), (rows,)))
    found.append(KernelCase("embedding_dense_backward", "embedding_bwd", _BF16, (rows, rows[:1]), (table,)))
    return found + [
        KernelCase("fused_adamw", "optimizer", _FP32, num_bytes=size * MIB)
        for size in (16, 64, 256, 768, 1792)
    ]


def conv_cases() -> list[KernelCase]:
    """Convolutions of a ResNet-50, channels last: forward, and both gradients."""
    found = []
    for images, inner, outer, side, window in (
        (128, 64, 64, 56, 3),
        (128, 256, 64, 56, 1),
        (128, 256, 256, 14, 3),
        (128, 1024, 512, 14, 1),
    ):
        image, weight = (images, inner, side, side), (outer, inner, window, window)
        out = (images, outer, side, side)
        found.append(KernelCase("convolution.nhwc", "conv", _BF16, (image, weight), (out,)))
        found.append(
            KernelCase("convolution_backward.nhwc", "conv", _BF16, (out, image, weight), (image, weight))
        )
    return found


def kernel_cases() -> list[KernelCase]:
    """Everything that is measured alone."""
    return [*gemm_cases(), *attention_cases(), *memory_cases(), *conv_cases()]


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
    return max(1, math.floor(case.num_bytes / sum(_PASSES[case.op]) / _ELEMENT_BYTES[case.dtype]))


def shapes_of(case: KernelCase) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Shapes of what a case reads and writes; those of a case that is told by its bytes are flat.

    Errors: KeyError for a case that is told by its bytes and is none of these here.
    """
    if case.in_shapes or case.out_shapes:
        return case.in_shapes, case.out_shapes
    flat, (read, written) = (num_elements(case),), _PASSES[case.op]
    return (flat,) * read, (flat,) * written
