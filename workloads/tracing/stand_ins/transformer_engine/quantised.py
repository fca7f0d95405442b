"""fp8 around Transformer Engine's products: casts, what is gathered in 8 bits, the kernels that multiply.

Recipes are those of Note [fp8 recipes] in ``workloads.models.fp8``, kernels carry its names.  A product reads
rows along its sum, so a tensor that a weight gradient reads, too, is cast with its transpose; what ranks
gather is cast as slices, and turned once it has arrived (TransformerEngine, pytorch/module/linear.py).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from simcore.records import dataclass
from workloads.tracing import kernels
from workloads.tracing.kernels import KernelCost
from workloads.tracing.stand_ins.transformer_engine import quantisation
from workloads.tracing.stand_ins.transformer_engine.products import (
    LinearCall,
    gathered,
    scattered,
    sum_beside,
    weight_gradient,
)
from workloads.tracing.stand_ins.transformer_engine.quantised_parameters import QuantizedTensor

_NARROW = torch.float8_e4m3fn
#: Elements that share a scale, and bytes of one.
_BLOCKS = {"blockwise": (128, 4), "mxfp8": (32, 1)}
_PRODUCTS = {"blockwise": "blockwise_gemm", "mxfp8": "mxfp8_gemm"}
_CAST = "_simcore_fp8"


@dataclass(frozen=True)
class NarrowOperand:
    """A tensor in fp8: as rows, and turned for the gradient of a weight (None: not yet)."""

    rows: torch.Tensor
    turned: torch.Tensor | None


def cast(tensor: torch.Tensor, recipe: str, *, turn: bool = True, shared_by: Any = None) -> NarrowOperand:
    """``tensor`` (rows, width) in fp8; ``turn``: and its transpose; ``shared_by``: the group whose other
    ranks hold the rest of it, and that it is gathered by, turned later.
    """
    narrow = torch.empty_like(tensor, dtype=_NARROW)
    turn = turn and (shared_by is None or recipe in _BLOCKS)
    turned = narrow.new_empty(tensor.shape[1], tensor.shape[0]) if turn else None
    writes = [narrow] if turned is None else [narrow, turned]
    name = "cast_fp8" if turned is None else "cast_transpose_fp8"
    if recipe in _BLOCKS:
        elements, size = _BLOCKS[recipe]
        scales = -(-tensor.numel() // elements) * size
        name = f"{name}_{recipe}"
        writes += [narrow.new_empty(scales, dtype=torch.uint8) for _ in writes]
    elif recipe == "current":
        maximum = tensor.new_empty(1, dtype=torch.float32)
        _launch("amax_fp8", [tensor], [maximum], "reduction")
        if shared_by is not None:
            dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=shared_by)
    _launch(name, [tensor], writes, "elementwise")
    return NarrowOperand(narrow, turned)


def cast_weight(weight: torch.Tensor, parameter: Any, recipe: str, is_first: bool | None) -> NarrowOperand:
    """A weight in fp8, and its transpose: as the parameter is, or cast in the first microbatch of a step and
    kept; in each where the program does not say which is the first (``is_first`` None).
    """
    if isinstance(parameter, QuantizedTensor):
        return NarrowOperand(parameter._rowwise_data, parameter._columnwise_data)
    kept: NarrowOperand | None = getattr(parameter, _CAST, None)
    if kept is not None and is_first is False:
        return kept
    made = cast(weight, recipe)
    if is_first is not None:
        setattr(parameter, _CAST, made)
    return made


def turned(tensor: torch.Tensor) -> torch.Tensor:
    """What was gathered as rows, turned."""
    found = tensor.new_empty(tensor.shape[1], tensor.shape[0])
    _launch("transpose_fp8", [tensor], [found], "elementwise")
    return found


def product(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, recipe: str, bias: torch.Tensor | None = None
) -> None:
    """``out`` (m, n) of ``left`` (m, k) and ``right``, which holds k n elements."""
    reads = [left, right, *([] if bias is None else [bias])]
    cost = KernelCost(flops=2 * left.numel() * out.shape[-1], op_class="gemm")
    kernels.launch(_PRODUCTS.get(recipe, "aten::_scaled_mm"), reads=reads, writes=[out], cost=cost)


def _launch(name: str, reads: list[torch.Tensor], writes: list[torch.Tensor], op_class: str) -> None:
    kernels.launch(name, reads=reads, writes=writes, cost=KernelCost(op_class=op_class))


class QuantisedProduct(torch.autograd.Function):
    """As :class:`LinearProduct`, by a recipe of fp8: what is kept and what is gathered have 8 bits."""

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
        group = call.group if call.gathers_input else None
        given = cast(_flat(inp), call.recipe, turn=weight.requires_grad, shared_by=group)
        rows = gathered(given.rows, group)[0] if group is not None else given.rows
        narrow = cast_weight(weight, parameter, call.recipe, call.is_first)
        found = inp.new_empty(rows.shape[0], weight.shape[0])
        product(rows, narrow.rows, found, call.recipe, bias)
        found = found.view(-1, *inp.shape[1:-1], weight.shape[0])
        kept = given.rows if given.turned is None else given.turned
        ctx.save_for_backward(kept if weight.requires_grad else None, narrow.turned)
        ctx.call, ctx.parameter, ctx.bias_like = call, parameter, bias
        ctx.is_turned, ctx.width = given.turned is not None, inp.shape[-1]
        ctx.shares_maxima = quantisation.is_first_module()
        if call.mode == "row":
            if call.sequence_parallel:
                return scattered(found, call.group)[0]
            dist.all_reduce(found, group=call.group)
        return found

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Of input, weight and bias."""
        (kept, weight), call = ctx.saved_tensors, ctx.call
        wants_input, wants_weight = ctx.needs_input_grad[:2]
        group = call.group if call.gathers_gradient else None
        made = cast(_flat(grad), call.recipe, turn=wants_weight, shared_by=group)
        if group is not None:
            rows = gathered(made.rows, group)[0]
            turn = None if made.turned is None else gathered(made.turned, group)[0].view(rows.shape[1], -1)
            made = NarrowOperand(rows, turn)
        arriving = None
        if wants_weight and call.gathers_input:
            kept, arriving = gathered(kept, call.group, beside=True)
        grad_input, leaving = None, None
        if wants_input:
            grad_input = grad.new_empty(made.rows.shape[0], ctx.width)
            product(made.rows, weight, grad_input, call.recipe)
            grad_input = grad_input.view(-1, *grad.shape[1:-1], ctx.width)
            grad_input, leaving = sum_beside(grad_input, call)
        grad_weight = grad_bias = None
        if ctx.bias_like is not None and ctx.needs_input_grad[2]:
            grad_bias = torch.empty_like(ctx.bias_like)  # a sum that the cast finds on its way
        if wants_weight:
            if arriving is not None:
                arriving.wait()
            inp = kept.view(ctx.width, -1) if ctx.is_turned else turned(kept)
            out = turned(made.rows) if made.turned is None else made.turned
            grad_weight = weight_gradient(
                inp.t(), out.t(), ctx.parameter, ctx.parameter, None, call, grad.dtype
            )
        if leaving is not None:
            leaving.wait()
        if ctx.shares_maxima:
            quantisation.share_maxima()
        return grad_input, grad_weight, grad_bias, None, None


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])
