"""Apex, its ``amp_C``, and the extensions that Megatron-LM builds beside it.

Megatron's own fallbacks without them either refuse sequence parallelism (layer norm) or read device values on
the host (gradient norm), so that they are not what runs on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from workloads.tracing import kernels
from workloads.tracing.kernels import KernelCost
from workloads.tracing.stand_ins import apex_amp
from workloads.tracing.stand_ins.apex_optimizers import FusedAdagrad, FusedAdam, FusedLAMB
from workloads.tracing.stand_ins.fused_kernel import ExtensionKernel


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


def _multi_tensor_update(name: str) -> Any:
    """An optimizer's step in one kernel: ``lists`` are gradients, parameters, states and, last, copies of
    parameters in fewer bits, where there are such; all but the first are written.
    """

    def update(_chunk: int, _noop: Any, lists: Any, *_: Any) -> None:
        kept = [one for each in lists[1:] for one in each]
        kernels.launch(name, reads=[*lists[0], *kept], writes=kept)

    return update


#: What apex compiles for its optimizers, and others under the same names with their own extensions.
AMP_C: dict[str, Any] = {
    "multi_tensor_l2norm": multi_tensor_l2norm,
    "multi_tensor_scale": multi_tensor_scale,
    **{
        name: _multi_tensor_update(name)
        for name in ("multi_tensor_adagrad", "multi_tensor_adam", "multi_tensor_lamb", "multi_tensor_sgd")
    },
}


def multi_tensor_applier(operation: Any, noop: Any, lists: Any, *args: Any) -> Any:
    """``apex.multi_tensor_apply.multi_tensor_applier``."""
    return operation(2048 * 32, noop, lists, *args)


class FastLayerNormFN:
    """``apex.contrib.layer_norm.layer_norm.FastLayerNormFN``."""

    @staticmethod
    def apply(x: Any, weight: Any, bias: Any, eps: float, *_: object) -> Any:
        """Layer norm over the width of ``weight``."""
        return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)


def wgrad_gemm_accum(x: Any, grad: Any, main_grad: Any) -> None:
    """``fused_weight_gradient_mlp_cuda``: a weight's gradient, which the product adds to ``main_grad``."""
    kernels.launch(
        "wgrad_gemm_accum",
        reads=[x, grad, main_grad],
        writes=[main_grad],
        cost=KernelCost(flops=2 * x.numel() * grad.shape[-1], op_class="gemm"),
    )


def _softmax(name: str) -> dict[str, Any]:
    """A softmax of scaled (and masked) attention scores and its backward pass, in place as Megatron's."""

    def forward(scores: Any, *_: object) -> Any:
        result = torch.empty_like(scores)
        kernels.launch(f"{name}_forward", reads=[scores], writes=[result])
        return result

    def backward(grad: Any, result: Any, *_: object) -> Any:
        kernels.launch(f"{name}_backward", reads=[grad, result], writes=[grad])
        return grad

    return {"forward": forward, "backward": backward, "get_batch_per_block": _batch_per_block}


def _batch_per_block(_queries: int, keys: int, _batch: int, _heads: int) -> int:
    """Rows of scores in a thread block of 128 threads (warps of 32, two rows a warp up to 128 keys)."""
    padded = 1 << max(0, keys - 1).bit_length()
    warp = min(padded, 32)
    return 128 // warp * (2 if padded <= 128 else 1)


class _Mixed(torch.nn.Module):
    """Results have the weights' type, in one kernel each way."""

    weight: torch.nn.Parameter

    def forward(self, x: torch.Tensor) -> Any:
        """``x`` of any type."""
        if x.dtype == self.weight.dtype:
            return super().forward(x)
        kernel = ExtensionKernel("cuApplyNorm", "cuComputeGradInput", "norm_fwd", "norm_bwd")
        like = torch.empty_like(x, dtype=self.weight.dtype)
        return kernel([x, self.weight, getattr(self, "bias", None)], like)


class MixedFusedLayerNorm(_Mixed, torch.nn.LayerNorm):
    """``apex.normalization.MixedFusedLayerNorm``."""


class MixedFusedRMSNorm(_Mixed, torch.nn.RMSNorm):
    """``apex.normalization.MixedFusedRMSNorm``."""


#: As its modules, which compute in one kernel what torch's do.
_NORMS: dict[str, Any] = {
    "FusedLayerNorm": torch.nn.LayerNorm,
    "FusedRMSNorm": torch.nn.RMSNorm,
    "MixedFusedLayerNorm": MixedFusedLayerNorm,
    "MixedFusedRMSNorm": MixedFusedRMSNorm,
}

_MODULES: dict[str, dict[str, Any]] = {
    "apex": {},
    "apex.amp": apex_amp.MEMBERS,
    "apex.contrib": {},
    "apex.contrib.layer_norm": {},
    "apex.contrib.layer_norm.layer_norm": {"FastLayerNormFN": FastLayerNormFN},
    "apex.multi_tensor_apply": {"multi_tensor_applier": multi_tensor_applier},
    "apex.normalization": _NORMS,
    "apex.normalization.fused_layer_norm": {
        **_NORMS,
        "FusedLayerNormAffineFunction": FusedLayerNormAffineFunction,
        "FusedRMSNormAffineFunction": FusedRMSNormAffineFunction,
    },
    "apex.optimizers": {
        "FusedAdagrad": FusedAdagrad,
        "FusedAdam": FusedAdam,
        "FusedLAMB": FusedLAMB,
        "FusedSGD": torch.optim.SGD,
    },
    "amp_C": AMP_C,
    "fused_weight_gradient_mlp_cuda": {
        "wgrad_gemm_accum_fp16": wgrad_gemm_accum,
        "wgrad_gemm_accum_fp32": wgrad_gemm_accum,
    },
    **{
        name: _softmax(name.removesuffix("_cuda"))
        for name in (
            "scaled_masked_softmax_cuda",
            "scaled_softmax_cuda",
            "scaled_upper_triang_masked_softmax_cuda",
        )
    },
}


def members(name: str) -> dict[str, Any] | None:
    """What is in module ``name``; None: there is no such module."""
    return _MODULES.get(name)


def submodules(name: str) -> tuple[str, ...]:
    """What ``import apex`` brings with it."""
    brought = ("amp", "multi_tensor_apply", "normalization", "optimizers")
    return tuple(f"apex.{one}" for one in brought) if name == "apex" else ()
