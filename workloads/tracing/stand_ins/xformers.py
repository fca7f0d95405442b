"""xformers: attention with its biases, SwiGLU, what it has around them, and its profiler, which does nothing.

Attention is what xformers dispatches to on Hopper and Ampere: flash-attn's kernels where it can, over packed
sequences for block-diagonal biases, CUTLASS's memory-efficient ones for a bias that is a tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from simcore.records import dataclass
from workloads.tracing.stand_ins.flash_attn import attention
from workloads.tracing.stand_ins.fused_kernel import ExtensionKernel

_ALL = (-1, -1)


class AttentionBias:
    """What is added to scores; ``causal``, ``window``: as flash-attn takes them."""

    causal = False
    window = _ALL


class LowerTriangularMask(AttentionBias):
    """Causal, from the top left."""

    causal = True

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class LowerTriangularFromBottomRightMask(LowerTriangularMask):
    """Causal, the last query sees every key."""

    def make_local_attention(self, window_size: int) -> LowerTriangularFromBottomRightLocalAttentionMask:
        """Of ``window_size`` keys, the query's own among them."""
        return LowerTriangularFromBottomRightLocalAttentionMask(window_size)


class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularMask):
    """Causal, of few keys."""

    def __init__(self, _window_size: int) -> None:
        super().__init__()
        self.window = (_window_size - 1, 0)


class LocalAttentionFromBottomRightMask(AttentionBias):
    """So many keys before and behind each query."""

    def __init__(self, *, window_left: int, window_right: int) -> None:
        self.window = (window_left, window_right)


@dataclass
class _SeqLenInfo:
    """Where packed sequences begin: as a tensor, the longest of them, as numbers."""

    seqstart: torch.Tensor
    max_seqlen: int
    seqstart_py: list[int]

    @classmethod
    def from_seqlens(cls, seqlens: Sequence[int], *, device: Any = None) -> _SeqLenInfo:
        """Of sequences so long."""
        starts = [0]
        for length in seqlens:
            starts.append(starts[-1] + int(length))
        tensor = torch.tensor(starts, dtype=torch.int32, device=device or torch.device("cuda"))
        return cls(tensor, max(map(int, seqlens), default=0), starts)


