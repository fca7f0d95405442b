"""flash-attn's attention of a few new tokens to a cache of keys and values."""

from __future__ import annotations

from typing import Any

import torch

from workloads.tracing import kernels
from workloads.tracing.fake.known_values import values_of
from workloads.tracing.kernels import KernelCost


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,  # noqa: ARG001
    rotary_sin: torch.Tensor | None = None,  # noqa: ARG001
    cache_seqlens: Any = None,
    *_: Any,
    block_table: torch.Tensor | None = None,
    return_softmax_lse: bool = False,
    **__: Any,
) -> Any:
    """``q`` (batch, new, heads, width) to what the cache holds (all, where its lengths are not known) and to
    ``k`` and ``v``, which are put behind that.
    """
    batch, new, heads, width = q.shape
    room = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    held = batch * room
    if isinstance(cache_seqlens, int):
        held = batch * cache_seqlens
    elif cache_seqlens is not None and (known := values_of(cache_seqlens)) is not None:
        with torch._C._DisableTorchDispatch():
            held = int(known.sum())
    keys = held + (0 if k is None else batch * k.shape[1])
    added = [one for one in (k, v) if one is not None]
    read = 2 * keys * k_cache.shape[-2] * width * k_cache.element_size() + q.nbytes
    made = torch.empty_like(q)
    cost = KernelCost(
        4 * new * keys * heads * width,
        read,
        made.nbytes + sum(one.nbytes for one in added),
        op_class="attention_fwd",
    )
    reads = [q, k_cache, v_cache, *added]
    kernels.launch("flash_fwd_splitkv_full", reads=reads, writes=[made], cost=cost)
    sums = q.new_empty(batch, heads, new, dtype=torch.float32)
    return (made, sums) if return_softmax_lse else made
