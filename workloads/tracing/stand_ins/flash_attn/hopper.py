"""flash-attn 3, whose functions have no dropout and take their scale first."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from workloads.tracing.stand_ins.flash_attn import attention, decode

_EVERYWHERE = (-1, -1)


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    *_: Any,
    window_size: tuple[int, int] = _EVERYWHERE,
    return_attn_probs: bool = False,
    **__: Any,
) -> Any:
    """``flash_attn_interface.flash_attn_func``: (batch, length, heads, width)."""
    return _two(
        attention.flash_attn_func(
            q, k, v, 0.0, softmax_scale, causal, window_size, return_attn_probs=return_attn_probs
        )
    )


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    seqused_q: torch.Tensor | None = None,  # noqa: ARG001
    seqused_k: torch.Tensor | None = None,  # noqa: ARG001
    softmax_scale: float | None = None,
    causal: bool = False,
    *_: Any,
    window_size: tuple[int, int] = _EVERYWHERE,
    return_attn_probs: bool = False,
    **__: Any,
) -> Any:
    """``flash_attn_interface.flash_attn_varlen_func``: sequences one behind the other."""
    return _two(
        attention.flash_attn_varlen_func(
            *(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, 0.0, softmax_scale, causal),
            window_size,
            return_attn_probs=return_attn_probs,
        )
    )


def flash_attn_qkvpacked_func(qkv: torch.Tensor, *args: Any, **options: Any) -> Any:
    """``flash_attn_interface.flash_attn_qkvpacked_func``: (batch, length, 3, heads, width)."""
    query, key, value = qkv.unbind(2)
    return flash_attn_func(query, key, value, *args, **options)


def _two(found: Any) -> Any:
    """The result and the logarithms of sums, where both are asked for."""
    return found[:2] if isinstance(found, tuple) else found


FUNCTIONS = {
    "flash_attn_func": flash_attn_func,
    "flash_attn_varlen_func": flash_attn_varlen_func,
    "flash_attn_qkvpacked_func": flash_attn_qkvpacked_func,
    "flash_attn_with_kvcache": decode.flash_attn_with_kvcache,
}


def members(name: str) -> dict[str, Any] | None:
    """What is in module ``name``; None: there is no such module."""
    return dict(FUNCTIONS) if name == "flash_attn_interface" else None


def of_hub(name: str) -> ModuleType:
    """The package that a hub of kernels has under ``name``, a build of flash-attn 2 or 3."""
    made = ModuleType(name)
    third = name.replace("-", "").endswith(("attn3", "attention3"))
    functions = FUNCTIONS if third else {key: getattr(attention, key, FUNCTIONS[key]) for key in FUNCTIONS}
    vars(made).update(functions)
    vars(made)["flash_attn_interface"] = made
    return made
