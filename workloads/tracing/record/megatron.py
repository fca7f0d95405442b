"""Megatron-core (0.16 to 0.20): which microbatch and chunk runs, what reduces gradients, where a step ends.

Behaviour is unchanged.  A schedule's passes are labelled by its own functions; a step ends with the outermost
``step()`` of Megatron's optimizers, which gathers or copies parameters behind those of torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from workloads.tracing.record import step_marks

_TAG = "_simcore_step"  # (microbatch, chunk) on the output of a forward step


def actions() -> dict[str, Callable[[ModuleType], None]]:
    """What to do right after each module of Megatron-core has been imported."""
    core = "megatron.core"
    return {
        f"{core}.pipeline_parallel.schedules": watch_schedules,
        f"{core}.pipeline_parallel.p2p_communication": watch_transfers,
        f"{core}.distributed.finalize_model_grads": _watch_finalizing,
        f"{core}.distributed.param_and_grad_buffer": watch_buckets,
        f"{core}.optimizer.optimizer": watch_optimizers,
    }


def watch_schedules(schedules: Any) -> None:
    """Label the passes of microbatches."""
    schedules.forward_step = _forward_step(schedules.forward_step)
    schedules.backward_step = _backward_step(schedules.backward_step)


def watch_transfers(communication: Any) -> None:
    """Label what travels between stages."""
    for name in ("_batched_p2p_ops", "_p2p_ops"):
        setattr(communication, name, _transfers(getattr(communication, name)))


def watch_buckets(buffers: Any) -> None:
    """Label the reduction of gradients and the gathering of parameters."""
    buckets = buffers._ParamAndGradBucketGroup
    for name in ("start_grad_sync", "finish_grad_sync"):
        setattr(buckets, name, step_marks.in_phase("grad_sync", getattr(buckets, name)))
    for name in ("start_param_sync", "finish_param_sync"):
        setattr(buckets, name, step_marks.in_phase("optimizer", getattr(buckets, name)))


def _watch_finalizing(finalizing: Any) -> None:
    """Label what shares gradients behind the backward passes, those of tied embeddings and norms, too."""
    finalizing.finalize_model_grads = step_marks.in_phase("grad_sync", finalizing.finalize_model_grads)


def watch_optimizers(optimizer: Any) -> None:
    """End steps."""
    for name in ("MixedPrecisionOptimizer", "FP32Optimizer", "ChainedOptimizer"):
        owner = getattr(optimizer, name)
        owner.step = _step(owner.step)


def _step(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        with step_marks.current().update(ends_step=True):
            return original(*args, **kwargs)

    return step


def _forward_step(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward_step(*args: Any, **kwargs: Any) -> Any:
        marks = step_marks.current()
        microbatch, chunk = int(kwargs.get("current_microbatch") or 0), int(kwargs.get("vp_stage") or 0)
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
