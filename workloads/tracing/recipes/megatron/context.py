"""Core attention under context parallelism, which Megatron-core leaves to Transformer Engine."""

from __future__ import annotations

from typing import Any

import torch

from workloads.tracing.stand_ins.ring_attention import ring_attention


class ContextParallelAttention(torch.nn.Module):
    """In place of Megatron's core attention; query, key and value are (sequence, batch, heads, width)."""

    def __init__(self, config: Any, *_: Any, pg_collection: Any = None, **__: Any) -> None:
        super().__init__()
        self.config = config
        self.group = pg_collection.cp
        self.side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any = None,  # noqa: ARG002
        **_: Any,
    ) -> torch.Tensor:
        """(sequence, batch, heads * width)."""
        return ring_attention(query, key, value, self.group, self.side).flatten(2)
