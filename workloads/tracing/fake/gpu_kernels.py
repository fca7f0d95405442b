"""Kernels that only GPU builds of torch have: what a CPU build runs in pieces is one op here, too."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.optim.optimizer as optimizers
import torch.utils._foreach_utils as foreach
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import pad

from workloads.tracing.fake.storages import touched_bytes
from workloads.tracing.kernels import KernelCost, register_cost

_library: torch.library.Library | None = None


def install() -> None:
    """Choose kernels as a GPU build does, once per process."""
    global _library
    if _library is not None:
        return
    # Optimizers and clipping by norm take lists of tensors at once, if they know the tensors' type.
    for types in (optimizers._foreach_supported_types, foreach._foreach_supported_types):
        types.append(FakeTensor)
    _library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for key in ("AutogradCUDA", "CUDA"):
        _library.impl("scaled_dot_product_attention", _attention, key)  # type: ignore[no-untyped-call]
    # Where CUDA has a kernel, autograd takes the operator as it is and not its composite.
    _library.impl("silu_backward", torch.empty_like, "CUDA")  # type: ignore[no-untyped-call]
    aten, implementations = torch.ops.aten, fake_impls.op_implementations_dict
    if hasattr(aten, "_fused_rms_norm_backward"):  # since torch 2.9
        _library.impl("_fused_rms_norm", _rms_norm, "CUDA")  # type: ignore[no-untyped-call]
        implementations[aten._fused_rms_norm.default] = lambda _mode, _func, *args: _rms_norm(*args)
        implementations[aten._fused_rms_norm_backward.default] = lambda _mode, _func, *args: (
            _rms_norm_backward(*args)
        )
    shapes_of: dict[str, Callable[..., Any]] = {  # batch norm over all ranks; torch has no rules for it
        "batch_norm_stats": lambda input, _eps: _per_channel(input),
        "batch_norm_gather_stats_with_counts": lambda input, *_: _per_channel(input),
        "batch_norm_elemt": lambda input, *_: torch.empty_like(input),
        "batch_norm_backward_reduce": _batch_norm_sums,
        "batch_norm_backward_elemt": lambda _grad, input, *_: torch.empty_like(input),
    }
    for name, shapes in shapes_of.items():
        torch.library.register_fake(f"aten::{name}", shapes)


def _per_channel(like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and inverse deviation, in float32 for inputs of 16 bits."""
    half = like.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if half else like.dtype
    return like.new_empty(like.shape[1], dtype=dtype), like.new_empty(like.shape[1], dtype=dtype)


def _batch_norm_sums(
    _grad: torch.Tensor,
    _input: torch.Tensor,
    mean: torch.Tensor,
    _invstd: torch.Tensor,
    weight: torch.Tensor | None,
    *wanted: bool,
) -> tuple[torch.Tensor | None, ...]:
    """Two sums for the gradient of the input, then the gradients of weight and bias, as far as wanted."""
    of_input, *of_affine = wanted
    like = mean if weight is None else weight
    sums = [torch.empty_like(mean) if of_input else None for _ in range(2)]
    return (*sums, *(torch.empty_like(like) if each else None for each in of_affine))


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """One kernel; which is torch's choice on the GPU that the program sees (Note [Which attention])."""
    backend = _attention_backend(query, key, value, attn_mask)
    if backend == SDPBackend.MATH:
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    if backend == SDPBackend.FLASH_ATTENTION:
        width = query.shape[-1]
        if width % 8:  # torch fills heads up to a multiple of eight
            scale = width**-0.5 if scale is None else scale
            query, key, value = (pad(one, (0, -width % 8)) for one in (query, key, value))
        found = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
        return found[..., :width] if width % 8 else found
    repeated = backend == SDPBackend.EFFICIENT_ATTENTION and enable_gqa
    if repeated and query.shape[-3] != key.shape[-3]:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        bias = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = bias.masked_fill_(attn_mask.logical_not(), float("-inf"))
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    need_gradient = query.requires_grad or key.requires_grad or value.requires_grad
    if backend == SDPBackend.CUDNN_ATTENTION:
        return torch.ops.aten._scaled_dot_product_cudnn_attention(
            query, key, value, attn_mask, need_gradient, dropout_p, is_causal, False, scale=scale
        )[0]
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, need_gradient, dropout_p, is_causal, scale=scale
    )[0]


