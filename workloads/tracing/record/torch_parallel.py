"""What torch's own parallelism runs when: pipeline schedules, FSDP2's reductions, DTensor's own questions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed.fsdp._fully_shard._fsdp_param_group as fsdp2_groups
import torch.distributed.tensor._sharding_prop as sharding_prop
from torch.distributed.pipelining import schedules, stage

from workloads.tracing import kernels
from workloads.tracing.record import step_marks

_Function = Callable[..., Any]

#: Method of a stage -> (template, phase) of what it runs.  A zero-bubble schedule runs the gradients of
#: weights apart from those of inputs.
_ACTIONS = {
    "forward_one_chunk": ("fwd", "fwd"),
    "backward_one_chunk": ("bwd", "bwd"),
    "backward_weight_one_chunk": ("wgrad", "bwd"),
}
_TRANSFERS = {
    "get_fwd_recv_ops": "fwd",
    "get_fwd_send_ops": "fwd",
    "get_bwd_recv_ops": "bwd",
    "get_bwd_send_ops": "bwd",
}


def install() -> None:
    """Wrap stages, schedules and what is to be labelled or left out, once per process."""
    # Reducing a group of gradients is gradient synchronisation, though it runs in the backward pass.
    groups: Any = fsdp2_groups
    groups.foreach_reduce = step_marks.in_phase("grad_sync", groups.foreach_reduce)
    _leave_out_shape_rules()
    vars(stage)["FakeTensor"] = ()  # parameters without data move to a stage's device as others do
    stages: Any = stage._PipelineStageBase
    for name, (kind, phase) in _ACTIONS.items():
        setattr(stages, name, _action(getattr(stages, name), kind, phase))
    for name, phase in _TRANSFERS.items():
        setattr(stages, name, _transfers(getattr(stages, name), phase))
    base: Any = schedules._PipelineSchedule
    base._maybe_compute_loss = _loss(base._maybe_compute_loss)
    for schedule in vars(schedules).values():
        if isinstance(schedule, type) and "_step_microbatches" in vars(schedule):
            schedule._step_microbatches = _whole(schedule._step_microbatches)  # type: ignore[attr-defined]


def _action(original: _Function, kind: str, phase: str) -> _Function:
    @functools.wraps(original)
    def run(self: Any, microbatch: int, *args: Any, **kwargs: Any) -> Any:
        marks = step_marks.current()
        marks.action_begins(kind, phase, microbatch, _chunk(self))
        result = original(self, microbatch, *args, **kwargs)
        if not (kind == "fwd" and self.is_last):  # the loss follows
            marks.action_ends()
        return result

    return run


def _chunk(one: Any) -> int:
    """Number of a stage among those of its rank."""
    ranks = one.stage_index_to_group_rank
    return sum(ranks[index] == one.group_rank for index in range(one.stage_index))


def _transfers(original: _Function, phase: str) -> _Function:
    """Activations travel forward, gradients back, also around the ring of an interleaved schedule."""

    @functools.wraps(original)
    def operations(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        for operation in found:
            step_marks.current().recorder.labels.set_transfer_phase(operation.tensor, phase)
        return found

    return operations


def _loss(original: _Function) -> _Function:
    """The loss belongs to the forward pass of the last stage."""

    @functools.wraps(original)
    def loss(self: Any, one: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, one, *args, **kwargs)
        if one.is_last:
            step_marks.current().action_ends()
        return result

    return loss


def _whole(original: _Function) -> _Function:
    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        step_marks.current().pipeline_begins()
        result = original(*args, **kwargs)
        step_marks.current().pipeline_ends()
        return result

    return step


def _leave_out_shape_rules() -> None:
    """DTensor runs an operator on whole shapes to know those of its result: no kernel of the program's."""
    propagator = sharding_prop.ShardingPropagator
    original = propagator._propagate_tensor_meta_non_cached

    def propagate(self: Any, op_schema: Any) -> Any:
        with kernels.unrecorded():
            return original(self, op_schema)

    propagator._propagate_tensor_meta_non_cached = propagate  # type: ignore[method-assign]
