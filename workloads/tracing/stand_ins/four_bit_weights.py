"""bitsandbytes' frozen weights of 4 bits: two numbers a byte, a scale for each block, products in 16 bits.

A weight becomes one of 4 bits when it moves to the GPU.  Each product turns it back by a kernel of its own,
forward and for the gradient of its input.  Scales of ``compress_statistics`` have 8 bits in blocks of 256,
around their mean, and are turned back before (bitsandbytes 0.49, functional.py and autograd/_functions.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from simcore.records import dataclass
from workloads.tracing import kernels
from workloads.tracing.kernels import KernelCost

#: Weights that share a scale, scales that share one, and entries of the table of 8-bit numbers.
_BLOCK, _BLOCK_OF_SCALES, _TABLE = 64, 256, 256


@dataclass
class QuantState:
    """``bitsandbytes.functional.QuantState``: what turns ``absmax.numel()`` blocks back into ``shape``."""

    absmax: torch.Tensor
    shape: Any = None
    code: Any = None
    blocksize: int = _BLOCK
    quant_type: str = "fp4"
    dtype: torch.dtype | None = None
    offset: torch.Tensor | None = None
    state2: QuantState | None = None

    @property
    def nested(self) -> bool:
        """Whether scales have 8 bits, too."""
        return self.state2 is not None

    def to(self, device: Any) -> None:
        """Move all tensors."""
        self.absmax, self.code = self.absmax.to(device), self.code.to(device)
        if self.state2 is not None and self.offset is not None:
            self.offset = self.offset.to(device)
            self.state2.to(device)


def quantize_blockwise(
    tensor: torch.Tensor, blocksize: int = 4096, **_: Any
) -> tuple[torch.Tensor, QuantState]:
    """To 8 bits."""
    narrow, scales = (
        torch.empty_like(tensor, dtype=torch.uint8),
        tensor.new_empty(-(-tensor.numel() // blocksize)),
    )
    code = torch.empty(_TABLE, device=tensor.device)
    _launch("quantize_blockwise", [tensor, code], [narrow, scales])
    return narrow, QuantState(scales, tensor.shape, code, blocksize, "dynamic", tensor.dtype)


def dequantize_blockwise(tensor: torch.Tensor, quant_state: QuantState, **_: Any) -> torch.Tensor:
    """From 8 bits."""
    found = torch.empty_like(tensor, dtype=quant_state.dtype)
    _launch("dequantize_blockwise", [tensor, quant_state.absmax, quant_state.code], [found])
    return found


def quantize_4bit(
    tensor: torch.Tensor,
    absmax: Any = None,  # noqa: ARG001
    out: Any = None,  # noqa: ARG001
    blocksize: int | None = None,
    compress_statistics: bool = False,
    quant_type: str = "fp4",
    quant_storage: torch.dtype = torch.uint8,
) -> tuple[torch.Tensor, QuantState]:
    """To 4 bits, in elements of ``quant_storage``."""
    size = blocksize or _BLOCK
    packed = tensor.new_empty((tensor.numel() + 1) // (2 * quant_storage.itemsize), 1, dtype=quant_storage)
    scales = tensor.new_empty(-(-tensor.numel() // size), dtype=torch.float32)
    _launch("quantize_4bit", [tensor], [packed, scales])
    state = QuantState(
        scales, tensor.shape, torch.empty(16, device=tensor.device), size, quant_type, tensor.dtype
    )
    if compress_statistics:
        state.offset = scales.mean()
        state.absmax, state.state2 = quantize_blockwise(scales - state.offset, _BLOCK_OF_SCALES)
    return packed, state


def dequantize_4bit(tensor: torch.Tensor, quant_state: QuantState, **_: Any) -> torch.Tensor:
    """From 4 bits: as what was quantised."""
    found = tensor.new_empty(quant_state.shape, dtype=quant_state.dtype)
    _launch("dequantize_4bit", [tensor, _scales(quant_state)], [found])
    return found


def _scales(state: QuantState) -> torch.Tensor:
    """In 32 bits."""
    if state.state2 is None or state.offset is None:
        return state.absmax
    return dequantize_blockwise(state.absmax, state.state2).add_(state.offset)


def _launch(name: str, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]) -> None:
    if reads[0].is_cuda:
        cost = KernelCost(op_class="elementwise")
        kernels.launch(f"bitsandbytes::{name}", reads=reads, writes=writes, cost=cost)


class Params4bit(torch.nn.Parameter):
    """``bitsandbytes.nn.Params4bit``: a weight that becomes one of 4 bits when it moves to the GPU."""

    quant_state: QuantState | None
    blocksize: int
    compress_statistics: bool
    quant_type: str
    quant_storage: torch.dtype
    module: Any
    bnb_quantized: bool

    def __new__(
        cls,
        data: torch.Tensor | None = None,
        requires_grad: bool = False,
        quant_state: QuantState | None = None,
        blocksize: int | None = None,
        compress_statistics: bool = True,
        quant_type: str = "fp4",
        quant_storage: torch.dtype = torch.uint8,
        module: Any = None,
        bnb_quantized: bool = False,
    ) -> Any:
        """As the real one."""
        made: Any = torch.Tensor._make_subclass(cls, torch.empty(0) if data is None else data, requires_grad)
        made.blocksize, made.compress_statistics = blocksize or _BLOCK, compress_statistics
        made.quant_type, made.quant_storage = quant_type, quant_storage
        made.quant_state, made.module, made.bnb_quantized = quant_state, module, bnb_quantized
        return made

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Any:  # type: ignore[override]
        """To the GPU."""
        return self.to(device="cuda" if device is None else device, non_blocking=non_blocking)

    def to(self, *args: Any, **named: Any) -> Any:
        """To 4 bits with the first move to a device."""
        device: Any = torch._C._nn._parse_to(*args, **named)[0]
        if device is None or device.type in ("meta", "cpu") or self.bnb_quantized:
            if self.quant_state is not None and device is not None:
                self.quant_state.to(device)
            moved = super().to(*args, **named)
            state = {name: getattr(self, name) for name in _OF_WEIGHT}
            return Params4bit(moved, self.requires_grad, **state)
        self.data, self.quant_state = quantize_4bit(
            self.data.contiguous().to(device),
            blocksize=self.blocksize,
            compress_statistics=self.compress_statistics,
            quant_type=self.quant_type,
            quant_storage=self.quant_storage,
        )
        self.bnb_quantized = True
        if self.module is not None:
            self.module.quant_state = self.quant_state
        return self


#: What a weight has beside its numbers.
_OF_WEIGHT = (
    *("quant_state", "blocksize", "compress_statistics", "quant_type", "quant_storage", "module"),
    "bnb_quantized",
)


class _Product(torch.autograd.Function):
    """Rows times a weight of 4 bits, turned back each way and not kept."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, state: QuantState
    ) -> torch.Tensor:
        ctx.weight, ctx.state, ctx.bias_like = weight, state, bias
        return functional.linear(rows, dequantize_4bit(weight, state).to(rows.dtype), bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        grad_rows = grad_bias = None
        if ctx.needs_input_grad[2]:
            grad_bias = grad.reshape(-1, grad.shape[-1]).sum(0, dtype=ctx.bias_like.dtype)
        if ctx.needs_input_grad[0]:
            grad_rows = grad @ dequantize_4bit(ctx.weight, ctx.state).to(grad.dtype)
        return grad_rows, None, grad_bias, None


def matmul_4bit(
    rows: torch.Tensor,
    weight: torch.Tensor,
    quant_state: QuantState,
    out: Any = None,  # noqa: ARG001
    bias: Any = None,
) -> Any:
    """``bitsandbytes.matmul_4bit``: a single row that nobody trains is multiplied by a kernel of its own."""
    if rows.numel() == rows.shape[-1] and not rows.requires_grad:
        found = rows.new_empty(*rows.shape[:-1], quant_state.shape[0])
        scales = _scales(quant_state)
        cost = KernelCost(2 * rows.numel() * quant_state.shape[0], op_class="gemm")
        kernels.launch("bitsandbytes::gemv_4bit", reads=[rows, weight, scales], writes=[found], cost=cost)
        return found if bias is None else found.add_(bias)
    return _Product.apply(rows, weight, bias, quant_state)  # type: ignore[no-untyped-call]


class Linear4bit(torch.nn.Linear):
    """``bitsandbytes.nn.Linear4bit``."""

    def __init__(
        self,
        input_features: int,
        output_features: int,
        bias: bool = True,
        compute_dtype: torch.dtype | None = None,
        compress_statistics: bool = True,
        quant_type: str = "fp4",
        quant_storage: torch.dtype = torch.uint8,
        device: Any = None,
    ) -> None:
        super().__init__(input_features, output_features, bias, device)
        self.weight = Params4bit(
            self.weight.data,
            compress_statistics=compress_statistics,
            quant_type=quant_type,
            quant_storage=quant_storage,
            module=self,
        )
        self.compute_dtype, self.quant_storage = compute_dtype, quant_storage
        self.quant_state: QuantState | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """In ``compute_dtype``, else in that of ``x``; as ``x``."""
        state: Any = (
            getattr(self.weight, "quant_state", None) or self.quant_state
        )  # FSDP makes other parameters
        dtype = self.compute_dtype or x.dtype
        given: Any = self.bias
        bias = None if given is None else given.to(dtype)
        found: torch.Tensor = matmul_4bit(x.to(dtype), self.weight, state, bias=bias)
        return found.to(x.dtype)


def _of_type(quant_type: str) -> Any:
    def initialise(self: Any, *args: Any, **named: Any) -> None:
        given = dict(zip(("input_features", "output_features", "bias", "compute_dtype"), args, strict=False))
        Linear4bit.__init__(self, **{**given, **named}, quant_type=quant_type)

    return type(f"Linear{quant_type.upper()}", (Linear4bit,), {"__init__": initialise})


LAYERS = {
    "Linear4bit": Linear4bit,
    "LinearFP4": _of_type("fp4"),
    "LinearNF4": _of_type("nf4"),
    "Params4bit": Params4bit,
}
FUNCTIONS = {
    one.__name__: one
    for one in (QuantState, quantize_4bit, dequantize_4bit, quantize_blockwise, dequantize_blockwise)
}
