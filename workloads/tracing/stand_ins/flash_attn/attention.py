"""flash-attn's attention: padded, over packed sequences, in a window, and the two kernels without a graph.

Work is counted as elsewhere: every score of a causal kernel, since its price deducts those that are skipped.
A window's scores are counted one by one, and its kernels are named for what they are: all that is counted is
computed.
"""

from __future__ import annotations

from typing import Any

import torch

from workloads.tracing import kernels
from workloads.tracing.fake import host_values
from workloads.tracing.fake.known_values import values_of
from workloads.tracing.kernels import KernelCost

_EVERYWHERE = (-1, -1)


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _EVERYWHERE,
    softcap: float = 0.0,  # noqa: ARG001
    alibi_slopes: torch.Tensor | None = None,  # noqa: ARG001
    deterministic: bool = False,  # noqa: ARG001
    return_attn_probs: bool = False,
) -> Any:
    """``flash_attn.flash_attn_func``: (batch, length, heads, width), maybe fewer heads of keys."""
    scores, windowed = _padded_scores(q, k, causal, window_size)
    if not windowed and not return_attn_probs:
        query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, None, dropout_p, causal, scale=softmax_scale, enable_gqa=True
        ).transpose(1, 2)
    return _attend(q, k, v, _kernel(causal, windowed), scores, return_attn_probs)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float = 0.0,  # noqa: ARG001
    softmax_scale: float | None = None,  # noqa: ARG001
    causal: bool = False,
    window_size: tuple[int, int] = _EVERYWHERE,
    softcap: float = 0.0,  # noqa: ARG001
    alibi_slopes: torch.Tensor | None = None,  # noqa: ARG001
    deterministic: bool = False,  # noqa: ARG001
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,  # noqa: ARG001
) -> Any:
    """``flash_attn.flash_attn_varlen_func``: sequences one behind the other, (tokens, heads, width)."""
    scores, windowed = packed_scores(
        q, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, window_size
    )
    return _attend(q, k, v, _kernel(causal, windowed), scores, return_attn_probs)


def flash_attn_qkvpacked_func(qkv: torch.Tensor, *args: Any, **options: Any) -> Any:
    """``flash_attn.flash_attn_qkvpacked_func``: (batch, length, 3, heads, width)."""
    query, key, value = qkv.unbind(2)
    return flash_attn_func(query, key, value, *args, **options)


def flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *args: Any, **options: Any) -> Any:
    """``flash_attn.flash_attn_kvpacked_func``: keys and values (batch, length, 2, heads, width)."""
    key, value = kv.unbind(2)
    return flash_attn_func(q, key, value, *args, **options)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: Any, *args: Any, **options: Any
) -> Any:
    """``flash_attn.flash_attn_varlen_qkvpacked_func``: (tokens, 3, heads, width)."""
    query, key, value = qkv.unbind(1)
    return flash_attn_varlen_func(
        query, key, value, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **options
    )


def flash_attn_varlen_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *args: Any, **options: Any) -> Any:
    """``flash_attn.flash_attn_varlen_kvpacked_func``: keys and values (tokens, 2, heads, width)."""
    key, value = kv.unbind(1)
    return flash_attn_varlen_func(q, key, value, *args, **options)


def _flash_attn_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float,  # noqa: ARG001
    softmax_scale: float,  # noqa: ARG001
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,  # noqa: ARG001
    alibi_slopes: torch.Tensor | None = None,  # noqa: ARG001
    return_softmax: bool = False,  # noqa: ARG001
) -> Any:
    """The kernel alone, for rings of attention: result, logarithms of sums, two that are empty."""
    scores, windowed = _padded_scores(q, k, causal, (window_size_left, window_size_right))
    return (*_forward(q, k, v, _kernel(causal, windowed), scores), *_nothing(q))


