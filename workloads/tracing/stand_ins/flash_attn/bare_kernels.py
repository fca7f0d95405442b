"""``rotary_emb``, ``xentropy_cuda_lib``, ``dropout_layer_norm`` and ``fused_dense_lib``.

They are of flash-attn's repository; programs with functions of autograd of their own call them.
"""

from __future__ import annotations

from typing import Any

import torch

from workloads.tracing import kernels
from workloads.tracing.kernels import KernelCost

_Tensor = torch.Tensor | None


def _launch(name: str, op_class: str, reads: tuple[_Tensor, ...], writes: tuple[_Tensor, ...]) -> None:
    given, made = ([one for one in some if one is not None] for some in (reads, writes))
    kernels.launch(name, reads=given, writes=made, cost=KernelCost(op_class=op_class))


def _apply_rotary(
    x1: torch.Tensor,
    x2: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    out1: torch.Tensor,
    out2: torch.Tensor,
    _conj: bool,
) -> None:
    """Both halves turned into ``out1`` and ``out2``."""
    _launch("apply_rotary_kernel", "elementwise", (x1, x2, cos, sin), (out1, out2))


def _losses(logits: torch.Tensor, labels: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and logarithm of the sum of each row (rows, classes), in fp32."""
    losses, lse = (logits.new_empty(logits.shape[0], dtype=torch.float32) for _ in range(2))
    _launch("cunn_SoftMaxXEntropyForward", "reduction", (logits, labels), (losses, lse))
    return losses, lse


def _logits_gradient(
    grad: torch.Tensor,
    logits: torch.Tensor,
    lse: torch.Tensor,
    labels: torch.Tensor,
    _smoothing: float,
    inplace: bool,
    *_: Any,
) -> torch.Tensor:
    """In the memory of ``logits`` where asked to."""
    made = logits if inplace else torch.empty_like(logits)
    _launch("cunn_SoftMaxXEntropyBackward", "elementwise", (grad, logits, lse, labels), (made,))
    return made


def _norm(
    x0: torch.Tensor,
    residual: _Tensor,
    gamma: torch.Tensor,
    beta: _Tensor,
    rowscale: _Tensor,
    colscale: _Tensor,
    _x0_subset: Any,
    _z_subset: Any,
    dropout_p: float,
    _epsilon: float,
    _rowscale_const: float,
    _rows: int,
    _generator: Any,
    residual_in_fp32: bool = False,
    _is_rms_norm: bool = False,
) -> tuple[_Tensor, ...]:
    """The norm, the sum it is of (None: ``x0`` itself), the mask of dropout, mean and inverse deviation."""
    dtype = torch.float32 if residual_in_fp32 else x0.dtype
    dtype = residual.dtype if residual is not None else dtype
    summed = residual is not None or dropout_p > 0 or dtype != x0.dtype or colscale is not None
    made = torch.empty_like(x0)
    total = torch.empty_like(x0, dtype=dtype) if summed else None
    mask = torch.empty_like(x0, dtype=torch.uint8) if dropout_p > 0 else None
    mean, deviation = (x0.new_empty(x0.shape[0], dtype=torch.float32) for _ in range(2))
    reads = (x0, residual, gamma, beta, rowscale, colscale)
    _launch("ln_fwd_kernel", "norm_fwd", reads, (made, total, mask, mean, deviation))
    return made, total, mask, mean, deviation


def _norm_gradients(
    dz: torch.Tensor,
    dx: _Tensor,
    x: torch.Tensor,
    x0: _Tensor,
    mask: _Tensor,
    mean: torch.Tensor,
    deviation: torch.Tensor,
    gamma: torch.Tensor,
    rowscale: _Tensor,
    colscale: _Tensor,
    _x0_subset: Any,
    _z_subset: Any,
    _dropout_p: float,
    _rowscale_const: float,
    _rows: int,
    has_residual: bool,
    _is_rms_norm: bool = False,
) -> tuple[_Tensor, ...]:
    """Of ``x0``, of the residual (None: there was none), of ``gamma`` and ``beta``, and of ``colscale``."""
    of_input = torch.empty_like(dz)
    of_residual = torch.empty_like(x) if has_residual else None
    of_weights = [torch.empty_like(gamma) for _ in range(2 if colscale is None else 3)]
    reads = (dz, dx, x, x0, mask, mean, deviation, gamma, rowscale, colscale)
    _launch("ln_bwd_kernel", "norm_bwd", reads, (of_input, of_residual, *of_weights))
    return of_input, of_residual, *of_weights[:2], None, None, *of_weights[2:]


def _weight_gradient(
    x: torch.Tensor, dy: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Of a weight, by one product, which adds up the bias's as it goes."""
    return dy.t() @ x, dy.new_empty(dy.shape[-1]) if has_bias else None


_MODULES: dict[str, dict[str, Any]] = {
    "rotary_emb": {"apply_rotary": _apply_rotary},
    "xentropy_cuda_lib": {"forward": _losses, "backward": _logits_gradient},
    "fused_dense_lib": {"linear_bias_wgrad": _weight_gradient},
    "dropout_layer_norm": {"dropout_add_ln_fwd": _norm, "dropout_add_ln_bwd": _norm_gradients},
}


def members(name: str) -> dict[str, Any] | None:
    """What is in module ``name``; None: there is no such module."""
    return _MODULES.get(name)
