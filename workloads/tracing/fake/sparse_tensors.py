"""Sparse tensors of the device: the indices and values that each is made of.

torch's shapes of sparse tensors forget how many entries there are.  Here a sparse tensor (layout COO)
remembers the two dense tensors behind it, and an operator on it is the operators on those that torch's CUDA
code runs (aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu, SparseCUDATensorMath.cu).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from workloads.tracing import kernels
from workloads.tracing.fake.aten_ops import tensors_in
from workloads.tracing.kernels import KernelCost

_PARTS = "_simcore_parts"
_COALESCED = "_simcore_coalesced"
_aten = torch.ops.aten

#: Whether there are any: otherwise no call is searched for them.
seen = False


class UnknownSparseError(NotImplementedError):
    """An operator is asked of sparse tensors that nobody has taken apart."""

    def __init__(self, operator: str) -> None:
        super().__init__(f"sparse tensors of the GPU: {operator} is not known to the tracer")


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices (sparse dimensions, entries) and values (entries, dense dimensions).

    Errors: UnknownSparseError of one that was made from a dense tensor without values.
    """
    found: tuple[torch.Tensor, torch.Tensor] | None = getattr(tensor, _PARTS, None)
    if found is None and isinstance(tensor, FakeTensor):
        raise UnknownSparseError("the number of entries")
    return found or (tensor._indices(), tensor._values())


def made(
    result: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, *, coalesced: bool = False
) -> torch.Tensor:
    """``result``, a sparse tensor that torch has made without entries, consists of these."""
    global seen
    seen = True
    setattr(result, _PARTS, (indices, values))
    setattr(result, _COALESCED, coalesced)
    return result


#: Rows, columns or blocks of entries: layouts that are refused where the device has a part.
_IN_ROWS = {
    f"aten::_to_{layout}": f"torch.{layout}"
    for layout in ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
}


def _refuse_rows(base: str, args: Any, kwargs: dict[str, Any]) -> None:
    """UnknownSparseError where a call makes a sparse tensor of the GPU in rows, or moves one there."""
    made_as = str(kwargs["layout"]) if "layout" in kwargs else _IN_ROWS.get(base, "")
    if base == "aten::_to_copy":
        made_as = str(args[0].layout)
    device = kwargs.get("device") or next((one.device for one in tensors_in(args, [])), None)
    if made_as in _IN_ROWS.values() and device is not None and torch.device(device).type == "cuda":
        raise UnknownSparseError(f"the layout {made_as} (entries by rows, columns or blocks)")


