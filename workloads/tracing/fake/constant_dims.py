"""Known values that are the same along dimensions of a larger tensor: a mask for every query.

Note [Constant dimensions]
    A small tensor that is expanded costs nothing to follow, what is computed of it element by element would
    cost its full size.  It is computed of one entry of each constant dimension instead, and a storage
    remembers a region: where a tensor lies in it, and values of its shape but for constant dimensions, which
    have size 1.  A view is known where it lies in the region.  What is written at one place of a constant
    dimension leaves that place alone known, since the others do not change along.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from simcore.records import dataclass

#: Elements that a region is given at most when it is written.
MOST = 1 << 16


@dataclass(frozen=True)
class Region:
    """Where a tensor of ``shape`` lies in its storage, in elements, and its ``values``."""

    values: torch.Tensor
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor, values: torch.Tensor) -> Region:
        """All of ``tensor``."""
        return cls(values, int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))

    def part(self, view: torch.Tensor) -> torch.Tensor | None:
        """Values of another ``view`` of the storage, sharing memory; None: it does not lie in the region."""
        found = self._places(view)
        if found is None:
            return None
        low, steps = found
        strides = [0 if dim < 0 else self._stride(dim) * times for dim, times in steps]
        begin = sum(place * self._stride(dim) for dim, place in low.items())
        return self.values.as_strided(view.shape, strides, self.values.storage_offset() + begin)

    def at(self, view: torch.Tensor) -> Region | None:
        """What stays known when ``view``, which is written; None: it lies elsewhere, or is too large."""
        found = self._places(view)
        if found is None:
            return None
        low, steps = found
        spanned = {dim for dim, _ in steps}
        fixed = {dim for dim in low if self.values.shape[dim] == 1 and dim not in spanned}
        offset = self.offset + sum(low[dim] * self.stride[dim] for dim in fixed)
        shape = tuple(1 if dim in fixed else size for dim, size in enumerate(self.shape))
        sizes = [size if dim in spanned else self.values.shape[dim] for dim, size in enumerate(shape)]
        if math.prod(sizes) > MOST:
            return None
        values = self.values.expand(sizes).clone(memory_format=torch.contiguous_format)
        return Region(values, offset, shape, self.stride)

    def _places(self, view: torch.Tensor) -> tuple[dict[int, int], list[tuple[int, int]]] | None:
        """Where ``view`` begins along each longer dimension, and along which (-1: none), in what steps, each
        of its own goes.
        """
        longer = [dim for dim, size in enumerate(self.shape) if size > 1 and self.stride[dim]]
        longer.sort(key=lambda dim: -self.stride[dim])
        rest = int(view.storage_offset()) - self.offset
        if rest < 0:
            return None
        low: dict[int, int] = {}
        for dim in longer:
            low[dim], rest = divmod(rest, self.stride[dim])
        steps, used = [], set[int]()
        for size, step in zip(view.shape, view.stride(), strict=True):
            if size == 1 or step == 0:
                steps.append((-1, 0))
                continue
            dim = next((one for one in longer if step % self.stride[one] == 0), -1)
            if dim < 0 or dim in used:
                return None
            used.add(dim)
            times = step // self.stride[dim]
            if low[dim] + (size - 1) * times >= self.shape[dim]:
                return None
            steps.append((dim, times))
        if rest or any(low[dim] >= self.shape[dim] for dim in longer):
            return None
        return low, steps

    def _stride(self, dim: int) -> int:
        return 0 if self.values.shape[dim] == 1 else self.values.stride(dim)


def constant_dims(shape: Sequence[int], values: Sequence[torch.Tensor]) -> list[int]:
    """Dimensions of a result of ``shape`` along which none of the broadcast ``values`` changes, counted from
    the last, which is -1.
    """
    return [
        dim
        for dim in range(-len(shape), 0)
        if shape[dim] > 1 and all(-dim > one.dim() or _is_constant(one, dim) for one in values)
    ]


def _is_constant(values: torch.Tensor, dim: int) -> bool:
    if values.shape[dim] == 1 or values.stride(dim) == 0:
        return True
    once = first_entries(values, [one for one in range(-values.dim(), 0) if values.stride(one) == 0])
    return bool((once == once.narrow(dim, 0, 1)).all())


def first_entries(value: Any, dims: Sequence[int]) -> Any:
    """``value``, or the tensors in it, at the first place along ``dims``, which stay."""
    if isinstance(value, dict):
        return {name: first_entries(one, dims) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(first_entries(one, dims) for one in value)
    if isinstance(value, torch.Tensor):
        for dim in dims:
            if -dim <= value.dim():
                value = value.narrow(dim, 0, 1)
    return value
