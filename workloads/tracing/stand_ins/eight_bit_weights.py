"""bitsandbytes' layers of 8 bits (LLM.int8()): inputs by row, weights by row, their product in whole numbers.

Columns of inputs that hold an entry above a threshold go through a product of 16 bits; whether there are any
is a value of the GPU, which is asked for and not known (none).  Back, the weight is unpacked to 16 bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from workloads.tracing import kernels
from workloads.tracing.kernels import KernelCost

_POINTWISE = KernelCost(op_class="elementwise")


class MatmulLtState:
    """What a layer keeps between passes: its weight ``CB`` and the scales ``SCB`` of its rows."""

    def __init__(self) -> None:
        self.CB: torch.Tensor | None = None
        self.SCB: torch.Tensor | None = None
        self.threshold, self.has_fp16_weights, self.is_training, self.use_pool = 0.0, True, True, False
        self.idx: torch.Tensor | None = None

    def reset_grads(self) -> None:
        """Forget the packed weight."""
        self.CB = self.SCB = None


def quantize_rows(A: torch.Tensor, threshold: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, Any]:  # noqa: N803
    """Rows of 8 bits, their scales, and with a threshold the columns that are too large for that."""
    rows = A.reshape(-1, A.shape[-1])
    columns = None
    if threshold > 0:
        large = rows.abs() >= threshold
        columns = A.new_empty(0, dtype=torch.int64)
        if large.any():
            columns = torch.argwhere(large.any(dim=0)).view(-1)
    made = torch.empty_like(A, dtype=torch.int8)
    scales = A.new_empty(rows.shape[0], dtype=torch.float32)
    kernels.launch("bitsandbytes::int8_vectorwise_quant", reads=[A], writes=[made, scales], cost=_POINTWISE)
    if columns is not None and rows.shape[0] > 1:
        made.view(-1, A.shape[-1])[:, columns] = 0
    return made, scales, columns


def dequantize_rows(A: torch.Tensor, stats: torch.Tensor) -> torch.Tensor:  # noqa: N803
    """Back to 32 bits."""
    return A * stats.view(-1, 1) * (1 / 127)


def _scaled(left: Any, right: Any, of_left: Any, of_right: Any, bias: Any, dtype: Any) -> torch.Tensor:
    """``left @ right.T`` in whole numbers, scaled to ``dtype``."""
    whole = torch._int_mm(left, right.t())
    made = torch.empty_like(whole, dtype=torch.float16)
    fused = bias is not None and bias.dtype == torch.float16
    reads = [whole, of_left, of_right, *([bias] if fused else [])]
    kernels.launch("bitsandbytes::int8_mm_dequant", reads=reads, writes=[made], cost=_POINTWISE)
    if bias is not None and not fused:
        made.add_(bias)
    return made.to(dtype)


class _WholeProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any, state: MatmulLtState) -> Any:
        rows = x.reshape(-1, x.shape[-1])
        packed, scales, large = quantize_rows(rows.to(torch.float16), state.threshold)
        if state.has_fp16_weights or state.CB is None:
            state.CB, state.SCB, _ = quantize_rows(weight.to(torch.float16))
        of_weight: Any = (state.CB, state.SCB)
        made = _scaled(packed, of_weight[0], scales, of_weight[1], bias, x.dtype)
        if large is not None and large.numel():
            part = dequantize_rows(of_weight[0][:, large], of_weight[1]).to(x.dtype)
            made = made.addmm(rows[:, large], part.t())
        ctx.state, ctx.of_bias = state, None if bias is None else bias.dtype
        ctx.save_for_backward(*([rows] if ctx.needs_input_grad[1] else []))
        return made.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        rows, state = grad.reshape(-1, grad.shape[-1]), ctx.state
        made: list[Any] = [None, None, None, None]
        if of_bias:
            made[2] = rows.sum(0, dtype=ctx.of_bias)
        if of_weight:
            (x,) = ctx.saved_tensors
            left, right = (_columns(one.to(torch.float16)) for one in (rows, x))
            made[1] = _scaled(left[0].t().contiguous(), right[0].t(), left[1], right[1], None, torch.float16)
        if of_x:
            weight = state.CB.to(grad.dtype, copy=True).mul_(state.SCB.unsqueeze(1).mul(1 / 127))
            made[0] = rows.matmul(weight).view(*grad.shape[:-1], -1)
        return tuple(made)


def _columns(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns of 8 bits and their scales."""
    scales = x.abs().amax(0).float()
    return torch.round(x.mul(127.0) / scales).to(torch.int8), scales


