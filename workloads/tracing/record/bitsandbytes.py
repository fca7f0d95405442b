"""bitsandbytes (0.49), where it is installed, runs as it is: what its operators compute and write.

Its operators have rules for shapes.  How many columns of a product in 8 bits hold outliers, values tell: here
none do, and the product is the one kernel of its fast path.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import torch

from workloads.tracing.kernels import KernelCost, register_cost

_POINTWISE = (
    *("quantize_4bit", "dequantize_4bit", "quantize_blockwise", "dequantize_blockwise"),
    *("int8_vectorwise_quant", "int8_vectorwise_dequant", "int8_mm_dequant", "int8_double_quant"),
)


def install(_bitsandbytes: ModuleType) -> None:
    """Right after it has been imported; its stand-in has no operators."""
    if not hasattr(torch.ops.bitsandbytes, "int8_mixed_scaled_mm"):
        return
    for name in _POINTWISE:
        register_cost(f"bitsandbytes::{name}")(lambda *_, **__: KernelCost(op_class="elementwise"))
    for name, place in (("int8_linear_matmul", 1), ("int8_scaled_mm", 1), ("int8_mixed_scaled_mm", 2)):
        register_cost(f"bitsandbytes::{name}")(_product(place))
    register_cost("bitsandbytes::gemv_4bit")(
        lambda rows, _weight, shape, *_, **__: KernelCost(2 * rows.numel() * shape[0], op_class="gemm")
    )
    for operator, turned in (("int8_vectorwise_quant", False), ("int8_double_quant", True)):
        # Its own rule asks for a size that depends on values.
        torch.library.register_fake(f"bitsandbytes::{operator}", _without_outliers(turned=turned))
    torch.library.register_fake(
        "bitsandbytes::int8_mixed_scaled_mm",
        lambda rows, _narrow, weight, *_, **__: (rows.new_empty(*rows.shape[:-1], weight.shape[0]), None),
    )


def _product(place: int) -> Any:
    """Rows (m, k) times the argument at ``place``, (n, k)."""
    return lambda *args, **_: KernelCost(2 * args[0].numel() * args[place].shape[0], op_class="gemm")


def _without_outliers(*, turned: bool) -> Any:
    """Rows in 8 bits with a scale each; ``turned``: and columns."""

    def shapes(rows: torch.Tensor, threshold: float = 0.0) -> tuple[Any, ...]:
        ways = (math.prod(rows.shape[:-1]), rows.shape[-1])[: 1 + turned]
        narrow = [torch.empty_like(rows, dtype=torch.int8) for _ in ways]
        scales = [rows.new_empty(count, dtype=torch.float32) for count in ways]
        return (*narrow, *scales, rows.new_empty(0, dtype=torch.int64) if threshold else None)

    return shapes
