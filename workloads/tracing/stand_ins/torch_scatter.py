"""torch_scatter: reductions of rows into groups, by torch's own operators.

How many groups there are is read from ``index`` where ``dim_size`` is not given.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from workloads.tracing.stand_ins.refusal import NotStoodInError

_REDUCTIONS = {**dict.fromkeys(("sum", "add"), "sum"), "mul": "prod", "min": "amin", "max": "amax"}


def scatter(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> torch.Tensor:
    """``torch_scatter.scatter``: rows of ``src`` along ``dim``, reduced to those that ``index`` names."""
    dim %= src.dim()
    places = _like(index, src, dim)
    if out is None:
        sizes = list(src.shape)
        sizes[dim] = dim_size if dim_size is not None else int(index.max()) + 1 if index.numel() else 0
        out = src.new_zeros(sizes)
    if reduce == "mean":
        ones = torch.ones(index.shape, dtype=src.dtype, device=src.device)
        along = dim if index.dim() > dim else -1
        rows = _like(scatter(ones, index, along, dim_size=out.shape[dim]).clamp(min=1), out, dim)
        return out.scatter_add_(dim, places, src) / rows
    if _REDUCTIONS[reduce] == "sum":
        return out.scatter_add_(dim, places, src)
    return out.scatter_reduce(dim, places, src, _REDUCTIONS[reduce], include_self=False)


def _like(index: torch.Tensor, src: torch.Tensor, dim: int) -> torch.Tensor:
    if index.dim() == 1:
        index = index.view([-1 if one == dim else 1 for one in range(src.dim())])
    for _ in range(index.dim(), src.dim()):
        index = index.unsqueeze(-1)
    return index.expand_as(src)


def _reducing(reduce: str) -> Callable[..., torch.Tensor]:
    return partial(scatter, reduce=reduce)


def _with_places(reduce: str) -> Callable[..., Any]:
    """``scatter_min`` and ``scatter_max`` say where what they found stood, too (of the GPU: not known)."""

    def extreme(
        src: torch.Tensor, index: torch.Tensor, dim: int = -1, out: Any = None, dim_size: int | None = None
    ) -> Any:
        found = scatter(src, index, dim, out, dim_size, reduce)
        dim %= src.dim()
        if src.is_cuda:
            return found, torch.empty_like(found, dtype=torch.long)
        places = _like(index, src, dim)
        rows = _like(torch.arange(src.shape[dim]), src, dim)
        rows = rows.where(src == found.gather(dim, places), src.shape[dim])
        none = torch.full_like(found, src.shape[dim], dtype=torch.long)
        return found, none.scatter_reduce(dim, places, rows, "amin")

    return extreme


def scatter_softmax(
    src: torch.Tensor, index: torch.Tensor, dim: int = -1, dim_size: int | None = None
) -> torch.Tensor:
    """``torch_scatter.scatter_softmax``: shares of each group's exponentials."""
    places = _like(index, src, dim % src.dim())
    largest = scatter(src, index, dim, dim_size=dim_size, reduce="max").gather(dim, places)
    powers = (src - largest).exp()
    return powers / scatter(powers, index, dim, dim_size=dim_size).gather(dim, places)


def segment_csr(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None, reduce: str = "sum"
) -> torch.Tensor:
    """``torch_scatter.segment_csr``: of sorted groups with bounds ``indptr``."""
    if indptr.dim() > 1 or out is not None:
        raise NotStoodInError("segment_csr of several rows of bounds, or into a tensor", "torch_scatter")
    found = torch.segment_reduce(src, reduce, offsets=indptr, axis=0)
    return found if src.is_cuda else found.where(_like(indptr.diff() > 0, found, 0), 0.0)


_MEMBERS: dict[str, Any] = {
    "__version__": "2.1.2",
    "scatter": scatter,
    **{f"scatter_{name}": _reducing(name) for name in ("sum", "add", "mean", "mul")},
    **{f"scatter_{name}": _with_places(name) for name in ("min", "max")},
    "scatter_softmax": scatter_softmax,
    "segment_coo": lambda src, index, out=None, dim_size=None, reduce="sum": scatter(
        src, index, index.dim() - 1, out, dim_size, reduce
    ),
    "segment_csr": segment_csr,
}


def members(name: str) -> dict[str, Any] | None:
    """What is in module ``name``; None: there is no such module."""
    return _MEMBERS if name == "torch_scatter" else None