def _flash_attn_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    dq: torch.Tensor | None,
    dk: torch.Tensor | None,
    dv: torch.Tensor | None,
    dropout_p: float,  # noqa: ARG001
    softmax_scale: float,  # noqa: ARG001
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,  # noqa: ARG001
    alibi_slopes: torch.Tensor | None = None,  # noqa: ARG001
    deterministic: bool = False,  # noqa: ARG001
    rng_state: torch.Tensor | None = None,  # noqa: ARG001
) -> torch.Tensor:
    """Writes gradients to ``dq``, ``dk`` and ``dv``; gives sums over rows."""
    scores, windowed = _padded_scores(q, k, causal, (window_size_left, window_size_right))
    kernel = _kernel(causal, windowed)
    return _backward(dout, (q, k, v, out, softmax_lse), (dq, dk, dv), kernel, scores)


def _flash_attn_varlen_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float,  # noqa: ARG001
    softmax_scale: float,  # noqa: ARG001
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,  # noqa: ARG001
    alibi_slopes: torch.Tensor | None = None,  # noqa: ARG001
    return_softmax: bool = False,  # noqa: ARG001
    block_table: torch.Tensor | None = None,  # noqa: ARG001
    leftpad_k: torch.Tensor | None = None,  # noqa: ARG001
    seqused_k: torch.Tensor | None = None,  # noqa: ARG001
    zero_tensors: bool = False,  # noqa: ARG001
) -> Any:
    """As :func:`_flash_attn_forward`, over packed sequences."""
    window = (window_size_left, window_size_right)
    scores, windowed = packed_scores(
        q, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, window
    )
    return (*_forward(q, k, v, _kernel(causal, windowed), scores), *_nothing(q))


def _flash_attn_varlen_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    dq: torch.Tensor | None,
    dk: torch.Tensor | None,
    dv: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float,  # noqa: ARG001
    softmax_scale: float,  # noqa: ARG001
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,  # noqa: ARG001
    alibi_slopes: torch.Tensor | None = None,  # noqa: ARG001
    deterministic: bool = False,  # noqa: ARG001
    rng_state: torch.Tensor | None = None,  # noqa: ARG001
    zero_tensors: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """As :func:`_flash_attn_backward`, over packed sequences."""
    window = (window_size_left, window_size_right)
    scores, windowed = packed_scores(
        q, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, window
    )
    kernel = _kernel(causal, windowed)
    return _backward(dout, (q, k, v, out, softmax_lse), (dq, dk, dv), kernel, scores)


def _in_window(queries: int, keys: int, causal: bool, window: tuple[int, int]) -> int | None:
    """Scores that a head computes of one sequence in a window; None: all, or all of a causal kernel.

    Query i stands at key i + keys - queries, and sees ``window[0]`` keys before it and ``window[1]`` behind
    it, -1: all; none behind it where ``causal``.
    """
    before, behind = (keys if end < 0 else end for end in window)
    if before >= keys - 1 and (causal or behind >= keys - 1):
        return None
    place = torch.arange(queries, device="cpu") + keys - queries
    first = (place - before).clamp(min=0)
    last = (place + (0 if causal else behind)).clamp(max=keys - 1)
    return int((last - first + 1).clamp(min=0).sum())


def _padded_scores(
    q: torch.Tensor, k: torch.Tensor, causal: bool, window: tuple[int, int]
) -> tuple[int, bool]:
    """Scores of all heads of a batch, and whether a window leaves out some."""
    seen = _in_window(q.shape[1], k.shape[1], causal, window)
    each = q.shape[1] * k.shape[1] if seen is None else seen
    return q.shape[0] * q.shape[2] * each, seen is not None


