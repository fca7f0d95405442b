"""``torch.nn.attention.flex_attention``, whose kernels torch compiles: one launch each way.

Note [Blocks of flex attention]
    The kernels visit the blocks of keys that a block mask names for each block of queries (arXiv 2412.05496),
    so their floating-point operations follow from ``kv_num_blocks`` and ``full_kv_num_blocks``; a block that
    is masked in part is computed whole.  A mask that the program makes from known values (positions, numbers
    of documents) is evaluated for real, some rows of queries at a time, up to :data:`MOST_SCORES` scores.
    Of another mask every block counts, as of any mask that is not known (an upper bound).

    The kernels are named as if the program had compiled the function: without, torch makes all scores.
    What a modification of scores costs is not seen.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

from workloads.tracing import kernels
from workloads.tracing.fake import host_values
from workloads.tracing.fake.known_values import follow_up_to, remember, values_of
from workloads.tracing.kernels import KernelCost
from workloads.tracing.stand_ins.fused_kernel import laid_like

#: Scores of a mask (batch x heads x queries x keys) that are evaluated: 32,768 tokens of one mask.
MOST_SCORES = 1 << 31
#: At a time.
_MOST_AT_ONCE = 1 << 22
#: Entries of a mask by blocks that are followed.
_MOST_BLOCKS = 1 << 22

_MASK = "_simcore_mask"


def install(module: ModuleType) -> None:
    """Patch torch's module, once it has been imported."""
    torch_module: Any = module
    make_mask, to_blocks, of_blocks = (
        getattr(torch_module, name)
        for name in ("create_mask", "_convert_mask_to_block_mask", "_create_sparse_block_from_block_mask")
    )

    def create_mask(function: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        mask: torch.Tensor = make_mask(function, *args, **kwargs)
        if mask.device.type == "cuda":
            setattr(mask, _MASK, function)
        return mask

    def convert(mask: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = to_blocks(mask, *args, **kwargs)
        function = getattr(mask, _MASK, None)
        if function is not None:
            given = inspect.signature(to_blocks).bind(mask, *args, **kwargs)
            given.apply_defaults()
            rows, columns = (given.arguments[f"{of}_BLOCK_SIZE"] for of in ("Q", "KV"))
            _evaluate(torch_module, function, mask, found, rows=rows, columns=columns)
        return found

    def create(*args: Any, **kwargs: Any) -> Any:
        with follow_up_to(_MOST_BLOCKS):
            return of_blocks(*args, **kwargs)

    torch_module.create_mask, torch_module._convert_mask_to_block_mask = create_mask, convert
    torch_module._create_sparse_block_from_block_mask = create
    torch_module.flex_attention_hop = _attention


def _evaluate(
    module: Any,
    function: Any,
    mask: torch.Tensor,
    blocks: tuple[torch.Tensor, torch.Tensor | None],
    *,
    rows: int,
    columns: int,
) -> None:
    """The values of ``blocks``: which of ``rows`` queries and ``columns`` keys are visible in part, or whole.

    ``function`` made ``mask``.
    """
    batch, heads, queries, keys = mask.shape
    if mask.numel() > MOST_SCORES:
        return
    at_once = rows * max(1, _MOST_AT_ONCE // (rows * batch * heads * keys))
    sums: list[torch.Tensor] = []
    with kernels.unrecorded(), follow_up_to(max(_MOST_AT_ONCE, at_once * batch * heads * keys)):
        for first in range(0, queries, at_once):
            last = min(first + at_once, queries)
            visible = _visible(module, function, (batch, heads), (first, last), keys, mask.device)
            if visible is None:
                return
            sums.append(_block_sums(visible, rows, columns))
    with torch._C._DisableTorchDispatch():
        found = torch.cat(sums, dim=2)
        partial, full = blocks
        if full is not None:
            whole = found == rows * columns
            remember(full, whole.to(full.dtype))
            remember(partial, ((found > 0) & ~whole).to(partial.dtype))
        else:
            remember(partial, (found > 0).to(partial.dtype))


def _visible(
    module: Any, function: Any, batch_heads: tuple[int, int], queries: tuple[int, int], keys: int, device: Any
) -> torch.Tensor | None:
    """The mask for these queries, on the host; None when it is not known."""
    places = [torch.arange(*ends, device=device) for ends in ((batch_heads[0],), (batch_heads[1],), queries)]
    with TransformGetItemToIndex():
        found = module._vmap_for_bhqkv(function, prefix=())(*places, torch.arange(keys, device=device))
    return values_of(found)


def _block_sums(visible: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Visible scores of each block; (batch, heads, queries, keys) becomes one number a block."""
    with torch._C._DisableTorchDispatch():
        padding = (0, -visible.shape[3] % columns, 0, -visible.shape[2] % rows)
        padded = torch.nn.functional.pad(visible, padding)
        split = padded.reshape(*visible.shape[:2], -1, rows, padded.shape[3] // columns, columns)
        return split.sum(dim=(3, 5), dtype=torch.int32)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any,
    block_mask: Sequence[Any],
    _scale: float,
    kernel_options: dict[str, Any],
    *_: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The operator: result, logarithms of sums of exponentials, largest scores (empty unless asked for)."""
    learned = _learned(score_mod)
    if learned:
        raise NotImplementedError(f"flex_attention with a score_mod that learns {learned!r} is not traced")
    rows, columns = block_mask[-3:-1]
    visited = _visited(block_mask[2], block_mask[4], query, key, rows, columns)
    flops = 2 * visited * (query.shape[-1] + value.shape[-1])
    masks = [one for one in block_mask[2:10] if one is not None]
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _Flex.apply(  # type: ignore[no-untyped-call]
        query, key, value, flops, kernel_options.get("OUTPUT_MAX", False), masks
    )
    return found


def _learned(score_mod: Any) -> str:
    """The name of a tensor with a gradient that ``score_mod`` has captured; "" for none."""
    captured = inspect.getclosurevars(score_mod) if inspect.isfunction(score_mod) else None
    named = {**captured.globals, **captured.nonlocals} if captured is not None else {}
    return next((name for name, one in named.items() if getattr(one, "requires_grad", False)), "")


def _visited(
    partial: torch.Tensor,
    full: torch.Tensor | None,
    query: torch.Tensor,
    key: torch.Tensor,
    rows: int,
    columns: int,
) -> int:
    """Scores that are computed, of all heads of queries: of each block of ``rows`` queries the blocks of
    ``columns`` keys that ``partial`` and ``full`` count.
    """
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    counts = [values_of(one) for one in (partial, full) if one is not None]
    if any(one is None for one in counts):
        share = 1.0 if host_values.ask is None else float(host_values.ask("share", partial, 1.0))
        return round(share * batch * heads * queries * keys)
    with torch._C._DisableTorchDispatch():
        num_blocks = sum(one.long() for one in counts if one is not None)
        assert isinstance(num_blocks, torch.Tensor)
        seen = (num_blocks * columns).clamp(max=keys)
        first = torch.arange(seen.shape[-1]) * rows
        length = (queries - first).clamp(min=0, max=rows)
        masks = seen.shape[0] * seen.shape[1]  # each for as many of batch and heads as another
        return int((seen * length).sum()) * batch * heads // masks


class _Flex(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        flops: int,
        wants_max: bool,
        masks: list[torch.Tensor],
    ) -> Any:
        found = laid_like(query, value.shape[-1])
        sums = query.new_empty(query.shape[:3], dtype=torch.float32)
        largest = torch.empty_like(sums if wants_max else sums[:0])
        cost = KernelCost(flops, op_class="attention_fwd")
        writes = [found, sums, *([largest] if wants_max else [])]
        kernels.launch("flex_attention_full_fwd", reads=[query, key, value, *masks], writes=writes, cost=cost)
        ctx.save_for_backward(query, key, value, found, sums, *masks)
        ctx.flops = flops
        ctx.mark_non_differentiable(largest)
        ctx.set_materialize_grads(False)
        return found, sums, largest

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None, of_sums: torch.Tensor | None, _largest: Any) -> Any:
        query, key, value, found, sums, *masks = ctx.saved_tensors
        grad = torch.zeros_like(found) if grad is None else grad
        delta = torch.empty_like(sums)
        more = [] if of_sums is None else [of_sums]
        cost = KernelCost(op_class="reduction")
        kernels.launch("flex_attention_bwd_delta", reads=[grad, found, *more], writes=[delta], cost=cost)
        made = [torch.empty_like(one) for one in (query, key, value)]
        # Scores again, and the gradients of four tensors: 5 products for forward's 2 (arXiv 2205.14135).
        cost = KernelCost(ctx.flops * 5 // 2, op_class="attention_bwd")
        reads = [grad, query, key, value, found, sums, delta, *masks]
        kernels.launch("flex_attention_full_bwd", reads=reads, writes=made, cost=cost)
        return (*made, None, None, None)
