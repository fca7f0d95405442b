"""Attention of Transformer Engine, and what its users call around it: rotary embedding, splits of a tensor.

Kernels are cuDNN's, which it prefers on Hopper, or those of flash-attn where ``NVTE_FUSED_ATTN=0``.  Without
a causal mask their names say "full".  The mask itself is not read: padding is computed like tokens.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from workloads.tracing import kernels
from workloads.tracing.kernels import KernelCost
from workloads.tracing.stand_ins.fused_kernel import ExtensionKernel, laid_like
from workloads.tracing.stand_ins.refusal import NotStoodInError
from workloads.tracing.stand_ins.ring_attention import ring_attention
from workloads.tracing.stand_ins.transformer_engine.quantisation import attends_in_fp8

#: Where the sequence, batch and heads stand in a tensor of four dimensions.
_TO_HEADS_FIRST = {"sbhd": (1, 2, 0, 3), "bshd": (0, 2, 1, 3)}
_FROM_HEADS_FIRST = {"sbhd": (2, 0, 1, 3), "bshd": (0, 2, 1, 3)}


class DotProductAttention(torch.nn.Module):
    """``transformer_engine.pytorch.DotProductAttention``."""

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        cp_group: Any = None,
        cp_global_ranks: Any = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_type: str = "vanilla",
        return_max_logit: bool = False,
        **_: Any,
    ) -> None:
        super().__init__()
        if softmax_type != "vanilla" or return_max_logit:
            raise NotStoodInError("attention with other softmaxes, or that returns its largest score")
        self.num_attention_heads, self.kv_channels = num_attention_heads, kv_channels
        self.num_gqa_groups = num_gqa_groups or num_attention_heads
        self.attention_dropout = attention_dropout
        self.qkv_format, self.attn_mask_type, self.window_size = qkv_format, attn_mask_type, window_size
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: Any, cp_stream: Any, cp_comm_type: str = "p2p"
    ) -> None:
        """Share the sequence among the ranks of ``cp_group``."""
        if cp_group is not None and cp_comm_type != "p2p":
            raise NotStoodInError(f"context parallelism by {cp_comm_type!r}, only by 'p2p'")
        self.cp_group, self.cp_stream, self.cp_comm_type = cp_group, cp_stream, cp_comm_type
        self.cp_global_ranks = cp_global_ranks

    def forward(
        self,
        query_layer: torch.Tensor,
        key_layer: torch.Tensor,
        value_layer: torch.Tensor,
        attention_mask: Any = None,  # noqa: ARG002
        qkv_format: str | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        core_attention_bias: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Heads and width in one dimension, otherwise as the queries."""
        layout = qkv_format or self.qkv_format
        window = window_size or self.window_size
        causal = "causal" in (attn_mask_type or self.attn_mask_type)
        if layout not in _TO_HEADS_FIRST:
            raise NotStoodInError(f"attention in layout {layout!r}, only in 'sbhd' and 'bshd'")
        if core_attention_bias is not None:
            raise NotStoodInError("attention with a bias")
        sequence = key_layer.shape[layout.index("s")]
        if window is not None and 0 <= window[0] < sequence - 1:
            raise NotStoodInError("attention in a sliding window")
        narrow = attends_in_fp8()
        query_layer, key_layer, value_layer = _laid_out(query_layer, key_layer, value_layer)
        if self.cp_group is not None and torch.distributed.get_world_size(self.cp_group) > 1:
            if not causal or layout != "sbhd":
                raise NotStoodInError("context parallelism of attention that is not causal or not 'sbhd'")
            if narrow:
                raise NotStoodInError("context parallelism of attention in fp8")
            return ring_attention(query_layer, key_layer, value_layer, self.cp_group, self.cp_stream).flatten(
                2
            )
        order = _TO_HEADS_FIRST[layout]
        heads = [one.permute(order) for one in (query_layer, key_layer, value_layer)]
        found: torch.Tensor = _Attention.apply(*heads, causal, narrow)  # type: ignore[no-untyped-call]
        return found.permute(_FROM_HEADS_FIRST[layout]).flatten(2)


