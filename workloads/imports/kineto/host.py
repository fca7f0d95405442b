"""What the host says in a Kineto trace: ops of the framework, annotations, frames of modules."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray
from workloads.imports.collective_names import issues_communication
from workloads.imports.fields import ABSENT, RefusedError, WrongFieldError, text_of, texts, whole_of, wholes
from workloads.imports.kineto.events import Args, Decoded, TraceEvent, args_of
from workloads.imports.kineto.times import EventClock
from workloads.imports.op_columns import Columns, Names, codes_of
from workloads.imports.recorded import Step
from workloads.imports.recording.columns import FrameworkCalls
from workloads.imports.recording.host_notes import HostNotes, ModuleCalls, PhaseSpans
from workloads.imports.recording.steps import StepRanges, is_step_range

#: Notes calls of the framework: names, arguments, starts and ends (ps after the trace's origin), threads.
NoteCalls = Callable[[list[str], list[Args], IntArray, IntArray, list[int]], None]

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_THREAD = attrgetter("pid", "tid")
_NONE = -1
_IS_STEP = 2


class ThreadNumbers:
    """Threads of the host, numbered in order of appearance."""

    def __init__(self) -> None:
        self._number: dict[tuple[object, object], int] = {}

    def of(self, events: Sequence[TraceEvent]) -> list[int]:
        """The thread of each event.  WrongFieldError where that is a list or an object."""
        try:
            return codes_of(list(map(_THREAD, events)), self._number)
        except TypeError:
            raise WrongFieldError("pid and tid", [events[0].pid, events[0].tid], "no thread") from None

    def joined(self, other: ThreadNumbers) -> IntArray:
        """By number in ``other``: the number here."""
        return np.array(codes_of(list(other._number), self._number), dtype=np.int64)


class HostColumns:
    """Columns under construction.  ``names`` number what they name; the rest is empty before events come."""

    def __init__(
        self, clock: EventClock, names: Names, threads: ThreadNumbers, note_calls: NoteCalls | None
    ) -> None:
        self.notes = HostNotes()
        self.steps: list[Step] = []
        self.ranges = StepRanges()
        self.optimizers: list[tuple[int, int]] = []  # start and end of each step of an optimizer
        self._clock, self._names, self._threads, self._note_calls = clock, names, threads, note_calls
        self._framework = Columns(6)  # in the order of FrameworkCalls
        self._says = _Says()
        self._shapes = Decoded(partial(self._json, key="Input Dims", none=None))
        self._types = Decoded(partial(self._json, key="Input type", none="null"))

    def take(self, events: list[TraceEvent], is_op: npt.NDArray[np.bool_]) -> None:
        """Ops of the framework, and what programs annotate.

        PyTorch annotates NCCL's calls with the shapes of what they send ("nccl:all_to_all"): ops like others.
        """
        called = texts([event.name for event in events], "name")
        args = args_of(events)
        try:
            start, end = self._clock.intervals(events)
        except RefusedError:
            timed = [at for at, event in enumerate(events) if self._is_timed(event)]
            if timed:
                self.take([events[at] for at in timed], is_op[timed])
            return
        threads = self._threads.of(events)
        if self._note_calls is not None:
            self._note_calls(called, args, start, end, threads)
        says = [self._says[name] for name in called]
        for at in [at for at, word in enumerate(says) if word]:
            self._note(events[at], says[at], int(start[at]), int(end[at]), threads[at], is_op=bool(is_op[at]))
        ops = [
            at
            for at, op in enumerate(is_op.tolist())
            if (says[at] != _IS_STEP if op else says[at] and issues_communication(called[at]))
        ]
        if ops:
            columns = np.array((start, end, threads), dtype=np.int64)
            self._take_ops([called[at] for at in ops], [args[at] for at in ops], columns[:, ops])

    def append(self, other: HostColumns, names: IntArray, threads: IntArray) -> None:
        """Append columns whose names and threads have these numbers here."""
        self._framework.append(other._framework, {2: threads, 3: names, 4: names, 5: names})
        self.steps.extend(other.steps)
        self.optimizers.extend(other.optimizers)
        self.ranges.append(other.ranges)
        self.notes.append(other.notes, threads)

    def module_frames(self, events: Sequence[TraceEvent]) -> list[TraceEvent]:
        """Those of some frames of Python that are calls of a module."""
        module = self.notes.modules.module
        return [event for event in events if module(text_of(event.name, "name"))]

    def take_frames(self, events: Sequence[TraceEvent]) -> None:
        """Frames of Python, of which calls of modules count."""
        called, modules = self.module_frames(events), self.notes.modules
        if called:
            start, end = self._clock.intervals(called)
            threads = self._threads.of(called)
            for event, *when in zip(called, start.tolist(), end.tolist(), threads, strict=True):
                modules.add_call(modules.module(event.name), *when)

    def framework(self) -> FrameworkCalls:
        """The ops whose shapes were recorded."""
        return FrameworkCalls(*self._framework.joined())

    def _is_timed(self, event: TraceEvent) -> bool:
        """Whether an event has times; what is no step is not replayed without.  RefusedError for a step."""
        try:
            self._clock.intervals([event])
        except RefusedError:
            if self._says[event.name] == _IS_STEP:
                raise
            return False
        return True

    def _note(self, event: TraceEvent, says: int, start: int, end: int, thread: int, *, is_op: bool) -> None:
        """What the name of an event says."""
        name = event.name
        if says == _IS_STEP:
            found = _STEP.match(name)
            assert found is not None
            self.steps.append(Step(int(found.group(1)[:18]), start, end))
            return
        phase = self.notes.phases.phase(name)
        if phase:
            self.notes.phases.add(phase, start, end)
            if name.startswith("Optimizer.step#"):
                self.optimizers.append((start, end))
        else:
            self.ranges.add(name, start, end)
        if issues_communication(name):
            self.notes.communication.add(start, end, thread)
            self._take_p2p(args_of([event])[0], start, thread)
        module = "" if is_op else self.notes.modules.module(name)
        if module:
            self.notes.modules.add_call(module, start, end, thread)

    def _take_p2p(self, args: Args, start: int, thread: int) -> None:
        for towards, peer, kind in (("Dst Rank", args.receiver, "send"), ("Src Rank", args.sender, "recv")):
            rank = whole_of(None if peer is ABSENT else peer, towards, -1)
            called = "" if args.collective is ABSENT else args.collective
            if rank >= 0 and text_of(called, "Collective name", "").lower() == kind:
                group = text_of(args.group, "Process Group Name", "")
                self.notes.p2p.add(start, thread, group, rank, sends=kind == "send")

    def _take_ops(self, called: list[str], args: list[Args], when: IntArray) -> None:
        """Ops of the framework, ``when`` in rows of starts, ends and threads."""
        sequence = wholes([given.sequence for given in args], "Sequence number", -1)
        if (sequence >= 0).any():
            self.notes.modules.add_ops(called, np.array((*when, sequence), dtype=np.int64))
        shapes = self._shapes.numbers(args, "shapes", "shapes_of_old")
        shaped = [at for at, code in enumerate(shapes) if code != _NONE]
        if shaped:
            rows = (
                self._names.codes([called[at] for at in shaped]),
                [shapes[at] for at in shaped],
                self._types.numbers([args[at] for at in shaped], "types", "types_of_old"),
            )
            self._framework.add((*when[:, shaped], *rows))

    def _json(self, value: Any, key: str, none: str | None) -> int:
        """The number of a list as JSON text, or of ``none``."""
        if value is None:
            return _NONE if none is None else self._names.code(none)
        if type(value) is not list:
            raise WrongFieldError(key, value, "no list")
        return self._names.code(json.dumps(value))


class _Says(dict[str, int]):
    """By name of an event: that it is a step, says anything else, or nothing."""

    def __missing__(self, name: str) -> int:
        modules, phases = ModuleCalls(), PhaseSpans()
        says = phases.phase(name) or issues_communication(name) or modules.module(name) or is_step_range(name)
        self[name] = _IS_STEP if _STEP.match(name) else int(bool(says))
        return self[name]
