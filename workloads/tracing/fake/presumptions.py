"""What is presumed of values that are not known.

Comparisons with infinity and with itself (``isfinite``, ``isnan``) have one presumed answer for all elements
whatever the tensor holds: training is taken to stay finite.  Integers that a program clamps from below are at
least that.  Presumptions belong to storages, as values do.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from workloads.tracing.fake.aten_ops import tensors_in
from workloads.tracing.fake.storages import storage_of

_PRESUMED = "_simcore_presumed"
_LEAST = "_simcore_least"
#: What a tensor forgets that is written with what is not known.
MARKS = (_PRESUMED, _LEAST)

#: Operators of truth values that give what they are given when that is the same everywhere.
_KEEPING = frozenset(
    f"aten::{name}"
    for name in (
        *("all", "any", "mul", "logical_and", "logical_or", "bitwise_and", "bitwise_or", "clone", "stack"),
        *("cat", "_to_copy", "prod", "min", "max", "amin", "amax", "_is_all_true"),
    )
)
_NEGATING = frozenset({"aten::logical_not", "aten::bitwise_not"})
_BOUNDING = frozenset({"aten::clamp", "aten::clamp_", "aten::clamp_min", "aten::clamp_min_"})
_PRESUMPTIONS = {"aten::isfinite": True, "aten::isnan": False, "aten::isinf": False, "aten::isclose": True}


def presumed(tensor: torch.Tensor) -> bool | None:
    """The truth value that every element of ``tensor`` is presumed to have; None: no presumption."""
    found: bool | None = getattr(storage_of(tensor), _PRESUMED, None)
    return found


def presume(tensor: torch.Tensor, answer: bool) -> None:
    """Every element of ``tensor``, where not known, has this truth value."""
    setattr(storage_of(tensor), _PRESUMED, answer)


def least(tensor: torch.Tensor) -> int:
    """What integers of ``tensor`` that are not known are at least, by what the program does; else 0."""
    return int(getattr(storage_of(tensor), _LEAST, 0))


def of_results(base: str, args: Any, kwargs: dict[str, Any], outputs: list[torch.Tensor]) -> None:
    """Remember what is presumed of truth values, and bounds of integers (see the module's docstring)."""
    if len(outputs) != 1 or not isinstance(outputs[0], FakeTensor) or outputs[0].layout is not torch.strided:
        return
    if base in _BOUNDING and not outputs[0].dtype.is_floating_point:
        bound = kwargs.get("min", args[1] if len(args) > 1 else None)
        if isinstance(bound, int):
            setattr(storage_of(outputs[0]), _LEAST, bound)
    answer = _PRESUMPTIONS.get(base)
    if base in ("aten::eq", "aten::ne") and len(args) == 2:
        infinite = isinstance(args[1], float) and math.isinf(args[1])
        if args[0] is args[1] or _are_copies(*args):
            answer = base == "aten::eq"
        elif infinite:
            answer = base == "aten::ne"
    elif base in _KEEPING or base in _NEGATING:
        given = {presumed(one) for one in tensors_in(args, []) if isinstance(one, FakeTensor)}
        if len(given) == 1:
            (answer,) = given
            answer = not answer if answer is not None and base in _NEGATING else answer
    if answer is not None:
        presume(outputs[0], answer)


def _are_copies(one: Any, other: Any) -> bool:
    """Whole tensors of floats are compared to see that they are the same, on other ranks, say."""
    tensors = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    return tensors and one.is_floating_point() and one.dtype == other.dtype and one.shape == other.shape
