"""grouped_gemm: products of experts, a cuBLAS call each as it is built by default, and moves of their tokens.

Its calls go to four streams in turn; here they follow each other, each as long as its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from workloads.tracing import kernels
from workloads.tracing.stand_ins.fused_kernel import ExtensionKernel


def gmm(a: torch.Tensor, b: torch.Tensor, batch_sizes: torch.Tensor, trans_b: bool = False) -> Any:
    """``grouped_gemm.ops.gmm``: rows of ``a`` (tokens, in), so many for each of ``b`` (experts, in, out),
    (experts, out, in) with ``trans_b``.
    """
    return _Products.apply(a, b, batch_sizes.tolist(), trans_b)  # type: ignore[no-untyped-call]


def permute(
    input_act: torch.Tensor,
    indices: torch.Tensor,
    num_out_tokens: int | None = None,
    max_token_num: int = 0,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    """``grouped_gemm.ops.permute``: tokens in the order of their experts, and where they came from."""
    places = torch.empty(indices.numel(), dtype=torch.int32, device=indices.device)
    kernels.launch("DeviceRadixSortOnesweepKernel", reads=[indices], writes=[places])
    rows = num_out_tokens or indices.numel()
    kernel = _moved("moe_permute_topK_kernel", "moe_recover_topK_kernel", forgets=1)
    return kernel([input_act, places], input_act.new_empty(rows, input_act.shape[-1])), places


def unpermute(
    input_act: torch.Tensor,
    row_id_map: torch.Tensor,
    probs: torch.Tensor | None = None,
    max_tokens: int = 0,  # noqa: ARG001
    num_topK: int = 0,  # noqa: N803
) -> Any:
    """``grouped_gemm.ops.unpermute``: tokens where they came from, added up with their shares."""
    chosen = probs.shape[-1] if probs is not None else max(1, num_topK)
    kernel = _moved("moe_recover_topK_kernel", "moe_recover_topK_bwd_kernel")
    result = input_act.new_empty(row_id_map.numel() // chosen, input_act.shape[-1])
    return kernel([input_act, row_id_map, probs], result)


def _moved(forward: str, backward: str, forgets: int = 0) -> ExtensionKernel:
    return ExtensionKernel(forward, backward, "elementwise", "elementwise", forgets=forgets)


def _permute(
    input_act: torch.Tensor, indices: torch.Tensor, num_out_tokens: int, workspace: Any, *_: int
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """``grouped_gemm.backend.permute``: :func:`permute` without a graph, and the memory it sorts in."""
    with torch.no_grad():
        return *permute(input_act, indices, num_out_tokens), workspace


def _unpermute(
    input_act: torch.Tensor, row_id_map: torch.Tensor, probs: torch.Tensor, max_tokens: int, chosen: int
) -> Any:
    """``grouped_gemm.backend.unpermute``: :func:`unpermute` without a graph; shares may be empty."""
    with torch.no_grad():
        return unpermute(input_act, row_id_map, probs if probs.numel() else None, max_tokens, chosen)


def _unpermute_bwd(
    grad: torch.Tensor, input_act: torch.Tensor, row_id_map: torch.Tensor, probs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``grouped_gemm.backend.unpermute_bwd``: of what was moved, and of its shares."""
    made = torch.empty_like(input_act), torch.empty_like(probs, dtype=torch.float32)
    cost = kernels.KernelCost(op_class="elementwise")
    reads = [grad, input_act, row_id_map, probs]
    kernels.launch("moe_recover_topK_bwd_kernel", reads=reads, writes=[*made], cost=cost)
    return made


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor, sizes: list[int], trans_b: bool) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.sizes, ctx.trans_b = sizes, trans_b
        made = a.new_empty(a.shape[0], b.shape[1 if trans_b else 2])
        for expert, rows in _slices(sizes):
            weight = b[expert].t() if trans_b else b[expert]
            torch.mm(a[rows], weight, out=made[rows])
        return made

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        of_a = torch.empty_like(a) if ctx.needs_input_grad[0] else None
        of_b = torch.empty_like(b) if ctx.needs_input_grad[1] else None
        for expert, rows in _slices(ctx.sizes):
            if of_a is not None:
                weight = b[expert] if ctx.trans_b else b[expert].t()
                torch.mm(grad[rows], weight, out=of_a[rows])
        for expert, rows in _slices(ctx.sizes):
            if of_b is not None:
                left, right = (grad, a) if ctx.trans_b else (a, grad)
                torch.mm(left[rows].t(), right[rows], out=of_b[expert])
        return of_a, of_b, None, None


def _slices(sizes: list[int]) -> Iterator[tuple[int, slice]]:
    """(expert, its rows), for experts that have any."""
    first = 0
    for expert, size in enumerate(sizes):
        if size:
            yield expert, slice(first, first + size)
        first += size


_MODULES: dict[str, dict[str, Any]] = {
    "grouped_gemm": {},
    "grouped_gemm.backend": {"permute": _permute, "unpermute": _unpermute, "unpermute_bwd": _unpermute_bwd},
    "grouped_gemm.ops": {"gmm": gmm, "permute": permute, "unpermute": unpermute},
}


def members(name: str) -> dict[str, Any] | None:
    """What is in module ``name``; None: there is no such module."""
    return _MODULES.get(name)


def submodules(name: str) -> tuple[str, ...]:
    """Modules that the import of ``name`` imports."""
    return ("grouped_gemm.backend", "grouped_gemm.ops") if name == "grouped_gemm" else ()
