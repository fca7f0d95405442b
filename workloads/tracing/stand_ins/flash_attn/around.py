"""What flash-attn has beside attention: rotary embedding, norms, losses, moves of tokens out of padding."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from workloads.tracing.stand_ins.fused_kernel import ExtensionKernel
from workloads.tracing.stand_ins.refusal import NotStoodInError


def apply_rotary_emb(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: Any, **_options: Any) -> Any:
    """``flash_attn.layers.rotary.apply_rotary_emb``: one kernel each way."""
    kernel = ExtensionKernel("rotary_kernel", "rotary_kernel", "elementwise", "elementwise", forgets=1)
    return kernel([x, cos, sin], x)


class RotaryEmbedding(torch.nn.Module):
    """``flash_attn.layers.rotary.RotaryEmbedding``: tables of cosines and sines, made once for a length."""

    inv_freq: torch.Tensor

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        pos_idx_in_fp32: bool = True,
        device: Any = None,
    ) -> None:
        super().__init__()
        if scale_base is not None:
            raise NotStoodInError("rotary scale_base", "flash-attn")
        self.dim, self.base, self.interleaved = dim, base, interleaved
        self.pos_idx_in_fp32 = pos_idx_in_fp32
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        self.scale_base, self.scale = None, None
        self._seq_len_cached = 0
        self._cos_cached: Any = None
        self._sin_cached: Any = None
        self._cos_k_cached: Any = None
        self._sin_k_cached: Any = None

    def _compute_inv_freq(self, device: Any = None) -> torch.Tensor:
        places = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32)
        return 1.0 / (self.base ** (places / self.dim))

    def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: Any = None) -> None:
        cached = self._cos_cached
        if seqlen <= self._seq_len_cached and cached.device == device and cached.dtype == dtype:
            return
        self._seq_len_cached = seqlen
        angles = torch.outer(torch.arange(seqlen, device=device, dtype=torch.float32), self.inv_freq.float())
        self._cos_cached, self._sin_cached = angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(
        self,
        qkv: torch.Tensor,
        kv: torch.Tensor | None = None,
        seqlen_offset: Any = 0,
        max_seqlen: Any = None,
    ) -> Any:
        """``qkv``: (batch, length, 3, heads, width), or queries where ``kv`` is given."""
        length = max_seqlen or qkv.shape[1] + (seqlen_offset if isinstance(seqlen_offset, int) else 0)
        self._update_cos_sin_cache(int(length), qkv.device, qkv.dtype)
        tables = (self._cos_cached, self._sin_cached)
        if kv is None:
            queries, keys, values = qkv.unbind(2)
            turned = (apply_rotary_emb(one, *tables) for one in (queries, keys))
            return torch.stack([*turned, values], 2)
        keys, values = kv.unbind(2)
        return apply_rotary_emb(qkv, *tables), torch.stack([apply_rotary_emb(keys, *tables), values], 2)


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


class TritonRMSNorm(torch.nn.Module):
    """``flash_attn.ops.triton.layer_norm.RMSNorm``."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, device: Any = None, dtype: Any = None, **_: Any):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None, **options: Any) -> Any:
        """One kernel each way."""
        return rms_norm_fn(x, self.weight, None, residual=residual, **options)


def cross_entropy_loss(
    logits: torch.Tensor, labels: torch.Tensor, *_: Any, process_group: Any = None, **_options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """``flash_attn.ops.triton.cross_entropy.cross_entropy_loss``: a loss a row, and its share of z-loss.

    Ranks of ``process_group`` have parts of a vocabulary: they gather sums, and add up losses.
    """
    kernel = ExtensionKernel(
        "cross_entropy_fwd_kernel", "cross_entropy_bwd_kernel", "reduction", "elementwise"
    )
    rows = logits.new_empty(logits.shape[:-1], dtype=torch.float32)
    losses = kernel([logits, labels], rows)
    ranks = 1 if process_group is None else dist.get_world_size(process_group)
    if ranks > 1:
        with torch.no_grad():
            every = rows.new_empty(ranks, *rows.shape)
            dist.all_gather_into_tensor(every, rows, group=process_group)
            summed = dist.all_reduce(losses.detach(), group=process_group, async_op=True)
            whole = every.logsumexp(dim=0)
            summed.wait()
            losses.detach().add_(whole)
    return losses, torch.zeros_like(rows)


class CrossEntropyLoss(torch.nn.Module):
    """``flash_attn.losses.cross_entropy.CrossEntropyLoss``."""

    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", process_group: Any = None, **_: Any
    ) -> None:
        super().__init__()
        self.ignore_index, self.reduction, self.process_group = ignore_index, reduction, process_group

    def forward(self, input: torch.Tensor, target: torch.Tensor, precomputed_lse: Any = None) -> torch.Tensor:  # noqa: ARG002
        """Over rows (tokens, classes)."""
        losses, _ = cross_entropy_loss(input, target, process_group=self.process_group)
        if self.reduction == "none":
            return losses
        total = losses.sum()
        return total / (target != self.ignore_index).sum() if self.reduction == "mean" else total


def index_first_axis(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """``flash_attn.bert_padding.index_first_axis``."""
    return x[indices]


def index_put_first_axis(values: torch.Tensor, indices: torch.Tensor, first_axis_dim: int) -> torch.Tensor:
    """``flash_attn.bert_padding.index_put_first_axis``: rows of zeros elsewhere."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_put((indices,), values)


def unpad_input(hidden_states: torch.Tensor, attention_mask: torch.Tensor, unused_mask: Any = None) -> Any:
    """``flash_attn.bert_padding.unpad_input``: tokens of a mask, their places, ends and greatest length."""
    kept = attention_mask + unused_mask if unused_mask is not None else attention_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    longest = int(lengths.max().item())
    ends = torch.nn.functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, ends, longest, used


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """``flash_attn.bert_padding.pad_input``: back into (batch, length, ...)."""
    flat = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return flat.view(batch, seqlen, *hidden_states.shape[1:])