def matmul(
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    out: Any = None,
    state: MatmulLtState | None = None,
    threshold: float = 0.0,
    bias: Any = None,
) -> torch.Tensor:
    """``A @ B.T``."""
    held = state or MatmulLtState()
    held.threshold = threshold or held.threshold
    made: torch.Tensor = _WholeProduct.apply(A, B, bias, held)  # type: ignore[no-untyped-call]
    return made if out is None else out.copy_(made)


class Int8Params(nn.Parameter):
    """A weight that is packed when it first leaves the host, unless it learns (``has_fp16_weights``)."""

    CB: torch.Tensor | None
    SCB: torch.Tensor | None
    has_fp16_weights: bool

    def __new__(
        cls,
        data: torch.Tensor | None = None,
        requires_grad: bool = True,
        has_fp16_weights: bool = False,
        CB: Any = None,  # noqa: N803
        SCB: Any = None,  # noqa: N803
        **_: Any,
    ) -> Int8Params:
        """As it is."""
        held = torch.empty(0) if data is None else data
        made: Any = torch.Tensor._make_subclass(cls, held, requires_grad)
        made.CB, made.SCB, made.has_fp16_weights = CB, SCB, has_fp16_weights
        found: Int8Params = made
        return found

    def __deepcopy__(self, memo: Any) -> Int8Params:
        """With its scales."""
        return type(self)(self.data.clone(), self.requires_grad, self.has_fp16_weights, self.CB, self.SCB)

    def cpu(self) -> Int8Params:  # type: ignore[override]
        """To the host."""
        return self.to("cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Int8Params:  # type: ignore[override]
        """To a GPU."""
        return self.to("cuda" if device is None else device, non_blocking=non_blocking)

    def to(self, *args: Any, **kwargs: Any) -> Int8Params:
        """Packed, if it comes from the host."""
        parsed: Any = torch._C._nn._parse_to(*args, **kwargs)
        device, dtype, unblocked, _ = parsed
        packed = self.data.dtype == torch.int8
        leaves = device is not None and device.type != "meta" and self.data.device.type == "cpu"
        if leaves and not packed and not self.has_fp16_weights:
            rows = self.data.contiguous().to(device=device, dtype=torch.float16)
            self.data, self.SCB, _ = quantize_rows(rows)
            self.CB = self.data
            return self
        moved = super().to(device=device, dtype=dtype, non_blocking=unblocked)
        made = Int8Params(moved, self.requires_grad, self.has_fp16_weights)
        if packed:
            made.CB, made.SCB = made.data, self.SCB if self.SCB is None else self.SCB.to(device)
        return made


class Linear8bitLt(nn.Linear):
    """A linear layer with a packed weight."""

    def __init__(
        self,
        input_features: int,
        output_features: int,
        bias: bool = True,
        has_fp16_weights: bool = True,
        threshold: float = 0.0,
        index: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__(input_features, output_features, bias, device)
        self.state, self.index = MatmulLtState(), index
        self.state.threshold, self.state.has_fp16_weights = threshold, has_fp16_weights
        weight = self.weight.data
        self.weight: Any = Int8Params(weight, has_fp16_weights, has_fp16_weights=has_fp16_weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product of what is packed."""
        self.state.is_training = self.training
        if self.weight.CB is not None:
            self.state.CB, self.state.SCB = self.weight.CB, self.weight.SCB
            self.weight.CB = self.weight.SCB = None
        bias: Any = self.bias
        if bias is not None and bias.dtype != x.dtype:
            bias.data = bias.data.to(x.dtype)
        return matmul(x, self.weight, bias=bias, state=self.state)


LAYERS = {"Int8Params": Int8Params, "Linear8bitLt": Linear8bitLt}
FUNCTIONS = {"int8_vectorwise_dequant": dequantize_rows, "int8_vectorwise_quant": quantize_rows}
