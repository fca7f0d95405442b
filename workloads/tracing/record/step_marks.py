"""Where a script's steps, forwards and backwards begin and end, seen from torch's own hooks.

Note [Steps of a script]
    A step ends with ``optimizer.step()``.  Several optimizers that step one after the other, without a
    forward or backward between, end one step together: as many as the first step had.  An optimizer that
    steps before anything was computed makes its states (to load a checkpoint into them), which is no step.
    Where another one steps later for the first time (the generator's behind the discriminator's), the program
    is run again, and a step ends with that one; while one that was made has not stepped, it is waited for.
    Where no optimizer of torch steps, a step ends with the forward or backward pass that follows writing
    parameters behind a backward pass: the program updates them itself.  Sharded parameters are written to be
    gathered, too: where an optimizer was made for them, it is waited for, and only where it has not stepped
    in :data:`_MOST_BACKWARDS` backward passes is the program run again to believe what it writes.  A script
    that says ``with simcore_step():`` is believed instead.  A recipe says everything itself: steps, what runs
    in them
    (:meth:`StepMarks.action_begins`, :meth:`StepMarks.part_begins`) and what its rank holds.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from simcore.graph.graph import MemoryProfile
from workloads.tracing import marks
from workloads.tracing.fake import loader_shares
from workloads.tracing.record import passes
from workloads.tracing.record.rank_facts import RankFacts, held, unstepped
from workloads.tracing.record.recorder import Recorder

#: The marks of the rank being run.
_active: StepMarks | None = None

#: Steps during which an optimizer that was made but has not stepped is waited for.
_PATIENCE = 16

#: Backward passes in which an optimizer of torch is expected to step, and :class:`LaterOptimizer`'s number
#: for a program that updates its parameters without.
_MOST_BACKWARDS, _BY_ITSELF = 256, -1

#: Parts of module names that wrappers add.
WRAPPERS = ("module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")


class StepDone(BaseException):
    """Ends the script once the step is recorded; no ``except Exception`` of the script stops it."""


class LaterOptimizer(BaseException):
    """Ends the script when an optimizer steps for the first time although whole steps were seen:
    ``closing`` counts those that had stepped before (-1: none steps, the program updates by itself).
    """

    def __init__(self, closing: int) -> None:
        super().__init__(closing)
        self.closing = closing


def install() -> None:
    """See every backward pass and every optimizer that is made; once per process."""
    passes.install(lambda: _active)


def current() -> StepMarks:
    """The marks of the rank being run, for what only a rank runs."""
    if _active is None:
        raise RuntimeError("no rank is being traced")
    return _active


def in_phase(phase: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """``original``, whose ops have ``phase`` wherever they are issued."""

    @functools.wraps(original)
    def labelled(*args: Any, **kwargs: Any) -> Any:
        with current().recorder.labels.phase(phase):
            return original(*args, **kwargs)

    return labelled


def _kept(happens: Callable[..., None]) -> Callable[..., None]:
    """``happens``, or kept to happen in each replay of the graph that is being captured."""

    @functools.wraps(happens)
    def method(marks: StepMarks, *args: Any) -> None:
        capture = marks.recorder.capture
        if capture is None:
            happens(marks, *args)
        else:
            capture.events.append((len(capture.ops), functools.partial(method, marks, *args)))

    return method


class StepMarks:
    """Drives a recorder through one step of a script; ``keep`` is the step to record, ``closing`` the place,
    among optimizers in the order of their first steps, of the one that ends a step (None: seen by itself).

    ``by_recipe``: the program says itself what it does, and sets ``describe``, which is asked for the facts
    when the step is over.  ``live_bytes``: of a script, when the step begins.
    """

    def __init__(
        self, recorder: Recorder, keep: int, *, by_recipe: bool = False, closing: int | None = None
    ) -> None:
        self.recorder = recorder
        self.step = self.live_bytes = 0
        self.describe: Callable[[], RankFacts] | None = None
        self.facts = RankFacts(MemoryProfile())
        self.roots: dict[int, torch.nn.Module] = {}
        self.optimizers: dict[int, Any] = {}  # in the order of their first steps
        self.made: list[weakref.ref[Any]] = []
        self.microbatches = 0
        self.optimizer_steps = 0
        #: The step to keep is complete.
        self.done = False
        self._keep, self._closing = keep, closing
        self._patience = _PATIENCE
        self._by_recipe = by_recipe
        self._marked = False
        self._depth = 0
        self._steps_now = self._steps_known = self._backwards_known = 0
        #: Whether a forward or backward pass has begun; optimizers that stepped before.
        self._computed, self._readied = False, set[int]()
        self._in_forward = False
        self._in_action = False
        self._in_update = False
        self._in_schedule = False
        self._pipelined = False
        #: Of each model chunk of a pipeline by hand: forward passes so far.
        self._forwards: dict[int, int] = {}
        self._chunks: dict[int, int] = {}
        #: Storages of parameters, while nobody but the program itself updates them; whether it has.
        self._watched: set[int] = set()
        self._updated = False
        #: Backward passes behind which parameters were written although an optimizer of theirs is awaited.
        self._doubted = 0
        #: Told of a forward pass, in the recorded step, that evaluates a model which is trained.
        self.on_evaluation: Callable[[], None] | None = None
        #: Told of what a backward pass raised: the program may catch it and go on.
        self.on_failure: Callable[[Exception], None] | None = None
        self._trained: set[int] = set()
        self._handles: list[Any] = []

    def __enter__(self) -> StepMarks:
        global _active
        _active = self
        marks.listener = self._marked_step
        if self._by_recipe:
            return self
        self.recorder.labels.on_outermost = self._forward_begins
        self.recorder.communication.on_transfer = self._transfers
        self.recorder.on_write = self._written
        self._handles = [
            torch_optimizer.register_optimizer_step_pre_hook(self._optimizer_begins),
            torch_optimizer.register_optimizer_step_post_hook(self._optimizer_ends),
        ]
        if self._keep == 0:
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        global _active
        _active = None
        marks.listener = None
        self.recorder.labels.on_outermost = self.recorder.communication.on_transfer = None
        self.recorder.on_write = None
        for handle in self._handles:
            handle.remove()

    def _start(self) -> None:
        gc.collect()
        if not self._by_recipe:
            self.facts = held(self.roots.values(), self.optimizers.values())
        self.live_bytes = self.recorder.live_bytes
        self.recorder.recording = True
        self._begin("begin", "fwd")

    def _begin(self, kind: str, phase: str, microbatch: int = -1, chunk: int = 0) -> None:
        self.recorder.begin_segment(kind, microbatch, chunk, phase)

    def part_begins(self, kind: str) -> None:
        """A recipe's ``kind`` of work begins, which is a phase as well."""
        self._begin(kind, kind)

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
        self._in_schedule = True

    def pipeline_ends(self) -> None:
        """A pipeline schedule has run all microbatches."""
        self._in_action = self._in_schedule = False
        self._begin("finish", "optimizer")

    @_kept
    def _forward_begins(self, module: torch.nn.Module) -> None:
        if self._depth or not any(True for _ in module.parameters()):
            return
        if id(module) not in self.roots:
            self.roots[id(module)] = module
            self.recorder.labels.name_modules(module, WRAPPERS)
        if self._in_action:
            return
        self._new_phase_of_step()
        first = id(next(module.parameters()))  # the same below wrappers
        if module.training or torch.is_grad_enabled():
            self._trained.add(first)
        elif self.recorder.recording and self.on_evaluation is not None and first in self._trained:
            self.on_evaluation()
        if self._in_forward:
            return
        self._in_forward = True
        if not self._pipelined:
            self._begin("fwd", "fwd", self.microbatches)
            return
        chunk = self._chunks.setdefault(id(module), len(self._chunks))
        self._begin("fwd", "fwd", self._forwards.get(chunk, 0), chunk)
        self._forwards[chunk] = self._forwards.get(chunk, 0) + 1

    def _transfers(self) -> None:
        """A tensor is sent or received outside of modules: a pipeline by hand passes it to another stage."""
        if self._depth or self._in_action or self._in_schedule:
            return
        self._new_phase_of_step()
        self._pipelined = True
        self._in_forward = False
        segments = self.recorder.result.segments
        if not segments or segments[-1].kind != "exchange":
            self._begin("exchange", self.recorder.labels.segment_phase)

    @_kept
    def backward_begins(self) -> None:
        """A backward pass starts, maybe inside another."""
        self._depth += 1
        if self._depth > 1 or self._in_action:
            return
        self._new_phase_of_step()
        self._in_forward = False
        self._begin("bwd", "bwd", self.microbatches)

    @_kept
    def backward_ends(self) -> None:
        """The backward pass that started last is over."""
        self._depth -= 1
        if self._depth:
            return
        self.recorder.communication.finish_futures()
        if self.recorder.on_write is not None:
            self._watched = {
                one.untyped_storage()._cdata for root in self.roots.values() for one in root.parameters()
            }
        if self._in_action:
            return
        if self._pipelined:
            self.recorder.number_backward()
        self.microbatches += 1
        last = self.microbatches >= self._backwards_known
        self._begin("finish" if last else "begin", "optimizer" if last else "fwd")

    def backward_fails(self, error: Exception) -> None:
        """The backward pass that started last raised ``error``."""
        self._depth -= 1
        if self.on_failure is not None:
            self.on_failure(error)

    @_kept
    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        if id(optimizer) not in self.optimizers:
            before = len(self.optimizers)
            own = not (self._marked or self._in_update or self._by_recipe)
            begun = self.step or self._steps_known or self.done
            if own and begun and before > (_BY_ITSELF if self._closing is None else self._closing):
                raise LaterOptimizer(before)
            self.optimizers[id(optimizer)] = optimizer
        self._watched, self._updated, self.recorder.on_write = set(), False, None
        self._in_forward, self.recorder.host_counts = False, True
        self._begin("optimizer", "optimizer")

    @_kept
    def _optimizer_ends(self, optimizer: Any, *_: Any) -> None:
        self.recorder.host_counts = self._in_update
        if not self._computed and id(optimizer) not in self._readied:
            self._readied.add(id(optimizer))
            return
        self._steps_now += 1
        self.optimizer_steps += 1
        if self._marked or self._in_update:
            self._begin("finish", "optimizer")
        elif self._closing is not None:
            if list(self.optimizers).index(id(optimizer)) == self._closing:
                self._step_ends()
            else:
                self._begin("finish", "optimizer")
        elif self._steps_now >= max(self._steps_known, 1):
            # In the first step nobody knows how many optimizers follow: it ends when a forward begins.
            if self._steps_known or self._keep == 0:
                self._step_ends()
            else:
                self._begin("finish", "optimizer")

    @contextmanager
    def update(self, *, ends_step: bool) -> Iterator[None]:
        """A framework's own update: optimizers, and what it does behind them; the outermost ends a step."""
        if self._in_update:
            yield
            return
        self._in_update = self.recorder.host_counts = True
        try:
            yield
        finally:
            self._in_update = self.recorder.host_counts = False
        if ends_step and not self._marked:
            self._step_ends()

    def _written(self, tensors: Sequence[torch.Tensor]) -> None:
        """The program writes ``tensors``: behind a backward pass, parameters are updated."""
        if self._watched and not self._depth and not self._marked:
            self._updated |= any(one.untyped_storage()._cdata in self._watched for one in tensors)

    def script_ends(self) -> None:
        """The script has run to its end: what was updated last ends a step."""
        first = bool(self._steps_now) and not self._steps_known and self._closing is None
        if (self._updated or first) and not (self._by_recipe or self._marked):
            if self._doubted and not self.optimizers:
                raise LaterOptimizer(_BY_ITSELF)
            self._step_ends()

    def _new_phase_of_step(self) -> None:
        """A forward or backward after the first step's optimizers: the next step has begun before."""
        self._computed = True
        if self._updated:
            self._watched, self._updated = set(), False
            if self._closing == _BY_ITSELF or not (self.optimizers or self._awaits_optimizer()):
                self._step_ends()
            elif self._closing is None:
                self._doubted += 1
                if self._doubted == _MOST_BACKWARDS:
                    raise LaterOptimizer(_BY_ITSELF)
        if self._steps_now and not self._steps_known and not self._marked and self._closing is None:
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
            if not self.done:
                self.done, self.recorder.recording = True, False
                if self.describe is not None:
                    self.facts = self.describe()
                elif not self.step:  # the model was made within the step
                    count = held(self.roots.values(), self.optimizers.values())
                    self.facts = replace(
                        self.facts, num_parameters=count.num_parameters, num_trained=count.num_trained
                    )
            self._patience -= 1
            if self._patience and self._awaits_optimizer():
                self._steps_now = 0
                return
            raise StepDone
        loader_shares.step_ends()
        self.step, self._in_forward = self.step + 1, False
        self.microbatches = self._steps_now = 0
        self._forwards.clear()
        if self.step == self._keep and not self._marked:
            self._start()

    def _awaits_optimizer(self) -> bool:
        """Whether an optimizer was made and has not stepped, of parameters that no other has stepped for."""
        if self._by_recipe or self._marked or self._in_update:
            return False
        made = [one for one in (made() for made in self.made) if one is not None]
        return unstepped(made, self.optimizers.values())
