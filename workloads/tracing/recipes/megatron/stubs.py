"""Stand-ins for the CUDA extensions that Megatron-core looks for: same signatures, same kernels' worth of
work.

Megatron's own fallbacks without apex either refuse sequence parallelism (layer norm) or read device
values on the host (gradient norm), so that they are not what runs on a GPU.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import torch


class FusedLayerNormAffineFunction:
    """``apex.normalization.fused_layer_norm.FusedLayerNormAffineFunction``."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Any,
        weight: Any,
        bias: Any,
        normalized_shape: Any,
        eps: float,
        memory_efficient: bool = False,
    ) -> None:
        """Megatron reads the parameter list of this function, nothing calls it."""

    @staticmethod
    def apply(x: Any, weight: Any, bias: Any, shape: Any, eps: float, *_: object) -> Any:
        """Layer norm with weight and bias."""
        return torch.nn.functional.layer_norm(x, shape, weight, bias, eps)


class FusedRMSNormAffineFunction:
    """``apex.normalization.fused_layer_norm.FusedRMSNormAffineFunction``."""

    @staticmethod
    def apply(x: Any, weight: Any, shape: Any, eps: float, *_: object) -> Any:
        """RMS norm with weight."""
        return torch.nn.functional.rms_norm(x, shape, weight, eps)


def multi_tensor_l2norm(_chunk: int, _noop: Any, lists: Any, per_tensor: bool = False) -> tuple[Any, Any]:
    """``amp_C.multi_tensor_l2norm``: one norm over all tensors, and one each when ``per_tensor``."""
    norms = torch.stack(torch._foreach_norm(lists[0]))
    return torch.linalg.vector_norm(norms).reshape(1), norms if per_tensor else None


def multi_tensor_scale(_chunk: int, _noop: Any, lists: Any, scale: Any) -> None:
    """``amp_C.multi_tensor_scale``: ``lists[1] = lists[0] * scale``."""
    source, target = lists[0], lists[1]
    if all(left is right for left, right in zip(source, target, strict=True)):
        torch._foreach_mul_(source, scale)
    else:
        torch._foreach_copy_(target, source)


def multi_tensor_applier(operation: Any, noop: Any, lists: Any, *args: Any) -> Any:
    """``apex.multi_tensor_apply.multi_tensor_applier``."""
    return operation(2048 * 32, noop, lists, *args)


class FusedAdam(torch.optim.AdamW):
    """``apex.optimizers.FusedAdam``: one multi-tensor kernel per step, as torch's fused AdamW."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **_: Any,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)


def install() -> None:
    """Ready this process for Megatron: stand-ins first, which it looks for when it is imported."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # as Megatron asks for with tensor parallelism
    norm = {
        "FusedLayerNormAffineFunction": FusedLayerNormAffineFunction,
        "FusedRMSNormAffineFunction": FusedRMSNormAffineFunction,
    }
    apex = _module("apex", is_package=True)
    apex.normalization = _module("apex.normalization", is_package=True)
    apex.normalization.fused_layer_norm = _module("apex.normalization.fused_layer_norm", norm)
    apex.multi_tensor_apply = _module(
        "apex.multi_tensor_apply", {"multi_tensor_applier": multi_tensor_applier}
    )
    apex.optimizers = _module("apex.optimizers", {"FusedAdam": FusedAdam, "FusedSGD": torch.optim.SGD})
    _module("amp_C", {"multi_tensor_l2norm": multi_tensor_l2norm, "multi_tensor_scale": multi_tensor_scale})
    from workloads.tracing.recipes.megatron import gpt, hooks  # noqa: F401  (once for all ranks)

    hooks.install()


def _module(name: str, members: dict[str, Any] | None = None, *, is_package: bool = False) -> Any:
    module = types.ModuleType(name)
    if is_package:
        module.__path__ = []
    for key, value in (members or {}).items():
        setattr(module, key, value)
    sys.modules[name] = module
    return module
