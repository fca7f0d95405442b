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
from megatron.core.distributed import DistributedDataParallel
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup
from megatron.core.pipeline_parallel import p2p_communication, schedules
from megatron.core.transformer.moe import moe_utils, router
from torch.utils._python_dispatch import _disable_current_modes

from workloads.tracing.fake.expert_load import assign, token_counts
from workloads.tracing.fake.known_values import attach
from workloads.tracing.record import step_marks

#: Module that owns a parameter, by the parameter's id.
parameter_modules: dict[int, str] = {}

#: Megatron 0.16.1 strings these groups together to those of an instance of the distributed optimizer.
_STRUNG_TOGETHER = ("tp-ep-pp",)

Groups = list[list[int]]

_TAG = "_simcore_step"  # (microbatch, chunk) on the output of a forward step


def install() -> None:
    """Wrap the functions, once per process."""
    schedules.forward_step = _forward_step(schedules.forward_step)
    schedules.backward_step = _backward_step(schedules.backward_step)
    for name in ("_batched_p2p_ops", "_p2p_ops"):
        setattr(p2p_communication, name, _transfers(getattr(p2p_communication, name)))
    buckets = _ParamAndGradBucketGroup
    for name in ("start_grad_sync", "finish_grad_sync"):
        setattr(buckets, name, step_marks.in_phase("grad_sync", getattr(buckets, name)))
    for name in ("start_param_sync", "finish_param_sync"):
        setattr(buckets, name, step_marks.in_phase("optimizer", getattr(buckets, name)))
    if not hasattr(moe_utils, "te_general_gemm"):  # Megatron asks for it whether or not it could import it
        moe_utils.te_general_gemm = None
    router.topk_routing_with_score_function = _routing(router.topk_routing_with_score_function)
    generator = parallel_state.RankGenerator
    generator.get_ranks = _remembered(generator.get_ranks)
    ddp = DistributedDataParallel
    ddp._make_backward_post_hook = _owned_hook(ddp._make_backward_post_hook)


def _forward_step(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward_step(*args: Any, **kwargs: Any) -> Any:
        marks = step_marks.current()
        microbatch, chunk = int(kwargs["current_microbatch"]), int(kwargs.get("vp_stage") or 0)
        marks.action_begins("fwd", "fwd", microbatch, chunk)
        result = original(*args, **kwargs)
        output = result[0][0] if isinstance(result[0], list) else result[0]
        setattr(output, _TAG, (microbatch, chunk))
        marks.action_ends()
        return result

    return forward_step


def _backward_step(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward_step(input_tensor: Any, output_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        marks = step_marks.current()
        output = output_tensor[0] if isinstance(output_tensor, list) else output_tensor
        microbatch, chunk = getattr(output, _TAG)
        marks.action_begins("bwd", "bwd", microbatch, chunk)
        result = original(input_tensor, output_tensor, *args, **kwargs)
        marks.action_ends()
        return result

    return backward_step


def _transfers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Activations travel to the next stage, gradients to the one before, also around the ring."""

    @functools.wraps(original)
    def transfer(**kwargs: Any) -> Any:
        labels = step_marks.current().recorder.labels
        for name in ("tensor_send_next", "tensor_recv_prev"):
            labels.set_transfer_phase(kwargs[name], "fwd")
        for name in ("tensor_send_prev", "tensor_recv_next"):
            labels.set_transfer_phase(kwargs[name], "bwd")
        return original(**kwargs)

    return transfer


def _routing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tokens fall on experts as the load says, so that counts and splits that follow are known, too."""

    @functools.wraps(original)
    def route(logits: torch.Tensor, topk: int, *args: Any, **kwargs: Any) -> Any:
        shares, routes = original(logits, topk, *args, **kwargs)
        routing = step_marks.current().recorder.routing
        tokens, experts = routes.shape
        chosen = assign(token_counts(routing.shares(experts), tokens, topk), tokens, topk)
        with _disable_current_modes():
            real = torch.zeros(tokens, experts, dtype=torch.bool)
            real.scatter_(1, torch.from_numpy(chosen), value=True)
        attach(routes, real)
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
