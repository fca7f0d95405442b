"""Where a script's steps, forwards and backwards begin and end, seen from torch's own hooks.

Note [Steps of a script]
    A step ends with ``optimizer.step()``.  Several optimizers that step one after the other, without a
    forward or backward between, end one step together: as many as the first step had.  A script that says
    ``with simcore_step():`` is believed instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from workloads.tracing.recorder import Recorder
from workloads.tracing.script import marks

#: The marks of the rank being run.
active: StepMarks | None = None

#: Parts of module names that wrappers add.
WRAPPERS = ("module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")


class StepDone(BaseException):
    """Ends the script once the step is recorded; no ``except Exception`` of the script stops it."""


def install() -> None:
    """Wrap ``torch.autograd.backward`` and ``grad``, once per process."""
    for name in ("backward", "grad"):
        setattr(torch.autograd, name, _seen(getattr(torch.autograd, name)))


def _seen(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if active is None:
            return original(*args, **kwargs)
        active.backward_begins()
        result = original(*args, **kwargs)
        active.backward_ends()
        return result

    return backward


class StepMarks:
    """Drives a recorder through one step of a script; ``keep`` is the step to record."""

    def __init__(self, recorder: Recorder, keep: int, on_start: Callable[[StepMarks], None]) -> None:
        self.recorder = recorder
        self.step = 0
        self.roots: dict[int, torch.nn.Module] = {}
        self.optimizers: dict[int, Any] = {}
        self.microbatches = 0
        self.optimizer_steps = 0
        self._keep = keep
        self._on_start = on_start
        self._marked = False
        self._depth = 0
        self._steps_now = 0
        self._steps_known = 0
        self._backwards_known = 0
        self._in_forward = False
        self._in_action = False
        self._in_update = False
        self._handles: list[Any] = []

    def __enter__(self) -> StepMarks:
        global active
        active = self
        marks.listener = self._marked_step
        self.recorder.labels.on_outermost = self._forward_begins
        self._handles = [
            torch_optimizer.register_optimizer_step_pre_hook(self._optimizer_begins),
            torch_optimizer.register_optimizer_step_post_hook(self._optimizer_ends),
        ]
        if self._keep == 0:
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        global active
        active = None
        marks.listener = None
        self.recorder.labels.on_outermost = None
        for handle in self._handles:
            handle.remove()

    def _start(self) -> None:
        self._on_start(self)
        self.recorder.recording = True
        self._begin("begin", "fwd")

    def _begin(self, kind: str, phase: str, microbatch: int = -1, chunk: int = 0) -> None:
        self.recorder.begin_segment(kind, microbatch, chunk, phase)

    def action_begins(self, kind: str, phase: str, microbatch: int, chunk: int) -> None:
        """A pipeline schedule runs one microbatch through one model chunk."""
        self._new_phase_of_step()
        self._in_action, self._in_forward = True, False
        self._begin(kind, phase, microbatch, chunk)

    def action_ends(self) -> None:
        """What follows are exchanges with other stages."""
        self._in_action = False
        self._begin("exchange", self.recorder.labels.segment_phase)

    def pipeline_begins(self) -> None:
        """A pipeline schedule starts, maybe with receiving what it will run forward."""
        self._new_phase_of_step()

    def pipeline_ends(self) -> None:
        """A pipeline schedule has run all microbatches."""
        self._in_action = False
        self._begin("finish", "optimizer")

    def _forward_begins(self, module: torch.nn.Module) -> None:
        if self._depth or not any(True for _ in module.parameters()):
            return
        if id(module) not in self.roots:
            self.roots[id(module)] = module
            self.recorder.labels.name_modules(module, WRAPPERS)
        if self._in_action:
            return
        self._new_phase_of_step()
        if not self._in_forward:
            self._in_forward = True
            self._begin("fwd", "fwd", self.microbatches)

    def backward_begins(self) -> None:
        """A backward pass starts, maybe inside another."""
        self._depth += 1
        if self._depth > 1 or self._in_action:
            return
        self._new_phase_of_step()
        self._in_forward = False
        self._begin("bwd", "bwd", self.microbatches)

    def backward_ends(self) -> None:
        """The backward pass that started last is over."""
        self._depth -= 1
        if self._depth:
            return
        self.recorder.communication.finish_futures()
        if self._in_action:
            return
        self.microbatches += 1
        last = self.microbatches >= self._backwards_known
        self._begin("finish" if last else "begin", "optimizer" if last else "fwd")

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        self.optimizers[id(optimizer)] = optimizer
        self._in_forward = False
        self._begin("optimizer", "optimizer")

    def _optimizer_ends(self, *_: Any) -> None:
        self._steps_now += 1
        self.optimizer_steps += 1
        if self._marked or self._in_update:
            self._begin("finish", "optimizer")
        elif self._steps_now >= max(self._steps_known, 1):
            # In the first step nobody knows how many optimizers follow: it ends when a forward begins.
            if self._steps_known or self._keep == 0:
                self._step_ends()
            else:
                self._begin("finish", "optimizer")

    @contextmanager
    def update(self, *, ends_step: bool) -> Iterator[None]:
        """A framework's own update: optimizers, and what it does behind them."""
        self._in_update = True
        try:
            yield
        finally:
            self._in_update = False
        if ends_step and not self._marked:
            self._step_ends()

    def _new_phase_of_step(self) -> None:
        """A forward or backward after the first step's optimizers: the next step has begun before."""
        if self._steps_now and not self._steps_known and not self._marked:
            self._steps_known = self._steps_now
            self._step_ends()

    def _marked_step(self, begins: bool) -> None:
        if begins:
            self._marked = True
            if self.step == self._keep and not self.recorder.recording:
                self._start()
        else:
            self._step_ends()

    def _step_ends(self) -> None:
        self._backwards_known = self.microbatches
        if self.step == self._keep:
            self.recorder.recording = False
            raise StepDone
        self.step += 1
        self.microbatches = self._steps_now = 0
        self._in_forward = False
        if self.step == self._keep and not self._marked:
            self._start()
