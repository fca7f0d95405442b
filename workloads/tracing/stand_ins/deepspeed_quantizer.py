"""DeepSpeed's ``quantizer``: what ZeRO++ makes narrow before it communicates.

Weights are gathered in 8 bits, gradients exchanged in 4, each group of elements with scales in 32 bits
(csrc/quantization/pt_binding.cpp).
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch

from workloads.tracing import kernels
from workloads.tracing.kernels import KernelCost


class _Types:
    Symmetric, Asymmetric = 0, 1


def _scales(tensor: torch.Tensor, groups: int, kind: int) -> torch.Tensor:
    return tensor.new_empty(groups, 2 if kind == _Types.Asymmetric else 1, dtype=torch.float32)


def _launch(name: str, reads: list[torch.Tensor], *writes: torch.Tensor) -> Any:
    kernels.launch(name, reads=reads, writes=writes, cost=KernelCost(op_class="elementwise"))
    return writes if len(writes) > 1 else writes[0]


def _quantize(tensor: torch.Tensor, groups: int, bits: int, kind: int) -> Any:
    narrow = tensor.new_empty(*tensor.shape[:-1], tensor.shape[-1] * bits // 8, dtype=torch.int8)
    return _launch("cached_quantization", [tensor], narrow, _scales(tensor, groups, kind))


def _dequantize(dtype: torch.dtype) -> Any:
    def dequantize(tensor: torch.Tensor, scales: torch.Tensor, _groups: int, bits: int, _kind: int) -> Any:
        found = tensor.new_empty(*tensor.shape[:-1], tensor.shape[-1] * 8 // bits, dtype=dtype)
        return _launch("dequantize_kernel", [tensor, scales], found)

    return dequantize


def _swizzle(
    tensor: torch.Tensor, groups: int, bits: int, kind: int, _pipeline: int, _nodes: int, _devices: int
) -> Any:
    narrow = tensor.new_empty(math.prod(tensor.shape) * bits // 8, dtype=torch.int8)
    return _launch("swizzled_quant_kernel", [tensor], narrow, _scales(tensor, groups, kind))


def _reduce(
    tensor: torch.Tensor,
    scales: torch.Tensor,
    _in_groups: int,
    out_groups: int,
    _bits: int,
    kind: int,
    devices: int,
) -> Any:
    found = tensor.new_empty(*tensor.shape[:-1], tensor.shape[-1] // devices)
    return _launch("dequant_reduce", [tensor, scales], found, _scales(tensor, out_groups, kind))


LIBRARY = SimpleNamespace(
    Symmetric=_Types.Symmetric,
    Asymmetric=_Types.Asymmetric,
    quantize=_quantize,
    dequantize=_dequantize(torch.float16),
    dequantize_fp32=_dequantize(torch.float32),
    swizzle_quant=_swizzle,
    quantized_reduction=_reduce,
)