def packed_scores(
    q: torch.Tensor,
    ends_q: torch.Tensor,
    ends_k: torch.Tensor,
    longest_q: Any,
    longest_k: Any,
    causal: bool,
    window: tuple[int, int],
) -> tuple[int, bool]:
    """Scores of all heads, and whether a window leaves out some.

    ``ends_q`` and ``ends_k`` hold 0 and where each sequence ends.  Where they are not known every sequence is
    taken to be as long as the longest.
    """
    tokens, heads, _ = q.shape
    known = [values_of(ends) for ends in (ends_q, ends_k)]
    if any(ends is None for ends in known):
        share = 1.0 if host_values.ask is None else float(host_values.ask("share", ends_q, 1.0))
        lengths = [(int(longest_q), int(longest_k), tokens / max(1, int(longest_q)) * share)]
    else:
        with torch._C._DisableTorchDispatch():
            of_q, of_k = (ends.diff().tolist() for ends in known if ends is not None)
        lengths = [(queries, keys, 1.0) for queries, keys in zip(of_q, of_k, strict=True)]
    seen = [_in_window(queries, keys, causal, window) for queries, keys, _ in lengths]
    scores = sum(
        (queries * keys if some is None else some) * times
        for (queries, keys, times), some in zip(lengths, seen, strict=True)
    )
    return heads * round(scores), any(some is not None for some in seen)


def _kernel(causal: bool, windowed: bool) -> str:
    """Part of a kernel's name: a price takes kernels for causal ones where queries and keys are as many."""
    return "window" if windowed else "causal" if causal else "full"


def _nothing(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores that are not kept, and the state of the generator."""
    return q.new_empty(0), torch.empty(2, dtype=torch.int64, device=q.device)


def _laid(tensor: torch.Tensor) -> torch.Tensor:
    """As operators of torch are given it: (batch, heads, length, width); packed ones as they are."""
    return tensor.transpose(1, 2) if tensor.dim() == 4 else tensor


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kernel: str, scores: int
) -> tuple[torch.Tensor, torch.Tensor]:
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    rows = (q.shape[0], q.shape[2], q.shape[1]) if q.dim() == 4 else (q.shape[1], q.shape[0])
    sums = q.new_empty(rows, dtype=torch.float32)
    cost = KernelCost(2 * scores * (q.shape[-1] + v.shape[-1]), op_class="attention_fwd")
    kernels.launch(f"flash_fwd_{kernel}", reads=[_laid(q), _laid(k), _laid(v)], writes=[out, sums], cost=cost)
    return out, sums


def _backward(
    grad: torch.Tensor,
    saved: tuple[torch.Tensor, ...],
    made: tuple[torch.Tensor | None, ...],
    kernel: str,
    scores: int,
) -> torch.Tensor:
    q, _, v, out, sums = saved
    delta = torch.empty_like(sums)
    cost = KernelCost(op_class="reduction")
    kernels.launch("flash_bwd_dot_do_o_kernel", reads=[grad, out], writes=[delta], cost=cost)
    # Scores again, and the gradients of four tensors: 5 products for forward's 2 (arXiv 2205.14135).
    flops = 5 * scores * (q.shape[-1] + v.shape[-1])
    kernels.launch(
        f"flash_bwd_{kernel}",
        reads=[*(_laid(one) for one in (grad, *saved[:4])), sums, delta],
        writes=[one for one in made if one is not None],
        cost=KernelCost(flops, op_class="attention_bwd"),
    )
    return delta


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kernel: str, scores: int, all_results: bool
) -> Any:
    """The result, and with ``all_results`` the logarithms of sums and an empty tensor."""
    found, sums = _FlashAttention.apply(q, k, v, kernel, scores)  # type: ignore[no-untyped-call]
    return (found, sums, None) if all_results else found


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kernel: str, scores: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found, sums = _forward(q, k, v, kernel, scores)
        ctx.save_for_backward(q, k, v, found, sums)
        ctx.kernel, ctx.scores = kernel, scores
        ctx.mark_non_differentiable(sums)
        return found, sums

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _sums: Any) -> Any:
        saved = ctx.saved_tensors
        made = tuple(torch.empty_like(one) for one in saved[:3])
        _backward(grad, saved, made, ctx.kernel, ctx.scores)
        return (*made, None, None)
