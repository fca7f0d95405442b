"""How many elements of a mask can be true although its values are not known.

Detectors draw a few of many boxes: places that are not known are set to 1 in zeros, and what was set is
selected.  As many elements as places were set can be true.  Bounds belong to storages, as values do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from workloads.tracing.fake.known_values import MOST_TRUE, values_of
from workloads.tracing.fake.storages import storage_of


def most_true(tensor: torch.Tensor) -> int:
    """Elements of ``tensor`` that are not 0, at most."""
    known = values_of(tensor)
    if known is not None:
        with torch._C._DisableTorchDispatch():
            return int(known.count_nonzero())
    most: int = getattr(storage_of(tensor), MOST_TRUE, tensor.numel())
    return min(most, tensor.numel())


def bound(operator: str, args: Any) -> int | None:
    """Elements of what ``operator`` is about to give that are not 0, at most; None: who knows."""
    rule = _RULES.get(operator)
    if rule is None:
        return None
    tensors = args and (args[0] if isinstance(args[0], list | tuple) else args[:1])
    return rule(args) if all(isinstance(one, FakeTensor) for one in tensors) else None


def remember(tensors: list[torch.Tensor], most: int | None) -> None:
    """Of the one tensor that was given, ``most`` elements are not 0, where it is all of its storage."""
    if most is None or len(tensors) != 1 or most >= tensors[0].numel():
        return
    (tensor,) = tensors
    storage = storage_of(tensor)
    if isinstance(tensor, FakeTensor) and storage.nbytes() == tensor.numel() * tensor.element_size():
        setattr(storage, MOST_TRUE, most)


def _put(args: Any) -> int:
    """What was true, and every place where something but 0 is written."""
    target, places, value = args[:3]
    known = values_of(value)
    if known is not None and most_true(value) == 0:
        return most_true(target)
    given = [one for one in places if one is not None]
    masks = [one for one in given if one.dtype in (torch.bool, torch.uint8)]
    if masks and len(given) > 1:
        return int(target.numel())
    held = masks[0].dim() if masks else len(given)  # dimensions that the places are of
    shape = np.broadcast_shapes(*(one.shape for one in given))
    written: int = most_true(masks[0]) if masks else math.prod(shape)
    first: int = next(at for at, one in enumerate(places) if one is not None)
    kept = [size for at, size in enumerate(target.shape) if at < first or at >= first + held]
    kept = kept if masks or len(given) == 1 else list(target.shape[len(places) :])
    return most_true(target) + written * int(math.prod(kept))


def _either(args: Any) -> int | None:
    one, other = args[:2]
    alike = isinstance(other, torch.Tensor) and one.shape == other.shape
    return most_true(one) + most_true(other) if alike else None


def _compared(args: Any) -> int | None:
    """With a number that 0 does not pass for."""
    return most_true(args[0]) if isinstance(args[1], int | float) and args[1] > 0 else None


def _unlike_zero(args: Any) -> int | None:
    return most_true(args[0]) if isinstance(args[1], int | float) and args[1] == 0 else None


def _above(args: Any) -> int | None:
    return most_true(args[0]) if isinstance(args[1], int | float) and args[1] >= 0 else None


_RULES: Final[Mapping[str, Callable[[Any], int | None]]] = {
    **dict.fromkeys(("aten::zeros_like", "aten::new_zeros", "aten::zero_"), lambda _: 0),
    **dict.fromkeys(("aten::index_put", "aten::index_put_"), _put),
    **dict.fromkeys(("aten::bitwise_or", "aten::logical_or", "aten::__or__"), _either),
    **dict.fromkeys(("aten::clone", "aten::_to_copy"), lambda args: most_true(args[0])),
    "aten::cat": lambda args: sum(map(most_true, args[0])),
    **dict.fromkeys(("aten::eq", "aten::ge"), _compared),
    "aten::ne": _unlike_zero,
    "aten::gt": _above,
}
