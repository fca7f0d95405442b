"""Jagged tensors (``torch.nested`` of layout jagged): their ragged size, their attention and what it costs.

torch gives the ragged size of tensors without data a symbol, which only a compiler can follow; here it is
what it is of real ones: a number that says no more than which offsets it is of.
"""

from __future__ import annotations

from itertools import count
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import SDPBackend

from workloads.tracing.kernels import KernelCost, register_cost
from workloads.tracing.stand_ins.flash_attn.attention import packed_scores

_RAGGED = "_simcore_ragged"
_numbers = count(1)


def install(_tensors: ModuleType) -> None:
    """Once ``torch.nested._internal.nested_tensor`` is imported."""
    from torch.nested._internal import sdpa

    FakeTensor.get_nested_int = _ragged_size  # type: ignore[method-assign]
    sdpa._select_sdp_backend = _backend


def _ragged_size(self: FakeTensor, *, coeff: int | torch.SymInt = 1) -> Any:
    from torch.nested._internal.nested_int import NestedIntNode

    known = vars(self)
    if _RAGGED not in known:
        known[_RAGGED] = torch.SymInt(NestedIntNode(next(_numbers), 1))  # type: ignore[no-untyped-call]
    return known[_RAGGED] if coeff == 1 else known[_RAGGED] * coeff


def _backend(query: Any, _key: Any, _value: Any, attn_mask: Any, *_: Any) -> SDPBackend:
    """As on a GPU with flash attention."""
    if attn_mask is not None:
        return SDPBackend.ERROR
    half = query.dtype in (torch.float16, torch.bfloat16)
    return SDPBackend.FLASH_ATTENTION if half and query.shape[-1] <= 256 else SDPBackend.EFFICIENT_ATTENTION


def _flops(query: torch.Tensor, value: torch.Tensor, ends: Any, longest: Any) -> int | None:
    """Two products over every score; None: not of sequences in a row."""
    if ends[0] is None or ends[1] is None:
        return None
    scores, _ = packed_scores(query, ends[0], ends[1], longest[0], longest[1], False, (-1, -1))
    return 2 * scores * (query.shape[-1] + value.shape[-1])


def _cost(flops: int | None, operator: str, *args: Any) -> KernelCost:
    """Of ``operator``, whose own formula counts where sequences are padded."""
    if flops is None:
        from torch.utils.flop_counter import flop_registry

        shapes = flop_registry[getattr(torch.ops.aten, operator)]
        flops = int(shapes(*args))
    return KernelCost(flops)


@register_cost("aten::_flash_attention_forward")
def _flash(query: Any, key: Any, value: Any, *args: Any, **_: Any) -> KernelCost:
    found = _flops(query, value, args[:2], args[2:4])
    return _cost(found, "_flash_attention_forward", query, key, value, *args)


@register_cost("aten::_flash_attention_backward")
def _flash_back(
    grad: Any, query: Any, key: Any, value: Any, out: Any, sums: Any, *args: Any, **_: Any
) -> KernelCost:
    found = _flops(query, value, args[:2], args[2:4])
    given = (grad, query, key, value, out, sums, *args)
    return _cost(None if found is None else found * 5 // 2, "_flash_attention_backward", *given)


@register_cost("aten::_efficient_attention_forward")
def _efficient(query: Any, key: Any, value: Any, bias: Any, *args: Any, **_: Any) -> KernelCost:
    found = _flops(query[0], value, args[:2], args[2:4])
    return _cost(found, "_efficient_attention_forward", query, key, value, bias, *args)


@register_cost("aten::_efficient_attention_backward")
def _efficient_back(
    grad: Any, query: Any, key: Any, value: Any, bias: Any, out: Any, *args: Any, **_: Any
) -> KernelCost:
    found = _flops(query[0], value, args[:2], args[2:4])
    given = (grad, query, key, value, bias, out, *args)
    return _cost(None if found is None else found * 5 // 2, "_efficient_attention_backward", *given)
