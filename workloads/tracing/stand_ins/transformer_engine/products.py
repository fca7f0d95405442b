"""Products of Transformer Engine's layers, with what they communicate around them.

Column-parallel layers under sequence parallelism gather their input forward, and again backward beside the
product for the input's gradient; that gradient is scattered (without sequence parallelism: reduced) beside
the product for the weight's.  Row-parallel layers scatter or reduce their output, and gather its gradient.
(TransformerEngine, module/linear.py, _Linear.)  Experts' products are one for each expert, on four streams
in turn (common/gemm/cublaslt_gemm.cu, multi_stream_cublas_gemm).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from simcore.records import dataclass
from workloads.tracing import kernels
from workloads.tracing.kernels import KernelCost

#: Streams that experts' products take in turn (common/util/multi_stream.h).
NUM_STREAMS = 4


@dataclass(frozen=True)
class LinearCall:
    """``group``: of tensor parallelism, None: alone; ``mode``: "column", "row" or "".  ``into_main_grad``:
    gradients of weights go to ``main_grad``, and are added to what is there where ``accumulate``.
    ``recipe``: of fp8, "" for 16 bits; ``is_first``: of a step's microbatches, None: nobody says.
    """

    group: Any
    mode: str
    sequence_parallel: bool
    into_main_grad: bool
    accumulate: bool
    recipe: str = ""
    is_first: bool | None = None

    @property
    def gathers_input(self) -> bool:
        """Every rank has a part of the input's first dimension."""
        return self.mode == "column" and self.sequence_parallel

    @property
    def gathers_gradient(self) -> bool:
        """Every rank has a part of the output's first dimension."""
        return self.mode == "row" and self.sequence_parallel