#: As torch has it before it looks at the GPU.
_USUAL_ORDER = [
    *(SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH),
    *(SDPBackend.CUDNN_ATTENTION, SDPBackend.OVERRIDEABLE),
]


def _attention_backend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None
) -> SDPBackend:
    """Note [Which attention].

    The program's own order (``sdpa_kernel(..., set_priority=True)``), else cuDNN first on a GPU of capability
    9.0 from torch 2.11 on (measured on an H200 there; 2.9 took flash), then flash, memory-efficient, math
    (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).  Those that the program switches off, or that do
    not know its tensors, are passed over: flash has no masks, both no fp32; cuDNN is trained with heads of up
    to 128 and gives a mask no gradient.  Only products know tensors of other than four dimensions, sequences
    that are not as many on both sides, fp64, and heads of which 16 bytes hold no whole part.
    """
    order = [SDPBackend(one) for one in torch._C._get_sdp_priority_order()]
    if order == _USUAL_ORDER and _prefers_cudnn():
        order.insert(0, SDPBackend.CUDNN_ATTENTION)
    half = query.dtype in (torch.float16, torch.bfloat16)
    width = query.shape[-1]  # multi-head latent attention has narrower values
    dense = {one.dim() for one in (query, key, value)} == {4} and query.shape[0] == key.shape[0]
    same = dense and half and width == value.shape[-1]
    aligned = not any(one.shape[-1] * one.element_size() % 16 for one in (query, value))
    learnt = attn_mask is not None and attn_mask.requires_grad
    cuda: Any = torch.backends.cuda
    fits = {
        SDPBackend.CUDNN_ATTENTION: (
            same and aligned and width <= 128 and not learnt and cuda.cudnn_sdp_enabled()
        ),
        SDPBackend.FLASH_ATTENTION: same and width <= 256 and attn_mask is None and cuda.flash_sdp_enabled(),
        SDPBackend.EFFICIENT_ATTENTION: (
            dense and aligned and query.dtype != torch.float64 and cuda.mem_efficient_sdp_enabled()
        ),
        SDPBackend.MATH: cuda.math_sdp_enabled(),
    }
    return next((one for one in order if fits.get(one)), SDPBackend.MATH)


def _prefers_cudnn() -> bool:
    release = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))
    capable = torch.cuda.get_device_capability() in ((9, 0), (10, 0))
    return release >= (2, 11) and capable and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"


def _rms_norm(x: torch.Tensor, normalized_shape: Sequence[int], *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and a number a row in fp32."""
    rows = x.shape[: x.dim() - len(normalized_shape)]
    statistics = x.new_empty((*rows, *[1] * len(normalized_shape)), dtype=torch.float32)
    return torch.empty_like(x, memory_format=torch.contiguous_format), statistics


def _rms_norm_backward(
    _grad: Any, x: torch.Tensor, _shape: Any, _statistics: Any, weight: Any, wanted: Sequence[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of the input and of the weight."""
    return (
        torch.empty_like(x, memory_format=torch.contiguous_format) if wanted[0] else None,
        torch.empty_like(weight) if weight is not None and wanted[1] else None,
    )


@register_cost("fsdp::all_gather_copy_in")
def _copy_in(shards: Sequence[torch.Tensor], *_: Any) -> KernelCost:
    """Each shard to its place in the buffer that is gathered into; the rest of it is not touched."""
    num_bytes = sum(map(touched_bytes, shards))
    return KernelCost(bytes_read=num_bytes, bytes_written=num_bytes)


@register_cost("aten::nll_loss_forward")
def _picked(scores: torch.Tensor, target: torch.Tensor, *_: Any) -> KernelCost:
    """Of each row the target's score."""
    return KernelCost(bytes_read=touched_bytes(target) + target.numel() * scores.element_size())


@register_cost("aten::nll_loss_backward")
def _put_back(grad: torch.Tensor, _scores: Any, target: torch.Tensor, *_: Any) -> KernelCost:
    """Zeros, and the gradient at each target: the scores are not looked at."""
    return KernelCost(bytes_read=touched_bytes(target) + touched_bytes(grad))