def takes_apart(base: str, args: Any, kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """What runs an operator of which an argument is sparse, or the result may be; None: there is none.

    Errors: UnknownSparseError.
    """
    if base == "aten::_embedding_bag_backward" and args[9]:
        return lambda *given, func, **named: _bag_gradient(*given, **named)  # noqa: ARG005
    moves = base == "aten::_to_copy"  # maybe from the host
    if moves or base in _IN_ROWS or "layout" in kwargs:
        _refuse_rows(base, args, kwargs)
    if not seen and not moves:
        return None
    if base.startswith("c10d::"):
        if any(one.layout is torch.sparse_coo for one in tensors_in(args, [])):
            raise ValueError("Tensors must be CUDA and dense")  # as NCCL's process group says
        return None
    sparse = [one for one in args if isinstance(one, torch.Tensor) and one.layout is torch.sparse_coo]
    if not sparse or not (moves or any(isinstance(one, FakeTensor) for one in sparse)):
        return None
    found = _OPERATORS.get(base.removeprefix("aten::"))
    if found is None and base in _BY_VALUES:
        return lambda *given, func, **named: _by_values(func, *given, **named)
    if found is None:
        raise UnknownSparseError(base)
    return lambda *given, func, **named: found(*given, **named)  # noqa: ARG005


#: Operators of single entries, zero where their argument is.
_BY_VALUES = frozenset(
    f"aten::{name}{place}"
    for name in (
        "mul",
        "div",
        "neg",
        "abs",
        "sqrt",
        "pow",
        "sign",
        "clone",
        "_to_copy",
        "detach",
        "zeros_like",
    )
    for place in ("", "_")
)


def _sparse(
    indices: torch.Tensor, values: torch.Tensor, size: Any, *, coalesced: bool = False
) -> torch.Tensor:
    found: torch.Tensor = _aten._sparse_coo_tensor_with_dims_and_tensors(
        indices.shape[0],
        len(size) - indices.shape[0],
        list(size),
        indices,
        values,
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=values.device,
        is_coalesced=coalesced,
    )
    return found


def _by_values(func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    indices, values = parts_of(tensor)
    if any(isinstance(one, torch.Tensor) and one.dim() for one in args):
        raise UnknownSparseError(func.name())
    kwargs.pop("layout", None)
    found = func(values, *args, **kwargs)
    if found is values:
        return tensor
    return _sparse(indices.to(found.device), found, tensor.shape, coalesced=tensor.is_coalesced())


def _bag_gradient(
    grad: torch.Tensor,
    indices: torch.Tensor,
    _offsets: torch.Tensor,
    bag_of: torch.Tensor,
    bag_size: torch.Tensor,
    _maxima: torch.Tensor,
    num_weights: int,
    scale_by_freq: bool,
    mode: int,
    _sparse_one: bool,
    shares: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    """Of ``nn.EmbeddingBag(sparse=True)``: a row for each index (_embedding_bag_sparse_backward)."""
    bags = bag_of if bag_of.numel() == indices.numel() else torch.empty_like(indices)
    rows = grad.index_select(0, bags)
    if mode == 1:
        rows = rows / bag_size.index_select(0, bags).unsqueeze(1)
    if shares is not None:
        rows = rows * shares.unsqueeze(1)
    found: torch.Tensor = _aten.embedding_backward(
        rows, indices, num_weights, padding_idx, scale_by_freq, True
    )
    return found


def _flat(indices: torch.Tensor, size: Any) -> torch.Tensor:
    """Each entry's place among the sparse dimensions taken as one."""
    if indices.shape[0] == 1:
        return indices.select(0, 0)
    steps = [math.prod(size[dim + 1 : indices.shape[0]]) for dim in range(indices.shape[0])]
    return (indices * torch.tensor(steps, device=indices.device).unsqueeze(1)).sum(0)


def _rows(dense: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    return dense.view(math.prod(dense.shape[:sparse_dim]), *dense.shape[sparse_dim:])


def _coalesce(tensor: torch.Tensor) -> torch.Tensor:
    """Sorted, what is at one place added up; the host reads how many are left."""
    indices, values = parts_of(tensor)
    flat, order = _flat(indices, tensor.shape).sort()
    places = torch.unique_consecutive(flat)
    summed = values.new_empty(places.numel(), *values.shape[1:])
    kernels.launch(
        "coalesceValuesKernel",
        reads=[values, order],
        writes=[summed],
        cost=KernelCost(flops=0, op_class="index"),
    )
    left = places.unsqueeze(0)
    if indices.shape[0] > 1:
        sizes = [math.prod(tensor.shape[dim + 1 : indices.shape[0]]) for dim in range(indices.shape[0])]
        left = torch.stack([(places // step) % tensor.shape[dim] for dim, step in enumerate(sizes)])
    return _sparse(left, summed, tensor.shape, coalesced=True)


def _add_(dense: torch.Tensor, other: torch.Tensor, *, alpha: float = 1) -> torch.Tensor:
    if dense.layout is torch.sparse_coo:
        raise UnknownSparseError("add_")
    indices, values = parts_of(other)
    into = _rows(dense, indices.shape[0])
    into.index_add_(0, _flat(indices, other.shape), values if alpha == 1 else values * alpha)
    return dense


def _add(one: torch.Tensor, other: torch.Tensor, *, alpha: float = 1) -> torch.Tensor:
    if one.layout is not torch.sparse_coo:
        return _add_(one.clone(), other, alpha=alpha)
    (indices, values), (others, added) = parts_of(one), parts_of(other)
    return _sparse(
        torch.cat([indices, others], 1),
        torch.cat([values, added if alpha == 1 else added * alpha]),
        one.shape,
    )


def _mask(dense: torch.Tensor, mask: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    indices, _values = parts_of(mask)
    values = _rows(dense, indices.shape[0]).index_select(0, _flat(indices, mask.shape))
    return _sparse(indices, values, mask.shape, coalesced=mask.is_coalesced())


def _product(matrix: torch.Tensor, dense: torch.Tensor, *, into: torch.Tensor | None = None) -> torch.Tensor:
    """A sparse matrix times a dense one, by rows of entries (cuSPARSE's SpMM)."""
    if matrix.layout is not torch.sparse_coo or dense.layout is torch.sparse_coo:
        raise UnknownSparseError("a product with another sparse tensor")
    indices, values = parts_of(matrix)
    found = dense.new_empty(matrix.shape[0], dense.shape[1])
    added = [] if into is None else [into]
    gathered = values.numel() * dense.shape[1] * dense.element_size()
    kernels.launch(
        "cusparse_spmm",
        reads=[indices, values, dense, *added],
        writes=[found],
        cost=KernelCost(
            flops=2 * values.numel() * dense.shape[1],
            bytes_read=gathered + sum(one.numel() * one.element_size() for one in (indices, values, *added)),
            op_class="index",
        ),
    )
    return found


def _add_product(into: torch.Tensor, matrix: torch.Tensor, dense: torch.Tensor, **_: Any) -> torch.Tensor:
    return _product(matrix, dense, into=into)


def _transpose(tensor: torch.Tensor, one: int = 0, other: int = 1) -> torch.Tensor:
    indices, values = parts_of(tensor)
    if indices.shape[0] != 2 or tensor.dim() != 2:
        raise UnknownSparseError("transpose")
    del one, other
    return _sparse(indices.flip(0), values, tensor.shape[::-1])


def _dense(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    found = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return _add_(found, tensor)


def _copy_(tensor: torch.Tensor, other: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    if tensor.layout is not torch.sparse_coo or other.layout is not torch.sparse_coo:
        raise UnknownSparseError("copy_ between sparse and dense")
    indices, values = parts_of(other)
    return made(tensor, indices.to(tensor.device, copy=True), values.to(tensor.device, copy=True))


def _zero_(tensor: torch.Tensor) -> torch.Tensor:
    indices, values = parts_of(tensor)
    return made(tensor, indices[:, :0], values[:0])


_OPERATORS: dict[str, Callable[..., Any]] = {
    "_indices": lambda tensor: parts_of(tensor)[0],
    "_values": lambda tensor: parts_of(tensor)[1],
    "indices": lambda tensor: parts_of(tensor)[0],
    "values": lambda tensor: parts_of(tensor)[1],
    "is_coalesced": lambda tensor: bool(getattr(tensor, _COALESCED, False)),
    "_nnz": lambda tensor: int(parts_of(tensor)[0].shape[1]),
    "_coalesce": _coalesce,
    "coalesce": lambda tensor: tensor if tensor.is_coalesced() else _coalesce(tensor),
    "add_": _add_,
    "add": _add,
    "sparse_mask": _mask,
    "mm": _product,
    "_sparse_mm": _product,
    "addmm": _add_product,
    "_sparse_addmm": _add_product,
    "sspaddmm": _add_product,
    "t": _transpose,
    "transpose": _transpose,
    "to_dense": _dense,
    "_to_dense": _dense,
    "copy_": _copy_,
    "zero_": _zero_,
    "sum": lambda tensor, **options: parts_of(tensor)[1].sum(**options),
}
