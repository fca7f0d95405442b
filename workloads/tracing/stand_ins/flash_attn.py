"""flash-attn: attention (which torch has as an operator of its own), rotary embedding, norms."""

from __future__ import annotations

from typing import Any

import torch

from workloads.tracing.stand_ins.fused_kernel import ExtensionKernel

_VERSION = "2.8.3"


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    *_: object,
    **_options: object,
) -> Any:
    """``flash_attn.flash_attn_func``: (batch, length, heads, width), maybe fewer heads of keys."""
    query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, None, dropout_p, causal, scale=softmax_scale, enable_gqa=True
    ).transpose(1, 2)


def flash_attn_qkvpacked_func(qkv: torch.Tensor, *args: Any, **options: Any) -> Any:
    """``flash_attn.flash_attn_qkvpacked_func``: (batch, length, 3, heads, width)."""
    query, key, value = qkv.unbind(2)
    return flash_attn_func(query, key, value, *args, **options)


def flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *args: Any, **options: Any) -> Any:
    """``flash_attn.flash_attn_kvpacked_func``: keys and values (batch, length, 2, heads, width)."""
    key, value = kv.unbind(2)
    return flash_attn_func(q, key, value, *args, **options)


def apply_rotary_emb(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: Any, **_options: Any) -> Any:
    """``flash_attn.layers.rotary.apply_rotary_emb``: one kernel each way."""
    return ExtensionKernel("rotary_kernel", "rotary_kernel", "elementwise", "elementwise")([x, cos, sin], x)


def layer_norm_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    **_: Any,
) -> Any:
    """``flash_attn.ops.triton.layer_norm.layer_norm_fn``: with ``prenorm`` the sum with ``residual``, too."""
    kernel = ExtensionKernel("layer_norm_fwd_1pass_kernel", "layer_norm_bwd_kernel", "norm_fwd", "norm_bwd")
    total = x.float() if residual_in_fp32 else x
    return kernel([x, weight, bias, residual], *((x, total) if prenorm else (x,)))


def rms_norm_fn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, **options: Any) -> Any:
    """``flash_attn.ops.triton.layer_norm.rms_norm_fn``."""
    return layer_norm_fn(x, weight, bias, **options)


_ATTENTION = {
    "flash_attn_func": flash_attn_func,
    "flash_attn_kvpacked_func": flash_attn_kvpacked_func,
    "flash_attn_qkvpacked_func": flash_attn_qkvpacked_func,
}
_MODULES: dict[str, dict[str, Any]] = {
    "flash_attn": {"__version__": _VERSION, **_ATTENTION},
    "flash_attn.flash_attn_interface": _ATTENTION,
    "flash_attn.layers": {},
    "flash_attn.layers.rotary": {"apply_rotary_emb": apply_rotary_emb},
    "flash_attn.ops": {},
    "flash_attn.ops.triton": {},
    "flash_attn.ops.triton.layer_norm": {"layer_norm_fn": layer_norm_fn, "rms_norm_fn": rms_norm_fn},
}


def members(name: str) -> dict[str, Any] | None:
    """What is in module ``name``; None: there is no such module."""
    return _MODULES.get(name)