class BlockDiagonalMask(AttentionBias):
    """Packed sequences, each of which sees itself alone."""

    def __init__(self, q_seqinfo: _SeqLenInfo, k_seqinfo: _SeqLenInfo) -> None:
        self.q_seqinfo, self.k_seqinfo = q_seqinfo, k_seqinfo
        self._batch_sizes: list[int] | None = None

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, *, device: Any = None
    ) -> BlockDiagonalMask:
        """Of sequences so long."""
        queries = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
        return cls(
            queries, queries if kv_seqlen is None else _SeqLenInfo.from_seqlens(kv_seqlen, device=device)
        )

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[torch.Tensor]) -> tuple[BlockDiagonalMask, torch.Tensor]:
        """The mask and the (1, tokens, ...) that packs ``tensors``, each (batch, length, ...)."""
        made = cls.from_seqlens([one.shape[1] for one in tensors for _ in range(one.shape[0])])
        made._batch_sizes = [one.shape[0] for one in tensors]
        return made, torch.cat([one.reshape([1, -1, *one.shape[2:]]) for one in tensors], dim=1)

    def split(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """What :meth:`from_tensor_list` packed."""
        starts = self.q_seqinfo.seqstart_py
        found, first = [], 0
        for size in self._batch_sizes or [1] * (len(starts) - 1):
            part = tensor[:, starts[first] : starts[first + size]]
            found.append(part.reshape(size, -1, *tensor.shape[2:]))
            first += size
        return found

    def make_causal(self) -> BlockDiagonalCausalMask:
        """The same, causal within each."""
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo)

    make_causal_from_bottomright = make_causal

    def make_local_attention(self, window_size: int) -> BlockDiagonalMask:
        """The same, of so many keys."""
        made = type(self)(self.q_seqinfo, self.k_seqinfo)
        half = window_size // 2
        made.window = (window_size - 1, 0) if self.causal else (window_size - 1 - half, half)
        return made


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Packed sequences, causal within each."""

    causal = True


class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalCausalMask):
    """The same, the last query of each sees all of its keys."""


def memory_efficient_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,  # noqa: ARG001
    output_dtype: Any = None,  # noqa: ARG001
) -> torch.Tensor:
    """Of (batch, length, heads, width), of one head without its dimension, or of groups of heads:
    (batch, length, groups, heads, width).
    """
    if query.dim() == 5:
        q, k, v = (one.flatten(2, 3) for one in (query, key, value))
        return memory_efficient_attention(q, k, v, attn_bias, p, scale).view(query.shape)
    if query.dim() == 3:
        q, k, v = (one.unsqueeze(2) for one in (query, key, value))
        return memory_efficient_attention(q, k, v, attn_bias, p, scale).squeeze(2)
    if isinstance(attn_bias, torch.Tensor) or query.dtype == torch.float32:
        mask = attn_bias if isinstance(attn_bias, torch.Tensor) else None
        causal = isinstance(attn_bias, LowerTriangularMask)
        q, k, v = (one.transpose(1, 2) for one in (query, key, value))
        return functional.scaled_dot_product_attention(q, k, v, mask, p, causal, scale=scale).transpose(1, 2)
    bias: AttentionBias = attn_bias or AttentionBias()
    found: torch.Tensor
    if not isinstance(bias, BlockDiagonalMask):
        found = attention.flash_attn_func(query, key, value, p, scale, bias.causal, bias.window)
        return found
    q, k, v = (one.squeeze(0) for one in (query, key, value))
    q_starts, k_starts = bias.q_seqinfo, bias.k_seqinfo
    found = attention.flash_attn_varlen_func(
        q,
        k,
        v,
        q_starts.seqstart,
        k_starts.seqstart,
        q_starts.max_seqlen,
        k_starts.max_seqlen,
        causal=bias.causal,
        window_size=bias.window,
    )
    return found.unsqueeze(0)


class SwiGLU(torch.nn.Module):
    """``w3(silu(w1(x)) * w2(x))``, the first two in one product."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = True,
        *,
        _pack_weights: bool = True,
        **factory: Any,
    ) -> None:
        super().__init__()
        self.w12 = torch.nn.Linear(in_features, 2 * hidden_features, bias, **factory)
        self.w3 = torch.nn.Linear(hidden_features, out_features or in_features, bias, **factory)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of tokens (..., in_features)."""
        wide = self.w12(x)
        gated = ExtensionKernel("silu_and_mul_kernel", "silu_bw_fused_kernel")(
            [wide], wide[..., : wide.shape[-1] // 2]
        )
        result: torch.Tensor = self.w3(gated)
        return result


def unbind(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
    """Views of slices."""
    return x.unbind(dim)


def index_select_cat(sources: Sequence[torch.Tensor], indices: Sequence[torch.Tensor]) -> torch.Tensor:
    """Chosen rows of several tensors, flat, one behind the other."""
    return torch.cat([one[index].flatten() for one, index in zip(sources, indices, strict=True)])


def scaled_index_add(
    input: torch.Tensor,
    index: torch.Tensor,
    source: torch.Tensor,
    scaling: torch.Tensor | None = None,
    alpha: float = 1.0,
) -> torch.Tensor:
    """Rows added in place, each column scaled."""
    return torch.index_add(input, 0, index, source if scaling is None else scaling * source, alpha=alpha)


class TritonNorm(torch.nn.Module):
    """Triton's norm, one kernel each way."""

    def __init__(self, dim: int, include_weight: bool = True, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(dim)) if include_weight else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of rows (..., dim)."""
        result: torch.Tensor = functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        return result


def _nothing(*_: Any, **__: Any) -> None:
    pass


@contextlib.contextmanager
def _profile(*_: Any, **__: Any) -> Any:
    yield None


_BIASES = {
    one.__name__: one
    for one in (
        AttentionBias,
        LowerTriangularMask,
        LowerTriangularFromBottomRightMask,
        LowerTriangularFromBottomRightLocalAttentionMask,
        LocalAttentionFromBottomRightMask,
        BlockDiagonalMask,
        BlockDiagonalCausalMask,
        BlockDiagonalCausalFromBottomRightMask,
        _SeqLenInfo,
    )
}
_ATTENTION = {"memory_efficient_attention": memory_efficient_attention, **_BIASES}
_PROFILER = {
    "profile": _profile,
    "step": _nothing,
    **dict.fromkeys(("MemSnapshotsProfiler", "PyTorchProfiler", "NsightProfiler"), type("_Profiler", (), {})),
}
_MODULES: dict[str, dict[str, Any]] = {
    "xformers": {"__version__": "0.0.32"},
    "xformers.ops": {
        **_ATTENTION,
        "RMSNorm": TritonNorm,
        **{one.__name__: one for one in (SwiGLU, unbind, index_select_cat, scaled_index_add)},
    },
    "xformers.ops.fmha": _ATTENTION,
    "xformers.ops.fmha.attn_bias": _BIASES,
    # Programs compare operators with it.
    "xformers.ops.fmha.flash": {"FwOp": type("FwOp", (), {"OPERATOR": None})},
    "xformers.ops.swiglu_op": {"SwiGLU": SwiGLU},
    "xformers.profiler": _PROFILER,
}


def members(name: str) -> dict[str, Any] | None:
    """What is in module ``name``; None: there is no such module."""
    return _MODULES.get(name)


def submodules(name: str) -> tuple[str, ...]:
    """Modules that the import of ``name`` imports."""
    if name == "xformers.ops":
        _declare_operators()
        return tuple(one for one in _MODULES if one.startswith("xformers.ops."))
    return ()


_libraries: list[torch.library.Library] = []


def _declare_operators() -> None:
    """Operators that programs name to say what they recompute; attention here is torch's and flash-attn's."""
    names = (
        ("xformers_flash", "flash_fwd"),
        ("xformers_flash3", "flash_fwd"),
        ("xformers", "efficient_attention_forward_cutlass"),
    )
    for library, name in () if _libraries else names:
        _libraries.append(torch.library.Library(library, "FRAGMENT"))  # type: ignore[no-untyped-call]
        _libraries[-1].define(f"{name}(Tensor query, Tensor key, Tensor value) -> Tensor")  # type: ignore[no-untyped-call]
