"""Orders of what is not known: places that ``topk``, ``sort`` and ``randperm`` of the device give.

Each is an order that there may be: a permutation for whole ones, the ``k`` largest spread evenly over the
entries.  Programs index by them, count what they mark and make sizes of them; zeros would be no order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import arange
from torch._subclasses.fake_tensor import FakeTensor

from workloads.tracing.fake import host_values
from workloads.tracing.fake.known_values import KnownValues, remember

#: Operator -> position of the dimension among the arguments; -1: the result has one.
_ORDERING = {"aten::topk": 2, "aten::sort": 1, "aten::randperm": -1}


def choose(base: str, args: Any, kwargs: dict[str, Any], result: Any, known: KnownValues) -> None:
    """Remember an order for the places in ``result``, if operator ``base`` orders."""
    if base not in _ORDERING:
        return
    chosen = result[1] if isinstance(result, tuple | list) else result
    if not isinstance(chosen, FakeTensor) or not chosen.dim() or not chosen.numel() or not known.fits(chosen):
        return
    position = _ORDERING[base]
    dim = kwargs.get("dim", args[position] if -1 < position < len(args) else -1)
    count = chosen.shape[dim]
    entries = args[0].shape[dim] if position > 0 else count
    if host_values.ask is not None:
        host_values.ask("order", chosen, 0.0)
    with torch._C._DisableTorchDispatch():
        order = arange(count, device="cpu")
        if count < entries:
            order = (order + 1) * entries // (count + 1)
        shape = [1] * chosen.dim()
        shape[dim] = count
        remember(chosen, order.to(chosen.dtype).view(shape).expand(chosen.shape))
