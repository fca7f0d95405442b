"""Integers that are known although tensors have no data: where tokens are routed, and what follows from it.

Note [Known values]
    ``topk``, ``argmax`` and ``max`` over a dimension choose experts; the load model chooses for them, on
    every rank alike.  What is computed from integers that are known is known, too, and computed for real on
    the host: counts, offsets, masks, sorted orders, splits.  So ``nonzero``, ``bincount``, ``unique``,
    ``repeat_interleave`` or ``tolist`` have the sizes that the load implies.  Other ranks' counts are this
    rank's: they have the same load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from workloads.tracing.fake.aten_ops import tensors_in
from workloads.tracing.fake.expert_load import ExpertLoad, assign, token_counts

_VALUES = "_simcore_values"
#: Choices among more than these are not experts.
_MOST_EXPERTS = 1024
_MOST_ELEMENTS = 1 << 24
#: Operator -> (position of the dimension among the arguments, its default).
_CHOOSING = {"aten::topk": (2, -1), "aten::argmax": (1, None), "aten::max": (1, None)}
#: Operators whose values follow from shapes and numbers alone.
_MADE = frozenset(
    f"aten::{name}"
    for name in (
        *("arange", "zeros", "ones", "full", "eye", "scalar_tensor"),
        *("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"),
    )
)


def values_of(tensor: Any) -> torch.Tensor | None:
    """The known values of a tensor without data, or None."""
    return getattr(tensor, _VALUES, None)


class KnownValues:
    """``load`` decides where tokens go; ``exponent_at`` is told of every decision and may give another
    exponent (:class:`ExpertLoad`).  ``module`` names the layer that decides: recorded loads go by the order
    in which layers decide first, also when they are recomputed.  ``active`` from the first decision on.
    """

    def __init__(
        self,
        load: ExpertLoad,
        exponent_at: Callable[[torch.Tensor, float], float],
        module: Callable[[], str],
    ) -> None:
        self.active = False
        self._load = load
        self._exponent_at = exponent_at
        self._module = module
        self._layers: dict[str, int] = {}

    def choose(self, base: str, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Route, if operator ``base`` chooses experts for tokens."""
        if base not in _CHOOSING:
            return
        position, default = _CHOOSING[base]
        scores = args[0]
        dim = args[position] if len(args) > position else kwargs.get("dim", default)
        chosen = result[1] if isinstance(result, tuple | list) else result
        if not isinstance(dim, int) or not isinstance(chosen, FakeTensor) or scores.dim() < 2:
            return
        experts = scores.shape[dim]
        if chosen.dtype != torch.int64 or dim % scores.dim() != scores.dim() - 1 or experts > _MOST_EXPERTS:
            return
        tokens = scores.numel() // experts
        top_k = chosen.numel() // tokens if tokens else 0
        if not 0 < top_k < experts:
            return
        own = self._load.exponent
        exponent = self._exponent_at(scores, own)
        shares = self.shares(experts, None if exponent == own else exponent)
        experts_of = assign(token_counts(shares, tokens, top_k), tokens, top_k)
        with _disable_current_modes():
            values = torch.from_numpy(experts_of).reshape(chosen.shape)
        self.active = True
        setattr(chosen, _VALUES, values)

    def shares(self, experts: int, exponent: float | None = None) -> NDArray[np.float64]:
        """Share of every expert in the routing layer that runs; ``exponent`` instead of the load's own."""
        layer = self._layers.setdefault(self._module(), len(self._layers))
        return self._load.shares(experts, layer, exponent)

    def compute(self, func: Any, base: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """What ``func`` gives on known values; None when some are not known, or not worth knowing."""
        tensors = tensors_in(list(kwargs.values()), tensors_in(args, []))
        if base not in _MADE and (not tensors or any(values_of(one) is None for one in tensors)):
            return None
        if base not in _MADE and any(one.dtype.is_floating_point for one in tensors):
            return None
        if any(one.numel() > _MOST_ELEMENTS for one in tensors):
            return None
        with _disable_current_modes():
            try:
                real = func(*_real(args), **_real_named(kwargs))
            except (RuntimeError, NotImplementedError, TypeError):
                if base != "aten::histc":
                    return None
                real = func(_real(args[0]).float(), *args[1:], **kwargs).to(args[0].dtype)
        results = tensors_in(real, [])
        fits = all(not one.dtype.is_floating_point and one.numel() <= _MOST_ELEMENTS for one in results)
        return real if fits and results else None

    def forget(self, written: list[torch.Tensor]) -> None:
        """These were written with what is not known."""
        for tensor in written:
            tensor.__dict__.pop(_VALUES, None)

    def exchange(self, name: str, args: Any, ranks: int, rank: int, reduce_op: str) -> None:
        """A collective moves known values: every rank has the same."""
        target = args[0]
        if name == "alltoall_base_":
            values, splits = values_of(args[1]), args[4] or None
            if values is not None:
                with _disable_current_modes():
                    parts = torch.split(values, splits if splits else values.shape[0] // ranks)
                    self._arrive(target, torch.cat([parts[rank]] * ranks))
        elif name == "_allgather_base_":
            values = values_of(args[1])
            if values is not None:
                with _disable_current_modes():
                    self._arrive(target, torch.cat([values.reshape(-1)] * ranks))
        elif name == "allgather_":
            for outputs, source in zip(target, args[1], strict=True):
                values = values_of(source)
                for output in outputs if values is not None else ():
                    self._arrive(output, values)
        elif name == "allreduce_":
            for tensor in target:
                values = values_of(tensor)
                if values is not None and reduce_op == "sum":
                    with _disable_current_modes():
                        setattr(tensor, _VALUES, values * ranks)

    def _arrive(self, target: torch.Tensor, values: torch.Tensor | None) -> None:
        if values is not None and values.numel() == target.numel():
            with _disable_current_modes():
                setattr(target, _VALUES, values.reshape(target.shape).to(target.dtype))


def attach(result: Any, real: Any) -> None:
    """The tensors of ``result`` have the values of those of ``real``."""
    for tensor, values in zip(tensors_in(result, []), tensors_in(real, []), strict=False):
        if tensor.shape == values.shape and tensor.dtype == values.dtype:
            setattr(tensor, _VALUES, values)


def attach_value(tensor: torch.Tensor, value: float) -> None:
    """Every element of ``tensor`` is ``value``."""
    with _disable_current_modes():
        setattr(tensor, _VALUES, torch.full(tensor.shape, value, dtype=tensor.dtype))


def shaped_like(real: Any, device: torch.device) -> Any:
    """Tensors without data of the shapes of ``real``; to be called where a fake mode is active."""
    if isinstance(real, torch.Tensor):
        return torch.empty(real.shape, dtype=real.dtype, device=device)
    return type(real)(shaped_like(one, device) for one in real)


def _real(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        known = values_of(value)
        return known if known is not None else torch.empty(value.shape, dtype=value.dtype)
    if isinstance(value, list | tuple):
        return type(value)(map(_real, value))
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _real_named(kwargs: dict[str, Any]) -> dict[str, Any]:
    dropped = ("pin_memory", "non_blocking")
    return {name: _real(value) for name, value in kwargs.items() if name not in dropped}
