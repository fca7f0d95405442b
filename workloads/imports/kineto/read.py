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
from simcore.units import PS_PER_US
from workloads.imports.collective_names import issues_communication
from workloads.imports.files import TraceFile
from workloads.imports.json_events import arguments, numbered, product, read_events, whole
from workloads.imports.op_columns import Names, columns_of
from workloads.imports.recorded import MAX_SPAN_S, Step
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
        if event.get("ph") != "X":
            return
        category = event.get("cat")
        if not isinstance(category, str):
            return
        category = category.lower()
        self.categories.add(category)
        gpu_kind = _GPU_CATEGORIES.get(category)
        if gpu_kind is not None:
            self._take_activity(number, event, gpu_kind)
        elif category.endswith(_CALLS):
            start, end = self._interval(number, event)
            thread = self._thread(event)
            name = self.names.code(str(event.get("name", "")))
            self.calls.extend((start, end, thread, name, whole(arguments(event).get("correlation"), 0)))
        elif category == "cuda_sync":
            self._take_sync(event)
        elif category in ("user_annotation", "cpu_op", "operator"):
            self._take_host_event(number, event, category)
        elif category == "python_function":
            module = self.notes.modules.module(str(event.get("name", "")))
            if module:
                self.notes.modules.add_call(module, *self._interval(number, event), self._thread(event))

    def _take_host_event(self, number: int, event: dict[str, Any], category: str) -> None:
        """A call of the framework, or what a program annotates."""
        text = str(event.get("name", ""))
        step = _STEP.match(text)
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
        phase = self.notes.phases.phase(text)
        if phase:
            self.notes.phases.add(phase, start, end)
            if text.startswith("Optimizer.step#"):
                self.optimizers.extend((start, end))
        else:
            self.ranges.add(text, start, end)
        if issues_communication(text):
            self.notes.communication.add(start, end, thread)
            self._take_p2p(arguments(event), start, thread)
        if category == "user_annotation":
            module = self.notes.modules.module(text)
            if module:
                self.notes.modules.add_call(module, start, end, thread)
            return
        args = arguments(event)
        sequence = whole(args.get("Sequence number"), -1)
        if sequence >= 0:
            self.notes.modules.add_op(text, sequence, start, end, thread)
        self._take_framework_call(args, text, start, end, thread)

    def _take_p2p(self, args: dict[str, Any], start: int, thread: int) -> None:
        for towards, sends in (("Dst Rank", True), ("Src Rank", False)):
            peer = whole(args.get(towards), -1)
            if peer >= 0 and str(args.get("Collective name", "")).lower() == ("send" if sends else "recv"):
                self.notes.p2p.add(start, thread, str(args.get("Process Group Name", "")), peer, sends=sends)

    def _thread(self, event: dict[str, Any]) -> int:
        return self.threads.setdefault((event.get("pid"), event.get("tid")), len(self.threads))

    def _take_framework_call(
        self, args: dict[str, Any], name: str, start: int, end: int, thread: int
    ) -> None:
        shapes = args.get("Input Dims", args.get("Input dims"))
        if type(shapes) is not list:
            return
        types = args.get("Input type", args.get("Input Type"))
        codes = [self.names.code(text) for text in (name, json.dumps(shapes), json.dumps(types))]
        self.framework.extend((start, end, thread, *codes))

    def _take_activity(self, number: int, event: dict[str, Any], kind: int) -> None:
        start, end = self._interval(number, event)
        args = arguments(event)
        device = numbered(args.get("device", event.get("pid")))
        stream = numbered(args.get("stream", event.get("tid")))
        num_bytes = whole(args.get("bytes"), 0)
        if not 0 <= num_bytes <= _MAX_BYTES:
            raise self._bad(number, f"moves {num_bytes} bytes")
        meta = -1
        if "Collective name" in args:
            known = CollectiveMeta(
                str(args["Collective name"]), str(args.get("Process Group Name", "")),
                str(args.get("Process Group Ranks", "")), str(args.get("dtype", "")),
                whole(args.get("In msg nelems"), -1), whole(args.get("Out msg nelems"), -1),
                whole(args.get("Group size"), -1), whole(args.get("Seq"), -1),
                whole(args.get("Dst Rank", args.get("Src Rank")), -1),
            )  # fmt: skip
            meta = self.meta.setdefault(known, len(self.meta))
        correlation = whole(args.get("correlation"), 0)
        name = self.names.code(str(event.get("name", "")))
        self.gpu.extend((start, end, kind, device, stream, correlation, name, num_bytes, meta, number))
        self.grids.extend(
            (
                product(args.get("grid")), product(args.get("block")),
                whole(args.get("registers per thread"), 0), whole(args.get("shared memory"), 0),
                whole(args.get("est. achieved occupancy %"), 0),
            )
        )  # fmt: skip

    def _take_sync(self, event: dict[str, Any]) -> None:
        args = arguments(event)
        correlation = whole(args.get("correlation"), 0)
        self.syncs[correlation] = SyncRecord(
            str(args.get("cuda_sync_kind", event.get("name", ""))),
            correlation,
            whole(args.get("stream"), UNKNOWN),
            whole(args.get("wait_on_stream"), UNKNOWN),
            whole(args.get("wait_on_cuda_event_record_corr_id"), UNKNOWN),
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
            if type(value) is str:
                whole, point, fraction = value.partition(".")
                if point and fraction.isdigit():
                    self.whole = False
                    part = int(fraction[:6].ljust(6, "0"))
                    return (int(whole), part) if whole[0] != "-" else (int(whole) - 1, PS_PER_US - part)
                exact = float(value)
                return int(exact // 1), int(exact % 1 * PS_PER_US)
        except (ValueError, OverflowError, IndexError):
            pass
        raise self._bad(number, f"has {key} {value!r}, not a time in us" if key in event else f"has no {key}")

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
        dist, devices = header.get("distributedInfo"), header.get("deviceProperties")
        dist = dist if isinstance(dist, dict) else {}
        rank, world_size = whole(dist.get("rank"), UNKNOWN), whole(dist.get("world_size"), UNKNOWN)
        if 0 < world_size <= rank:
            raise InputError(f"{self.label}: is of rank {rank}, but the world has {world_size} ranks")
        self._check_groups(rank)
        device = devices[0] if isinstance(devices, list) and devices else None
        device = device if isinstance(device, dict) else {}
        steps, told_by = longest_steps(self.steps), ""
        if not steps:
            launched = calls[0][np.isin(calls[4], gpu[5])]
            steps, told_by = steps_by_evidence(
                self.ranges, columns_of(self.optimizers, 2).T, self.notes.phases.backwards(),
                launched if len(launched) else gpu[0],
            )  # fmt: skip
        grids = columns_of(self.grids, 5)
        return GpuRecording(
            label=self.label, names=self.names.values(),
            gpu=Activities(*(*gpu, grids[0], blocks_per_sm(grids, device))),
            calls=ApiCalls(*calls), origin_us=self.origin_us or 0,
            base_ns=whole(header.get("baseTimeNanoseconds"), 0),
            resolution_ps=PS_PER_US if self.whole else 1000,
            rank=rank, world_size=world_size, gpu_name=str(device.get("name", "")),
            num_sms=max(0, whole(device.get("numSms"), 0)), syncs=self.syncs, meta=tuple(self.meta),
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
