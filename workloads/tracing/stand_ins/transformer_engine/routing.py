"""Choice of experts, moves of their tokens, cross entropy of a vocabulary in parts: one kernel each way.

(TransformerEngine, pytorch/router.py, permutation.py, cross_entropy.py.)  Which experts tokens choose is what
the trace assumes of their load.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from workloads.tracing import kernels
from workloads.tracing.record import step_marks
from workloads.tracing.stand_ins.fused_kernel import ExtensionKernel


def fused_topk_with_score_function(logits: torch.Tensor, topk: int, *_: Any, **__: Any) -> Any:
    """Shares of experts, 0 where a token did not choose one, and which it chose; (tokens, experts) both."""
    kernel = ExtensionKernel(
        "fused_topk_with_score_function_forward_kernel",
        "fused_topk_with_score_function_backward_kernel",
        "reduction",
        "reduction",
        keeps_results=True,
    )
    shares = kernel([logits], logits)
    return shares, _chosen(logits, topk)


def fused_compute_score_for_moe_aux_loss(logits: torch.Tensor, topk: int, score_function: str) -> Any:
    """Which experts each token chose, and the scores of all."""
    del score_function
    kernel = ExtensionKernel(
        "fused_score_for_moe_aux_loss_forward_kernel",
        "fused_score_for_moe_aux_loss_backward_kernel",
        "softmax_fwd",
        "softmax_bwd",
        keeps_results=True,
    )
    scores = kernel([logits], torch.empty_like(logits, dtype=torch.float32))
    return _chosen(logits, topk), scores


def fused_moe_aux_loss(probs: torch.Tensor, tokens_per_expert: torch.Tensor, *_: Any, **__: Any) -> Any:
    """One number."""
    kernel = ExtensionKernel(
        "fused_moe_aux_loss_forward_kernel", "fused_moe_aux_loss_backward_kernel", "reduction", "elementwise"
    )
    return kernel([probs, tokens_per_expert], probs.new_empty(()))


def _chosen(logits: torch.Tensor, topk: int) -> torch.Tensor:
    """Written by the kernel that chooses."""
    chosen = torch.empty_like(logits, dtype=torch.bool, requires_grad=False)
    step_marks.current().recorder.routing.mark(chosen, topk)
    return chosen


def moe_permute(
    inp: torch.Tensor,
    routing_map: torch.Tensor,
    num_out_tokens: int = -1,
    max_token_num: int = -1,  # noqa: ARG001
    map_type: str = "mask",  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens in the order of their experts, and where they came from."""
    tokens, _, places = _permuted(inp, None, routing_map, num_out_tokens)
    return tokens, places


def moe_permute_with_probs(
    inp: torch.Tensor, probs: torch.Tensor, routing_map: torch.Tensor, num_out_tokens: int = -1
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Tokens and their shares in the order of their experts, and where they came from."""
    return _permuted(inp, probs, routing_map, num_out_tokens)


def _permuted(
    inp: torch.Tensor, probs: torch.Tensor | None, routing_map: torch.Tensor, num_out_tokens: int
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    rows = num_out_tokens if num_out_tokens > 0 else int(routing_map.sum())
    places = torch.empty_like(routing_map, dtype=torch.int32)
    kernels.launch("row_id_map_kernel", reads=[routing_map], writes=[places])
    results = [inp.new_empty(rows, inp.shape[1])]
    if probs is not None:
        results.append(probs.new_empty(rows))
    forgets = len(results)
    made = _kernel("permute_kernel", "unpermute_kernel", forgets)([inp, probs, places], *results)
    return (made, None, places) if probs is None else (made[0], made[1], places)


def moe_unpermute(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    merging_probs: torch.Tensor | None = None,
    restore_shape: Any = None,
    map_type: str = "mask",  # noqa: ARG001
    probs: torch.Tensor | None = None,
    pad_offsets: Any = None,  # noqa: ARG001
) -> Any:
    """Tokens where they came from, added up with their shares."""
    shape = restore_shape if restore_shape is not None else (row_id_map.shape[0], inp.shape[1])
    shares = merging_probs if merging_probs is not None else probs
    kernel = _kernel("unpermute_kernel", "permute_kernel", 0 if shares is not None else 1)
    return kernel([inp, row_id_map, shares], inp.new_empty(*shape))


def moe_sort_chunks_by_index(inp: torch.Tensor, split_sizes: Any, sorted_index: Any) -> Any:
    """Chunks of tokens in another order."""
    return _kernel("sort_chunks_by_map_kernel", "sort_chunks_by_map_kernel", 1)(
        [inp, split_sizes, sorted_index], inp
    )


def moe_sort_chunks_by_index_with_probs(
    inp: torch.Tensor, probs: torch.Tensor, split_sizes: Any, sorted_index: Any
) -> Any:
    """Chunks of tokens and of their shares in another order."""
    return _kernel("sort_chunks_by_map_kernel", "sort_chunks_by_map_kernel", 2)(
        [inp, probs, split_sizes, sorted_index], inp, probs
    )


def _kernel(forward: str, backward: str, forgets: int) -> ExtensionKernel:
    """Without shares to add up with, places alone are kept (``save_for_backward`` of permutation.py)."""
    return ExtensionKernel(forward, backward, "embedding_fwd", "embedding_fwd", forgets=forgets)


def parallel_cross_entropy(
    inp: torch.Tensor,
    target: torch.Tensor,
    label_smoothing: float = 0.0,
    reduce_loss: bool = False,
    dist_process_group: Any = None,
    ignore_idx: int = -100,
    is_cg_capturable: bool = False,
) -> Any:
    """Loss of each token, or their mean; logits are overwritten with their gradient."""
    del label_smoothing, ignore_idx, is_cg_capturable
    return _CrossEntropy.apply(inp, target, reduce_loss, dist_process_group)  # type: ignore[no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, target: torch.Tensor, reduce_loss: bool, group: Any
    ) -> torch.Tensor:
        rows = logits.shape[:-1]
        size = dist.get_world_size(group) if group is not None else 1
        stats = logits.new_empty(rows.numel() * 3, dtype=torch.float32)  # maximum, sum, the target's logit
        kernels.launch("online_softmax_kernel", reads=[logits, target], writes=[stats])
        if size > 1:
            all_stats = stats.new_empty(size * stats.numel())
            dist.all_gather_into_tensor(all_stats, stats, group=group)
            stats = all_stats
        loss = logits.new_empty(*rows, dtype=torch.float32)
        kernels.launch("cross_entropy_kernel", reads=[logits, target, stats], writes=[logits, loss])
        ctx.save_for_backward(logits.detach())
        return loss.mean() if reduce_loss else loss

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (found,) = ctx.saved_tensors
        kernels.launch("element_mul_kernel", reads=[found, grad], writes=[found])
        return found, None, None, None
