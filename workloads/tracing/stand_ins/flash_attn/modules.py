"""flash-attn's modules: attention of what is projected already.  Layers may be named, and are refused."""

from __future__ import annotations

from typing import Any

import torch

from workloads.tracing.stand_ins.flash_attn import attention
from workloads.tracing.stand_ins.refusal import absent


class FlashSelfAttention(torch.nn.Module):
    """``flash_attn.modules.mha.FlashSelfAttention``: of (batch, length, 3, heads, width), or packed."""

    def __init__(
        self, causal: bool = False, softmax_scale: Any = None, attention_dropout: float = 0.0, **options: Any
    ) -> None:
        super().__init__()
        self.causal, self.softmax_scale, self.options = causal, softmax_scale, options
        self.drop = torch.nn.Dropout(attention_dropout)

    def _options(self, causal: bool | None) -> dict[str, Any]:
        return {
            "dropout_p": self.drop.p if self.training else 0.0,
            "softmax_scale": self.softmax_scale,
            "causal": self.causal if causal is None else causal,
            **self.options,
        }

    def forward(
        self, qkv: torch.Tensor, causal: bool | None = None, cu_seqlens: Any = None, max_seqlen: Any = None
    ) -> Any:
        """One kernel each way."""
        options = self._options(causal)
        if cu_seqlens is None:
            return attention.flash_attn_qkvpacked_func(qkv, **options)
        return attention.flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, **options)


class FlashCrossAttention(FlashSelfAttention):
    """``flash_attn.modules.mha.FlashCrossAttention``: queries, and keys with values (.., 2, .., ..)."""

    def forward(  # type: ignore[override]
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        causal: bool | None = None,
        cu_seqlens: Any = None,
        max_seqlen: Any = None,
        cu_seqlens_k: Any = None,
        max_seqlen_k: Any = None,
    ) -> Any:
        """One kernel each way."""
        options = self._options(causal)
        if cu_seqlens is None:
            return attention.flash_attn_kvpacked_func(q, kv, **options)
        bounds = (cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k)
        return attention.flash_attn_varlen_kvpacked_func(q, kv, *bounds, **options)


def named(module: str, *names: str) -> dict[str, Any]:
    """Layers of ``module`` that programs compare or wrap with."""
    return {name: absent(f"{module}.{name}", torch.nn.Module, extension="flash-attn") for name in names}
