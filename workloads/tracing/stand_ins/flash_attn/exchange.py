"""flash-attn's exchanges between ranks that share a sequence (``flash_attn.utils.distributed``)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def all_gather_raw(x: torch.Tensor, process_group: Any, async_op: bool = False) -> Any:
    """(what every rank gives, one after the other; what to wait for)."""
    made = x.new_empty(dist.get_world_size(process_group) * x.shape[0], *x.shape[1:])
    return made, dist.all_gather_into_tensor(made, x.contiguous(), group=process_group, async_op=async_op)


def reduce_scatter_raw(x: torch.Tensor, process_group: Any, async_op: bool = False) -> Any:
    """(this rank's part of the sum; what to wait for)."""
    made = x.new_empty(x.shape[0] // dist.get_world_size(process_group), *x.shape[1:])
    return made, dist.reduce_scatter_tensor(made, x.contiguous(), group=process_group, async_op=async_op)


def all_reduce_raw(x: torch.Tensor, process_group: Any, async_op: bool = False) -> Any:
    """(the sum, out of place; what to wait for)."""
    made = x.contiguous().clone()
    return made, dist.all_reduce(made, group=process_group, async_op=async_op)


class _Exchange(torch.autograd.Function):
    """One of the above, and the one that its gradient takes (None: none)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, there: Any, back: Any) -> torch.Tensor:
        ctx.group, ctx.back = group, back
        made: torch.Tensor = there(x, group)[0]
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad if ctx.back is None else ctx.back(grad, ctx.group)[0], None, None, None


def all_gather(x: torch.Tensor, process_group: Any) -> Any:
    """Gathered; gradients are reduced and scattered."""
    return _Exchange.apply(x, process_group, all_gather_raw, reduce_scatter_raw)  # type: ignore[no-untyped-call]


def reduce_scatter(x: torch.Tensor, process_group: Any) -> Any:
    """Reduced and scattered; gradients are gathered."""
    return _Exchange.apply(x, process_group, reduce_scatter_raw, all_gather_raw)  # type: ignore[no-untyped-call]


def all_reduce(x: torch.Tensor, process_group: Any) -> Any:
    """Reduced; gradients are the same everywhere."""
    return _Exchange.apply(x, process_group, all_reduce_raw, None)  # type: ignore[no-untyped-call]
