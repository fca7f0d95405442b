"""A fused kernel and that of its backward pass, for stand-ins: results without data, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from simcore.records import dataclass
from workloads.tracing import kernels
from workloads.tracing.kernels import KernelCost


@dataclass(frozen=True)
class ExtensionKernel:
    """``forward`` and ``backward``: names of the kernels, their cost classes and floating-point operations.

    ``keeps_results``: the backward pass reads results, too, as softmax and norms with statistics do;
    ``forgets``: and not the first so many inputs, of which only places or angles matter.
    """

    forward: str
    backward: str
    forward_class: str = ""
    backward_class: str = ""
    forward_flops: int = 0
    backward_flops: int = 0
    keeps_results: bool = False
    forgets: int = 0

    def __call__(self, inputs: Sequence[torch.Tensor | None], *results: torch.Tensor) -> Any:
        """Launch on ``inputs``; gives tensors like ``results``, one alone as it is."""
        present = [tensor for tensor in inputs if tensor is not None]
        made = _Fused.apply(self, results, *present)  # type: ignore[no-untyped-call]
        return made[0] if len(made) == 1 else made


def laid_like(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Another last dimension, contiguous in the order in which the others of ``tensor`` lie in memory."""
    strides, last = tensor.stride(), tensor.dim() - 1
    order = sorted(range(last), key=strides.__getitem__, reverse=True)
    made = tensor.new_empty(*(tensor.shape[dim] for dim in order), width)
    return made.permute(*(order.index(dim) for dim in range(last)), last)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernel: ExtensionKernel, like: Sequence[torch.Tensor], *inputs: torch.Tensor
    ) -> Any:
        results = tuple(torch.empty_like(one, requires_grad=False) for one in like)
        cost = KernelCost(kernel.forward_flops, op_class=kernel.forward_class)
        kernels.launch(kernel.forward, reads=inputs, writes=results, cost=cost)
        ctx.kernel = kernel
        ctx.save_for_backward(*inputs[kernel.forgets :], *(results if kernel.keeps_results else ()))
        ctx.forgotten = [(one.shape, one.dtype) for one in inputs[: kernel.forgets]]
        ctx.num_kept = len(inputs) - len(ctx.forgotten)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        saved = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        num = len(ctx.forgotten)
        made = [
            grads[0].new_empty(shape, dtype=dtype) if needed else None
            for (shape, dtype), needed in zip(ctx.forgotten, wanted[:num], strict=True)
        ] + [
            torch.empty_like(tensor) if needed else None
            for tensor, needed in zip(saved[: ctx.num_kept], wanted[num:], strict=True)
        ]
        cost = KernelCost(ctx.kernel.backward_flops, op_class=ctx.kernel.backward_class)
        reads = [*filter(lambda one: one is not None, grads), *saved]
        kernels.launch(
            ctx.kernel.backward, reads=reads, writes=[one for one in made if one is not None], cost=cost
        )
        return (None, None, *made)
