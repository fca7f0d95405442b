"""Products of experts in fp8, as Transformer Engine's ``GroupedLinear`` runs them.

Rows of all experts are cast by one kernel where scales are those of earlier steps, expert by expert where a
scale has to be found (pytorch/module/grouped_linear.py, split_quantize).  Products follow as in 16 bits, one
for each expert that has tokens, on four streams in turn.
"""

from __future__ import annotations

from typing import Any

import torch

from workloads.tracing import kernels
from workloads.tracing.kernels import KernelCost
from workloads.tracing.stand_ins.transformer_engine import quantisation
from workloads.tracing.stand_ins.transformer_engine.products import LinearCall, in_turn, weight_gradient
from workloads.tracing.stand_ins.transformer_engine.quantised import (
    NarrowOperand,
    cast,
    cast_weight,
    product,
)

#: Rows of an expert, as products in fp8 take them: a multiple of these.
_ROWS = {"mxfp8": 32}
_MANY_ROWS = 16


class QuantisedGroups(torch.autograd.Function):
    """As :class:`GroupedProduct`, by a recipe of fp8."""

    @staticmethod
    def forward(
        ctx: Any, inp: torch.Tensor, splits: list[int], call: LinearCall, *parameters: torch.Tensor
    ) -> torch.Tensor:
        """(rows, out_features)."""
        weights, biases = parameters[: len(splits)], parameters[len(splits) :]
        found = inp.new_empty(inp.shape[0], weights[0].shape[0])
        given = _cast_parts(inp, splits, call.recipe, turn=weights[0].requires_grad)
        narrow = [cast_weight(one, one, call.recipe, call.is_first) for one in weights]
        with in_turn() as turn:
            for index, out in enumerate(torch.split(found, splits)):
                if splits[index]:
                    with torch.cuda.stream(next(turn)):
                        bias = biases[index] if biases else None
                        product(given[index].rows, narrow[index].rows, out, call.recipe, bias)
        kept = [one.rows if one.turned is None else one.turned for one in given]
        ctx.save_for_backward(*kept, *(one.turned for one in narrow))
        ctx.splits, ctx.call, ctx.parameters, ctx.width = splits, call, parameters, inp.shape[1]
        ctx.shares_maxima = quantisation.is_first_module()
        return found

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Of rows, weights and biases."""
        splits, call, count = ctx.splits, ctx.call, len(ctx.splits)
        kept, turned = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        made = _cast_parts(grad, splits, call.recipe, turn=True)
        grad_input = None
        if ctx.needs_input_grad[0]:
            grad_input = grad.new_empty(grad.shape[0], ctx.width)
            with in_turn() as turn:
                for index, out in enumerate(torch.split(grad_input, splits)):
                    if splits[index]:
                        with torch.cuda.stream(next(turn)):
                            product(made[index].rows, turned[index], out, call.recipe)
        grad_biases = [torch.empty_like(one) for one in ctx.parameters[count:]]  # sums that casts find
        grads = []
        with in_turn() as turn:
            for index, parameter in enumerate(ctx.parameters[:count]):
                with torch.cuda.stream(next(turn)):
                    rows = made[index].turned
                    out = made[index].rows if rows is None else rows.t()
                    grads.append(weight_gradient(kept[index].t(), out, parameter, parameter, None, call))
        if ctx.shares_maxima:
            quantisation.share_maxima()
        return grad_input, None, None, *grads, *grad_biases


def _cast_parts(rows: torch.Tensor, splits: list[int], recipe: str, *, turn: bool) -> list[NarrowOperand]:
    """Rows of each expert in fp8, turned as well."""
    if recipe != "delayed":
        return [cast(part, recipe, turn=turn) for part in torch.split(rows, splits)]
    whole = cast(rows, recipe, turn=turn)
    columns = [None] * len(splits) if whole.turned is None else torch.split(whole.turned, splits, dim=1)
    return [NarrowOperand(*part) for part in zip(torch.split(whole.rows, splits), columns, strict=True)]


class Fp8Padding(torch.nn.Module):
    """``transformer_engine.pytorch.Fp8Padding``: rows of each expert filled up to what fp8 products take."""

    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms, self.align_size = num_gemms, align_size

    def forward(self, inp: torch.Tensor, m_splits: list[int]) -> tuple[torch.Tensor, list[int]]:
        """The rows, and how many of each expert there are now."""
        size = self.align_size or _ROWS.get(
            quantisation.FP8GlobalStateManager.get_fp8_recipe().kind, _MANY_ROWS
        )
        padded = [-(-rows // size) * size for rows in m_splits]
        if padded == list(m_splits):
            return inp, padded
        found: torch.Tensor = _Moved.apply(  # type: ignore[no-untyped-call]
            inp, sum(padded), "multi_padding"
        )
        return found, padded


class Fp8Unpadding(torch.nn.Module):
    """``transformer_engine.pytorch.Fp8Unpadding``: what was filled up is left out again."""

    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms, self.align_size = num_gemms, align_size

    def forward(self, inp: torch.Tensor, m_splits: list[int]) -> torch.Tensor:
        """As many rows as there were."""
        if inp.shape[0] == sum(m_splits):
            return inp
        found: torch.Tensor = _Moved.apply(  # type: ignore[no-untyped-call]
            inp, sum(m_splits), "multi_unpadding"
        )
        return found


class _Moved(torch.autograd.Function):
    """Rows moved, by one kernel each way."""

    @staticmethod
    def forward(ctx: Any, inp: torch.Tensor, rows: int, name: str) -> torch.Tensor:
        ctx.rows, ctx.name = inp.shape[0], name
        return _move(inp, rows, f"{name}_kernel")

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _move(grad, ctx.rows, f"{ctx.name}_backward_kernel"), None, None


def _move(given: torch.Tensor, rows: int, name: str) -> torch.Tensor:
    found = given.new_empty(rows, *given.shape[1:])
    kernels.launch(name, reads=[given], writes=[found], cost=KernelCost(op_class="copy"))
    return found
