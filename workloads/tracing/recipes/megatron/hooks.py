"""Labels on Megatron's own functions: which microbatch, chunk and phase is running.  Behaviour is
unchanged.

Note [Groups of others]
    Every rank of a job goes through all groups of the world and joins those that it is in: at 131,072 ranks
    that is 370,000 groups per rank.  Megatron's lists of ranks by axis are made once per process, and handed
    out as far as they concern a rank, which changes nothing for it.  Rank 0 still sees all of them, so that
    families are what the program made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, param_and_grad_buffer
from megatron.core.pipeline_parallel import p2p_communication, schedules
from megatron.core.transformer.moe import moe_utils, router

from workloads.tracing.record import megatron, step_marks

#: Module that owns a parameter, by the parameter's id.
parameter_modules: dict[int, str] = {}

#: Megatron 0.16.1 strings these groups together to those of an instance of the distributed optimizer.
_STRUNG_TOGETHER = ("tp-ep-pp",)

Groups = list[list[int]]


def install() -> None:
    """Wrap the functions, once per process."""
    megatron.watch_schedules(schedules)
    megatron.watch_transfers(p2p_communication)
    megatron.watch_buckets(param_and_grad_buffer)
    if not hasattr(moe_utils, "te_general_gemm"):  # Megatron asks for it whether or not it could import it
        moe_utils.te_general_gemm = None
    router.topk_routing_with_score_function = _routing(router.topk_routing_with_score_function)
    generator = parallel_state.RankGenerator
    generator.get_ranks = _remembered(generator.get_ranks)
    ddp = DistributedDataParallel
    ddp._make_backward_post_hook = _owned_hook(ddp._make_backward_post_hook)


def _routing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tokens fall on experts as the load says, so that counts and splits that follow are known, too."""

    @functools.wraps(original)
    def route(logits: torch.Tensor, topk: int, *args: Any, **kwargs: Any) -> Any:
        shares, routes = original(logits, topk, *args, **kwargs)
        step_marks.current().recorder.routing.mark(routes, topk)
        return shares, routes

    return route


def _owned_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """Accumulating a parameter's gradient belongs to the parameter's module."""

    @functools.wraps(original)
    def make_hook(self: Any, parameter: torch.nn.Parameter) -> Callable[..., None]:
        hook = original(self, parameter)
        module = parameter_modules.get(id(parameter), "")

        def owned(*args: Any) -> None:
            with step_marks.current().recorder.labels.module_scope(module):
                hook(*args)

        return owned

    return make_hook


def _remembered(original: Callable[[Any, str], Groups]) -> Callable[[Any, str], Groups]:
    known: dict[tuple[object, ...], tuple[Groups, dict[int, int]]] = {}

    @functools.wraps(original)
    def get_ranks(self: Any, token: str) -> Groups:
        sizes = tuple(self.name_to_size.items())
        key = (sizes, self.order, self.rank_offset, token)
        found = known.get(key)
        if found is None:
            groups = original(self, token)
            number = {rank: index for index, group in enumerate(groups) for rank in group}
            found = known[key] = (groups, number)
        groups, number = found
        if dist.get_rank() == 0 or token in _STRUNG_TOGETHER:
            return groups
        mine = number.get(dist.get_rank())
        return [] if mine is None else [groups[mine]]

    return get_ranks
