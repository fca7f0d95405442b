"""One rank's PyTorch profiler trace (Kineto JSON) as columns: GPU activities, host calls, waits, steps.

What is read and what is not: kernels, copies and memsets; calls of the CUDA/HIP runtime and driver;
synchronisation records; ``ProfilerStep`` annotations; CPU ops with recorded shapes.  Other CPU ops and Python
frames only count.  Categories are compared in lower case and by their old names too ("Kernel", "Runtime").
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from simcore.errors import InputError
from simcore.outside import quoted
from simcore.units import PS_PER_US
from workloads.imports.collective_names import issues_communication
from workloads.imports.fields import WrongFieldError, entries, numbered, product, table, text, whole
from workloads.imports.files import TraceFile
from workloads.imports.json_events import read_events
from workloads.imports.op_columns import Names, columns_of
from workloads.imports.recorded import MAX_RANKS, MAX_SPAN_S, Step
from workloads.imports.recording.columns import (
    UNKNOWN,
    Activities,
    ApiCalls,
    CollectiveMeta,
    FrameworkCalls,
    GpuRecording,
    SyncRecord,
)
from workloads.imports.recording.host_notes import HostNotes
from workloads.imports.recording.occupancy import blocks_per_sm
from workloads.imports.recording.steps import StepRanges, longest_steps, steps_by_evidence

#: Notes a call of the framework: its event, start and end (ps after the trace's origin), thread.
TakeCall = Callable[[dict[str, Any], int, int, int], None]

_GPU_CATEGORIES = {
    "kernel": 0, "gpu_kernel": 0, "concurrent_kernel": 0, "mtia_ccp_events": 0, "gpu_memcpy": 1, "memcpy": 1,
    "gpu_memset": 2, "memset": 2,
}  # fmt: skip
#: Calls of a device's API: "runtime", "cuda_runtime", "hip_driver", "xpu_runtime", "privateuse1_driver".
_CALLS = ("runtime", "driver")
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_CLOCK_PS = PS_PER_US  # how much too early an end may have been read: the coarsest resolution
_MAX_SPAN_US = MAX_SPAN_S * 10**6
_MAX_CLOCK_US = 10**17  # three thousand years: no clock of a computer shows more
_MAX_BYTES = 1 << 50
_MAX_DIGITS = 400  # of a time, written out: a double has up to 309 before the point
_MAX_OF_BLOCK = 1 << 31  # threads, registers and bytes of shared memory: no GPU has more
#: What the header says of a GPU, in numbers.
_SIZES = (
    "numSms", "maxThreadsPerMultiprocessor", "regsPerMultiprocessor", "sharedMemPerMultiprocessor",
    "computeMajor",
)  # fmt: skip


def read_kineto(source: TraceFile, take_call: TakeCall | None = None) -> GpuRecording:
    """Read one trace; ``take_call`` gets the framework's calls, for a trace to be joined with.

    Errors: InputError with file, event number and reason: no JSON, truncated, negative or absurd times and
    sizes, no GPU events.
    """
    header: dict[str, Any] = {}
    reader = KinetoReader(source.label, take_call)
    for number, event in read_events(source, header):
        reader.take(number, event)
    return reader.finish(header)


class KinetoReader:
    """A rank's columns under construction; fixed-width arrays, so that a million events stay small."""

    def __init__(self, label: str, take_call: TakeCall | None = None) -> None:
        self.label = label
        self.take_call = take_call
        self.origin_us: int | None = None
        self.first_event = 0
        self.names = Names()
        self._json_codes: dict[str, int] = {}
        self.threads: dict[tuple[object, object], int] = {}
        self.gpu: array[int] = array("q")  # ten numbers an activity, in the order of Activities
        self.grids: array[int] = array("q")  # five numbers an activity, as blocks_per_sm wants them
        self.calls: array[int] = array("q")  # five numbers a call
        self.framework: array[int] = array("q")  # six numbers an op, in the order of FrameworkCalls
        self.syncs: dict[int, SyncRecord] = {}
        self.meta: dict[CollectiveMeta, int] = {}
        self.steps: list[Step] = []
        self.ranges = StepRanges()
        self.optimizers: array[int] = array("q")  # start and end of each step of an optimizer
        self.notes = HostNotes()
        self.categories: set[str] = set()
        self.whole = True

    def take(self, number: int, event: Any) -> None:
        """Sort one event into its column."""
        if type(event) is not dict:
            raise self._bad(number, "is no object")
        if event.get("ph") != "X" or event.get("cat") is None:
            return
        try:
            self._sort(number, event, text(event, "cat").lower())
        except WrongFieldError as error:
            raise self._bad(number, str(error)) from None

    def _sort(self, number: int, event: dict[str, Any], category: str) -> None:
        self.categories.add(category)
        gpu_kind = _GPU_CATEGORIES.get(category)
        if gpu_kind is not None:
            self._take_activity(number, event, gpu_kind)
        elif category.endswith(_CALLS):
            start, end = self._interval(number, event)
            thread = self._thread(event)
            name = self.names.code(text(event, "name"))
            self.calls.extend((start, end, thread, name, whole(table(event, "args"), "correlation", 0)))
        elif category == "cuda_sync":
            self._take_sync(event)
        elif category in ("user_annotation", "cpu_op", "operator"):
            self._take_host_event(number, event, category)
        elif category == "python_function":
            module = self.notes.modules.module(text(event, "name"))
            if module:
                self.notes.modules.add_call(module, *self._interval(number, event), self._thread(event))

    def _take_host_event(self, number: int, event: dict[str, Any], category: str) -> None:
        """A call of the framework, or what a program annotates."""
        name, args = text(event, "name"), table(event, "args")
        step = _STEP.match(name)
        try:
            start, end = self._interval(number, event)
        except InputError:
            if step is None:
                return  # nothing that is replayed
            raise
        thread = self._thread(event)
        if self.take_call is not None:
            self.take_call(event, start, end, thread)
        if step is not None:
            self.steps.append(Step(int(step.group(1)[:18]), start, end))
            return
        phase = self.notes.phases.phase(name)
        if phase:
            self.notes.phases.add(phase, start, end)
            if name.startswith("Optimizer.step#"):
                self.optimizers.extend((start, end))
        else:
            self.ranges.add(name, start, end)
        if issues_communication(name):
            self.notes.communication.add(start, end, thread)
            self._take_p2p(args, start, thread)
        if category == "user_annotation":
            module = self.notes.modules.module(name)
            if module:
                self.notes.modules.add_call(module, start, end, thread)
            return
        sequence = whole(args, "Sequence number", -1)
        if sequence >= 0:
            self.notes.modules.add_op(name, sequence, start, end, thread)
        self._take_framework_call(args, name, start, end, thread)

    def _take_p2p(self, args: dict[str, Any], start: int, thread: int) -> None:
        for towards, sends in (("Dst Rank", True), ("Src Rank", False)):
            peer = whole(args, towards, -1)
            if peer >= 0 and text(args, "Collective name", "").lower() == ("send" if sends else "recv"):
                self.notes.p2p.add(start, thread, text(args, "Process Group Name", ""), peer, sends=sends)

    def _thread(self, event: dict[str, Any]) -> int:
        try:
            return self.threads.setdefault((event.get("pid"), event.get("tid")), len(self.threads))
        except TypeError:  # a list or an object
            raise WrongFieldError("pid and tid", [event.get("pid"), event.get("tid")], "no thread") from None

    def _take_framework_call(
        self, args: dict[str, Any], name: str, start: int, end: int, thread: int
    ) -> None:
        shapes = args.get("Input Dims", args.get("Input dims"))
        if shapes is None:
            return
        if type(shapes) is not list:
            raise WrongFieldError("Input Dims", shapes, "no list")
        types = args.get("Input type", args.get("Input Type"))
        if types is not None and type(types) is not list:
            raise WrongFieldError("Input type", types, "no list")
        self.framework.extend(
            (start, end, thread, self.names.code(name), self._json(shapes), self._json(types))
        )

    def _json(self, value: list[Any] | None) -> int:
        """The number of a value as JSON text."""
        key = repr(value)  # quicker than JSON, and few are different
        code = self._json_codes.get(key)
        if code is None:
            code = self._json_codes[key] = self.names.code(json.dumps(value))
        return code

    def _take_activity(self, number: int, event: dict[str, Any], kind: int) -> None:
        start, end = self._interval(number, event)
        args = table(event, "args")
        # Without arguments, Kineto's own lanes tell: a process for each GPU, a thread for each stream.
        device = numbered(args, "device") if "device" in args else numbered(event, "pid")
        stream = numbered(args, "stream") if "stream" in args else numbered(event, "tid")
        num_bytes = whole(args, "bytes", 0)
        if not 0 <= num_bytes <= _MAX_BYTES:
            raise self._bad(number, f"moves {num_bytes} bytes")
        meta = -1
        if "Collective name" in args:
            known = CollectiveMeta(
                text(args, "Collective name"), text(args, "Process Group Name", ""),
                text(args, "Process Group Ranks", ""), text(args, "dtype", ""),
                whole(args, "In msg nelems", -1), whole(args, "Out msg nelems", -1),
                whole(args, "Group size", -1), whole(args, "Seq", -1),
                whole(args, "Dst Rank" if "Dst Rank" in args else "Src Rank", -1),
            )  # fmt: skip
            meta = self.meta.get(known, -1)
            if meta < 0:
                if max(known.in_elements, known.out_elements) > _MAX_BYTES:
                    raise self._bad(number, f"moves {max(known.in_elements, known.out_elements)} elements")
                meta = self.meta[known] = len(self.meta)
        correlation = whole(args, "correlation", 0)
        name = self.names.code(text(event, "name"))
        self.gpu.extend((start, end, kind, device, stream, correlation, name, num_bytes, meta, number))
        self.grids.extend(
            (
                product(args, "grid"), product(args, "block"), whole(args, "registers per thread", 0),
                whole(args, "shared memory", 0), whole(args, "est. achieved occupancy %", 0),
            )
        )  # fmt: skip

    def _take_sync(self, event: dict[str, Any]) -> None:
        args = table(event, "args")
        correlation = whole(args, "correlation", 0)
        self.syncs[correlation] = SyncRecord(
            text(args, "cuda_sync_kind") if "cuda_sync_kind" in args else text(event, "name", ""),
            correlation,
            whole(args, "stream", UNKNOWN),
            whole(args, "wait_on_stream", UNKNOWN),
            whole(args, "wait_on_cuda_event_record_corr_id", UNKNOWN),
        )

    def _interval(self, number: int, event: dict[str, Any]) -> tuple[int, int]:
        """Start and end in ps after the origin."""
        start_us, start_ps = self._time(number, event, "ts")
        if not -_MAX_CLOCK_US < start_us < _MAX_CLOCK_US:
            raise self._bad(number, f"begins at {start_us:.3g} us: no clock shows that")
        if self.origin_us is None:
            self.origin_us, self.first_event = start_us, number
        length_us, length_ps = self._time(number, event, "dur")
        start_us -= self.origin_us
        if not -_MAX_SPAN_US <= start_us <= _MAX_SPAN_US:
            days, first = abs(start_us) / 8.64e10, f"event {self.first_event} at {self.origin_us} us"
            raise self._bad(number, f"begins {days:.3g} days from the first event ({first})")
        length = length_us * PS_PER_US + length_ps
        if not -_CLOCK_PS <= length <= _MAX_SPAN_US * PS_PER_US:
            raise self._bad(number, f"lasts {length / PS_PER_US:.9g} us")
        start = start_us * PS_PER_US + start_ps
        return start, start + max(0, length)  # clocks are read one after the other: it took no time

    def _time(self, number: int, event: dict[str, Any], key: str) -> tuple[int, int]:
        """A time stamp as whole us and ps, without loss (a double holds no ns of the epoch)."""
        value = event.get(key)
        if type(value) is int:
            return value, 0
        try:
            if type(value) is str and len(value) < _MAX_DIGITS:
                whole, point, fraction = value.partition(".")
                if point and fraction.isdigit():
                    self.whole = False
                    part = int(fraction[:6].ljust(6, "0"))
                    return (int(whole), part) if whole[0] != "-" else (int(whole) - 1, PS_PER_US - part)
                exact = float(value)
                return int(exact // 1), int(exact % 1 * PS_PER_US)
        except (ValueError, OverflowError, IndexError):
            pass
        raise self._bad(
            number, f"has {key} {quoted(value)}, not a time in us" if key in event else f"has no {key}"
        )

    def _bad(self, number: int, reason: str) -> InputError:
        return InputError(f"{self.label}: event {number} {reason}")

    def finish(self, header: dict[str, Any]) -> GpuRecording:
        """The trace, once all events are taken."""
        gpu = columns_of(self.gpu, 10)
        if not gpu.shape[1]:
            what = ", ".join(sorted(self.categories)) or "nothing"
            raise InputError(f"{self.label}: no GPU events (kernels, copies) among {what}: nothing to replay")
        calls = columns_of(self.calls, 5)
        calls = calls[:, np.argsort(calls[0], kind="stable")]
        try:
            rank, world_size, base_ns, device = _told(header)
        except WrongFieldError as error:
            raise InputError(f"{self.label}: the header {error}") from None
        if 0 < world_size <= rank:
            raise InputError(f"{self.label}: is of rank {rank}, but the world has {world_size} ranks")
        self._check_groups(rank)
        steps, told_by = longest_steps(self.steps), ""
        if not steps:
            launched = calls[0][np.isin(calls[4], gpu[5])]
            steps, told_by = steps_by_evidence(
                self.ranges, columns_of(self.optimizers, 2).T, self.notes.phases.backwards(),
                launched if len(launched) else gpu[0],
            )  # fmt: skip
        grids = columns_of(self.grids, 5)
        absurd = ((grids[1:] < 0) | (grids[1:] > _MAX_OF_BLOCK)).any(axis=0)
        if absurd.any():
            raise self._bad(
                int(gpu[9][np.argmax(absurd)]), "has a block of more threads or memory than any GPU"
            )
        return GpuRecording(
            label=self.label, names=self.names.values(),
            gpu=Activities(*(*gpu, grids[0], blocks_per_sm(grids, device))),
            calls=ApiCalls(*calls), origin_us=self.origin_us or 0, base_ns=base_ns,
            resolution_ps=PS_PER_US if self.whole else 1000, rank=rank, world_size=world_size,
            gpu_name=device["name"], num_sms=device["numSms"], syncs=self.syncs, meta=tuple(self.meta),
            framework=FrameworkCalls(*columns_of(self.framework, 6)), notes=self.notes,
            steps=tuple(steps), steps_told_by=told_by,
        )  # fmt: skip

    def _check_groups(self, rank: int) -> None:
        """InputError for a collective of a process group that the rank is not in."""
        for meta in self.meta:
            if rank >= 0 and meta.members and rank not in meta.members:
                raise InputError(
                    f"{self.label}: rank {rank} issues {meta.collective!r} in process group {meta.group!r},"
                    f" whose ranks are {meta.group_ranks}"
                )


def _told(header: dict[str, Any]) -> tuple[int, int, int, dict[str, Any]]:
    """Rank, world size, the begin of the clock in ns and the first GPU, as far as the file's header tells.

    Errors: WrongFieldError.
    """
    world = table(header, "distributedInfo")
    rank, world_size = whole(world, "rank", UNKNOWN), whole(world, "world_size", UNKNOWN)
    for key, value in (("rank", rank), ("world_size", world_size)):
        if not UNKNOWN <= value <= MAX_RANKS:
            raise WrongFieldError(key, value, f"no number up to {MAX_RANKS:,}")
    devices = entries(header, "deviceProperties", "GPUs", lambda device: type(device) is dict)
    device = devices[0] if devices else {}
    sizes = {key: whole(device, key, 0) for key in _SIZES}
    for key, value in sizes.items():
        if not 0 <= value < 1 << 40:
            raise WrongFieldError(key, value, "no size of a GPU")
    return (
        rank,
        world_size,
        whole(header, "baseTimeNanoseconds", 0),
        {**sizes, "name": text(device, "name", "")},
    )
