"""What torchtitan 0.3.0 asks of a GPU, of data or of a later torch, for a run on shapes."""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules
from torch.nn.functional import scaled_dot_product_attention
from torchtitan.distributed import pipeline_parallel
from torchtitan.models.common import attention, decoder
from torchtitan.trainer import Trainer

from workloads.tracing import simcore_step

VERSION = "0.3.0"


def install() -> None:
    """Patch, once per process.  RuntimeError for another version of torchtitan."""
    found = importlib.metadata.version("torchtitan")
    if found != VERSION:
        raise RuntimeError(f"these stand-ins are for torchtitan {VERSION}, not {found}")
    attention.FlexAttention.forward = flex_attention
    decoder.Decoder.get_attention_masks = lambda _self, **_: None
    Trainer.train_step = _marked(Trainer.train_step)
    if not hasattr(dist, "set_timeout"):  # of a later torch
        distributed: Any = dist
        distributed.set_timeout = lambda *_args, **_kwargs: None
    if "arg_mbs" not in inspect.signature(schedules.PipelineScheduleSingle.step).parameters:
        kinds: tuple[Any, ...] = (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti)
        for kind in kinds:
            kind.step = step
        _without_unknown_options(pipeline_parallel)


def _marked(train_step: Any) -> Any:
    """Model parts have an optimizer each: torchtitan says itself where its steps are."""

    def marked(self: Any, data_iterator: Any) -> None:
        with simcore_step():
            train_step(self, data_iterator)

    return marked


def flex_attention(
    self: Any,  # noqa: ARG001
    q_BLNH: torch.Tensor,  # noqa: N803 (torchtitan's names: its sharding plans use them)
    k_BLNH: torch.Tensor,  # noqa: N803
    v_BLNH: torch.Tensor,  # noqa: N803
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    **_: Any,
) -> torch.Tensor:
    """``FlexAttention.forward`` as causal attention: block masks are made from values, and its kernel is
    compiled.
    """
    query, key, value = (one.transpose(1, 2) for one in (q_BLNH, k_BLNH, v_BLNH))
    found = scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa
    )
    return found.transpose(1, 2)


def step(
    self: Any,
    *,
    arg_mbs: list[Any] | None = None,
    kwarg_mbs: list[Any] | None = None,
    target_mbs: list[Any] | None = None,
    losses: list[Any] | None = None,
    loss_kwargs: dict[str, Any] | None = None,
    return_outputs: bool = True,
) -> None:
    """A schedule's ``step`` of a later torch: microbatches come split already."""
    for stage in getattr(self, "_stages", None) or [self._stage]:
        stage.has_backward = self._has_backward
        stage.clear_runtime_states()
    self._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs=loss_kwargs)


def _without_unknown_options(module: Any) -> None:
    """Schedules take an option of a later torch, whose value here is torch's behaviour without it."""
    original = module.get_schedule_class

    def get_schedule_class(name: str) -> Any:
        found = original(name)
        known = inspect.signature(found.__init__).parameters
        if "backward_requires_autograd" in known or not issubclass(found, schedules.PipelineScheduleMulti):
            return found

        class Adapted(found):  # type: ignore[misc,valid-type]
            def __init__(self, *args: Any, backward_requires_autograd: bool = True, **kwargs: Any) -> None:
                del backward_requires_autograd
                super().__init__(*args, **kwargs)

        Adapted.__name__ = found.__name__
        return Adapted

    module.get_schedule_class = get_schedule_class


class Tokens:
    """A data loader of tokens without values: ``rows`` sequences of ``length`` at a time."""

    def __init__(self, rows: int, length: int) -> None:
        self._shape = (rows, length)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            inputs, positions, labels = (torch.zeros(self._shape, dtype=torch.long) for _ in range(3))
            yield {"input": inputs, "positions": positions}, labels

    def state_dict(self) -> dict[str, Any]:
        """Nothing is saved."""
        return {}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        """Nothing is loaded."""


class Tokenizer:
    """A tokenizer that is never asked to tokenize."""

    bos_id = eos_id = pad_id = 0


class _Built:
    """A configuration that builds what is there already."""

    def __init__(self, what: Any) -> None:
        self._what = what

    def build(self, **_: Any) -> Any:
        return self._what


def leave_out(config: Any) -> None:
    """Switch off in a ``Trainer.Config`` what does not belong to a training step."""
    parallel, training = config.parallelism, config.training
    pipelined = parallel.pipeline_parallel_degree > 1
    rows = parallel.pipeline_parallel_microbatch_size if pipelined else training.local_batch_size
    object.__setattr__(config, "dataloader", _Built(Tokens(rows, training.seq_len)))
    object.__setattr__(config, "tokenizer", _Built(Tokenizer()))
    if parallel.spmd_backend == "spmd_types":  # needs a later torch; the collectives are DTensor's either way
        parallel.spmd_backend = "partial_dtensor"
    training.steps = max(training.steps, 100)
    for part in (config.compile, config.checkpoint, config.validator):
        part.enable = False
    # What it would write into the folder that it is called in.
    config.profiler.enable_profiling = config.profiler.enable_memory_snapshot = False
    config.metrics.enable_tensorboard = config.metrics.enable_wandb = False
    config.comm.trace_buf_size = 0