def _laid_out(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As kernels take them (``get_qkv_layout`` of dot_product_attention/utils.py).

    Parts of one tensor, side by side in a head or heads of one beside heads of the next, or three that begin
    where their storages do, keys and values with equal strides.  All others are copied, such as values beside
    keys that were rotated.
    """
    parts = query, key, value
    storages = [part.untyped_storage()._cdata for part in parts]
    packed, pair = len(set(storages)) == 1, storages[1] == storages[2]
    begins = [part.storage_offset() for part in parts]
    strides = [[step / part.shape[-1] for step in part.stride()[:-1]] for part in parts]
    alike = packed and query.shape == key.shape == value.shape and query.stride() == key.stride()
    even = strides[1] == strides[2] and key.shape[:-1] == value.shape[:-1]
    steps = key.shape[-1], key.shape[-1] * key.shape[-2]
    first = query.numel() if packed else 0
    in_a_row = [0, query.numel(), query.numel() + key.numel()] if packed else [0, 0, 0]
    known = (
        (alike and even and any(begins == [0, step, 2 * step] for step in steps))
        or (pair and even and any(begins[1:] == [first, first + step] for step in steps))
        or (even and begins == in_a_row)
    )
    return parts if known else tuple(part.contiguous() for part in parts)


class _Attention(torch.autograd.Function):
    """Queries, keys and values are (batch, heads, sequence, width), maybe with fewer heads of keys.

    ``narrow``: they, and the gradient of the result, are cast to fp8 for the products, each way by one kernel
    (attention_core.attend of ``workloads.models``).
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, narrow: bool
    ) -> torch.Tensor:
        batch, heads, queries, width = query.shape
        found = laid_like(query, value.shape[-1])
        sums = query.new_empty(batch, heads, queries, dtype=torch.float32)
        flops = 2 * batch * heads * queries * key.shape[2] * (width + value.shape[-1])
        ctx.kernel, ctx.narrow = _kernel(causal), narrow
        query, key, value = _cast([query, key, value]) if narrow else (query, key, value)
        _launch(ctx.kernel, "fwd", [query, key, value], [found, sums], flops)
        ctx.flops = flops
        ctx.save_for_backward(query, key, value, found, sums)
        ctx.dtype = found.dtype
        return found

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        inputs = ctx.saved_tensors[:3]
        if ctx.narrow:
            (grad,) = _cast([grad])
            made = [torch.empty_like(one, dtype=ctx.dtype) for one in inputs]
        else:
            made = _gradients(inputs)
        _launch(ctx.kernel, "bwd", [grad, *ctx.saved_tensors], made, ctx.flops * 5 // 2)
        return (*made, None, None)


def _cast(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """In fp8, by one kernel."""
    narrow = [torch.empty_like(one, dtype=torch.float8_e4m3fn) for one in tensors]
    kernels.launch("cast_fp8", reads=tensors, writes=narrow, cost=KernelCost(op_class="elementwise"))
    return narrow


def _kernel(causal: bool) -> str:
    flash = os.environ.get("NVTE_FUSED_ATTN") == "0"
    return f"{'flash' if flash else 'cudnn'}_attention{'' if causal else '_full'}"


def _launch(kernel: str, way: str, reads: list[torch.Tensor], writes: list[torch.Tensor], flops: int) -> None:
    """Backward computes the scores again: 5 products for forward's 2 (arXiv 2205.14135)."""
    cost = KernelCost(flops, op_class=f"attention_{way}")
    kernels.launch(f"{kernel}_{way}", reads=reads, writes=writes, cost=cost)


def _gradients(inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Of queries, keys and values; parts of one tensor get theirs in one, which need not be joined."""
    first = inputs[0].untyped_storage()
    shared = all(one.untyped_storage()._cdata == first._cdata for one in inputs)
    if not shared or sum(one.numel() for one in inputs) * inputs[0].element_size() != first.nbytes():
        return [laid_like(one, one.shape[-1]) for one in inputs]
    whole = inputs[0].new_empty(first.nbytes() // inputs[0].element_size())
    return [whole.as_strided(one.shape, one.stride(), one.storage_offset()) for one in inputs]


class _SplitAlongDim(torch.autograd.Function):
    """``transformer_engine.pytorch.attention._SplitAlongDim``: views, whose gradients may be views, too."""

    @staticmethod
    def forward(ctx: Any, mixed: torch.Tensor, split_dim: int, sizes: Any, squeeze: bool = False) -> Any:
        ctx.dim, ctx.squeeze = split_dim, squeeze
        ctx.shape, ctx.stride = mixed.shape, mixed.stride()
        parts = torch.split(mixed, sizes, dim=split_dim)
        return tuple(part.squeeze(split_dim) for part in parts) if squeeze else parts

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        parts = [grad.unsqueeze(ctx.dim) if ctx.squeeze else grad for grad in grads]
        storage = parts[0].untyped_storage()
        size = sum(part.numel() for part in parts) * parts[0].element_size()
        if (
            all(part.untyped_storage()._cdata == storage._cdata for part in parts)
            and storage.nbytes() == size
            and [part.stride() for part in parts] == [ctx.stride] * len(parts)
        ):
            return parts[0].as_strided(ctx.shape, ctx.stride, 0), None, None, None
        return torch.cat(parts, dim=ctx.dim), None, None, None


def apply_rotary_pos_emb(t: torch.Tensor, freqs: torch.Tensor, *_: Any, **__: Any) -> Any:
    """``transformer_engine.pytorch.attention.rope.apply_rotary_pos_emb``: one kernel each way."""
    return _elementwise("fused_rope")([t, freqs], t)


def apply_fused_qkv_rotary_pos_emb(
    qkv: torch.Tensor,
    q_freqs: torch.Tensor,
    k_freqs: torch.Tensor,
    qkv_split_arg_list: list[int],
    *_: Any,
    **__: Any,
) -> Any:
    """``transformer_engine.pytorch.attention.rope.apply_fused_qkv_rotary_pos_emb``: splits, too."""
    width = qkv_split_arg_list[1]
    parts = [
        qkv.new_empty(*qkv.shape[:2], qkv.shape[2] * size // width, width) for size in qkv_split_arg_list
    ]
    return _elementwise("fused_qkv_rope")([qkv, q_freqs, k_freqs], *parts)


def _elementwise(name: str) -> ExtensionKernel:
    """What is rotated is not kept, but the angles (``FusedRoPEFunc`` of rope.py)."""
    return ExtensionKernel(
        f"{name}_forward_kernel", f"{name}_backward_kernel", "elementwise", "elementwise", forgets=1
    )