class LinearProduct(torch.autograd.Function):
    """Input, weight, bias (or None), call, and the parameter that the weight is of."""

    @staticmethod
    def forward(
        ctx: Any,
        inp: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        call: LinearCall,
        parameter: torch.Tensor,
    ) -> torch.Tensor:
        """(..., out_features)."""
        total = gathered(inp, call.group)[0] if call.gathers_input else inp
        rows = total.reshape(-1, total.shape[-1])
        found = rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())
        found = found.view(*total.shape[:-1], weight.shape[0])
        ctx.save_for_backward(inp if weight.requires_grad else None, weight)
        ctx.call, ctx.parameter, ctx.bias_like = call, parameter, bias
        if call.mode == "row":
            if call.sequence_parallel:
                return scattered(found, call.group)[0]
            dist.all_reduce(found, group=call.group)
        return found

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Of input, weight and bias."""
        (inp, weight), call = ctx.saved_tensors, ctx.call
        wants_input, wants_weight = ctx.needs_input_grad[:2]
        if call.gathers_gradient:
            grad = gathered(grad, call.group)[0]
        arriving = None
        if wants_weight and call.gathers_input:
            inp, arriving = gathered(inp, call.group, beside=True)
        rows = grad.reshape(-1, grad.shape[-1])
        grad_input, leaving = None, None
        if wants_input:
            grad_input = (rows @ weight).view(*grad.shape[:-1], weight.shape[1])
            grad_input, leaving = sum_beside(grad_input, call)
        grad_weight = grad_bias = None
        if ctx.bias_like is not None and ctx.needs_input_grad[2]:
            grad_bias = torch.empty_like(ctx.bias_like)
        if wants_weight:
            if arriving is not None:
                arriving.wait()
            grad_weight = weight_gradient(
                inp.reshape(-1, inp.shape[-1]), rows, weight, ctx.parameter, grad_bias, call
            )
        if leaving is not None:
            leaving.wait()
        return grad_input, grad_weight, grad_bias, None, None


class GroupedProduct(torch.autograd.Function):
    """Rows, how many of each expert, call, and the experts' weights and biases (or no biases)."""

    @staticmethod
    def forward(
        ctx: Any, inp: torch.Tensor, splits: list[int], call: LinearCall, *parameters: torch.Tensor
    ) -> torch.Tensor:
        """(rows, out_features)."""
        weights, biases = parameters[: len(splits)], parameters[len(splits) :]
        found = inp.new_empty(inp.shape[0], weights[0].shape[0])
        parts = zip(torch.split(inp, splits), torch.split(found, splits), strict=True)
        with in_turn() as turn:
            for index, (rows, out) in enumerate(parts):
                with torch.cuda.stream(next(turn)):
                    if biases:
                        torch.addmm(biases[index], rows, weights[index].t(), out=out)
                    else:
                        torch.mm(rows, weights[index].t(), out=out)
        ctx.save_for_backward(inp, *weights)
        ctx.splits, ctx.call, ctx.parameters = splits, call, parameters
        return found

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Of rows, weights and biases."""
        (inp, *weights), splits = ctx.saved_tensors, ctx.splits
        parts = list(zip(torch.split(inp, splits), torch.split(grad, splits), weights, strict=True))
        grad_input = None
        if ctx.needs_input_grad[0]:
            grad_input = torch.empty_like(inp)
            with in_turn() as turn:
                for (_, rows, weight), out in zip(parts, torch.split(grad_input, splits), strict=True):
                    with torch.cuda.stream(next(turn)):
                        torch.mm(rows, weight, out=out)
        biases = ctx.parameters[len(splits) :]
        grad_biases = [torch.empty_like(one) for one in biases]
        grads = []
        with in_turn() as turn:
            for index, (given, rows, weight) in enumerate(parts):
                with torch.cuda.stream(next(turn)):
                    bias = grad_biases[index] if biases else None
                    parameter = ctx.parameters[index]
                    grads.append(weight_gradient(given, rows, weight, parameter, bias, ctx.call))
        return grad_input, None, None, *grads, *grad_biases


def weight_gradient(
    inp: torch.Tensor,
    grad: torch.Tensor,
    weight: torch.Tensor,
    parameter: Any,
    grad_bias: torch.Tensor | None,
    call: LinearCall,
    dtype: torch.dtype | None = None,
) -> torch.Tensor | None:
    """The weight's gradient of ``inp`` (rows, in) and ``grad`` (rows, out), in the weight's dtype where no
    other is said; fills ``grad_bias``, too.

    Into ``parameter.main_grad`` where the call says so: what autograd gets then is a tensor that says no more
    than that there is a gradient, as Megatron's hooks expect.
    """
    prefix = "blockwise_" if call.recipe == "blockwise" else ""
    if not call.into_main_grad:
        made = torch.empty_like(weight, dtype=dtype)
        _weight_product(prefix + "wgrad_gemm", inp, grad, made, grad_bias)
        return made
    into = parameter.get_main_grad() if hasattr(parameter, "__fsdp_param__") else parameter.main_grad
    accumulate = call.accumulate and not getattr(parameter, "overwrite_main_grad", False)
    name = prefix + ("wgrad_gemm_accum" if accumulate else "wgrad_gemm")
    _weight_product(name, inp, grad, into, grad_bias)
    if not hasattr(parameter, "grad_added_to_main_grad"):
        return None
    parameter.grad_added_to_main_grad = True
    return get_dummy_wgrad(
        list(into.shape), dtype or weight.dtype, zero=getattr(parameter, "zero_out_wgrad", False)
    )


def _weight_product(
    name: str, inp: torch.Tensor, grad: torch.Tensor, into: torch.Tensor, grad_bias: torch.Tensor | None
) -> None:
    kernels.launch(
        name,
        reads=[inp, grad, *([into] if name.endswith("accum") else [])],
        writes=[into, *([grad_bias] if grad_bias is not None else [])],
        cost=KernelCost(flops=2 * inp.numel() * grad.shape[-1], op_class="gemm"),
    )


_dummies: dict[tuple[Any, ...], torch.Tensor] = {}


def get_dummy_wgrad(shape: list[int], dtype: torch.dtype, zero: bool = False) -> torch.Tensor:
    """``transformer_engine.pytorch.module.base.get_dummy_wgrad``: one for all weights of a shape."""
    key = (*shape, dtype)
    if key not in _dummies:
        _dummies[key] = torch.empty(shape, dtype=dtype, device="cuda")
    if zero:
        _dummies[key].fill_(0)
    return _dummies[key].detach()


def sum_beside(grad: torch.Tensor, call: LinearCall) -> tuple[torch.Tensor, Any]:
    """The gradient of a column-parallel input, over all ranks or this one's part; and what to wait for."""
    if call.mode != "column":
        return grad, None
    if call.sequence_parallel:
        return scattered(grad, call.group, beside=True)
    return grad, dist.all_reduce(grad, group=call.group, async_op=True)


def gathered(tensor: torch.Tensor, group: Any, *, beside: bool = False) -> tuple[torch.Tensor, Any]:
    """Of all ranks, along the first dimension; ``beside``: and what to wait for."""
    size = dist.get_world_size(group)
    found = tensor.new_empty(size * tensor.shape[0], *tensor.shape[1:])
    return found, dist.all_gather_into_tensor(found, tensor.contiguous(), group=group, async_op=beside)


def scattered(tensor: torch.Tensor, group: Any, *, beside: bool = False) -> tuple[torch.Tensor, Any]:
    """This rank's part of the sum, along the first dimension; ``beside``: and what to wait for."""
    size = dist.get_world_size(group)
    found = tensor.new_empty(tensor.shape[0] // size, *tensor.shape[1:])
    return found, dist.reduce_scatter_tensor(found, tensor.contiguous(), group=group, async_op=beside)


_streams: list[Any] = []


@contextmanager
def in_turn() -> Iterator[Iterator[Any]]:
    """Streams in turn, which begin after what was issued before, and are waited for."""
    if not _streams:
        _streams.extend(torch.cuda.Stream() for _ in range(NUM_STREAMS))  # type: ignore[no-untyped-call]
    current = torch.cuda.current_stream()
    used: list[Any] = []

    def streams() -> Iterator[Any]:
        while True:
            for stream in _streams:
                if stream not in used:
                    stream.wait_stream(current)
                    used.append(stream)
                yield stream

    yield streams()
    for stream in used:
        current.wait_stream(stream)
