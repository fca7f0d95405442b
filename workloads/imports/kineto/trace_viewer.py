"""Trace viewer JSON of XLA's profiler (JAX, TensorFlow: ``*.trace.json.gz``): each GPU of a process a rank.

Processes and threads are told by metadata events: "/device:GPU:0" with a thread per stream
("Stream #13(Compute)"), "/host:CPU" with the calls that launched.  Further threads of a device ("XLA Ops",
"Steps") show the same kernels again and are left out.  Source: OpenXLA, xplane_to_trace_events.cc.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from simcore.errors import InputError
from workloads.imports.fields import WrongFieldError, named, table, text, whole
from workloads.imports.files import TraceFile
from workloads.imports.job import ImportedJob
from workloads.imports.json_events import read_events
from workloads.imports.kineto.events import event_of
from workloads.imports.kineto.read import KinetoReader
from workloads.imports.recording.columns import GpuRecording
from workloads.imports.recording.job import import_recordings

_HEAD = re.compile(rb'"name"\s*:\s*"/(?:device:\w+:\d+|host:CPU)')
_DEVICE = re.compile(r"/device:GPU:(\d{1,6})")
_STREAM = re.compile(r"Stream #(\d{1,9})")
_LAUNCH = re.compile(
    r"regs:(\d{1,9}) static_shared:(\d{1,9}) dynamic_shared:(\d{1,9}) grid:([\d,]{1,40}) block:([\d,]{1,40})"
)


def is_trace_viewer(_source: TraceFile, head: bytes) -> bool:
    """Whether a file begins like a trace of XLA's profiler."""
    return b'"traceEvents"' in head and _HEAD.search(head) is not None


def import_trace_viewer(sources: Sequence[TraceFile], skip_bad: bool, gaps: str) -> ImportedJob:
    """Import traces of XLA's profiler; every GPU is a rank, numbered in file order.

    Errors: InputError with file, event number and reason.
    """
    return import_recordings(sources, read_trace_viewer, skip_bad=skip_bad, gaps=gaps, origin="trace_viewer")


def read_trace_viewer(source: TraceFile) -> list[GpuRecording]:
    """The ranks of one trace, by device.

    Errors: InputError: no JSON, truncated, negative or absurd times, no kernels on streams of a GPU.
    """
    return read_viewer_events(source.label, read_events(source, {}))


def read_viewer_events(label: str, events: Iterable[tuple[int, Any]]) -> list[GpuRecording]:
    """The ranks of a trace, by device, from numbered events.  InputError as :func:`read_trace_viewer`."""
    viewer = _Viewer(label)
    for number, event in events:
        if type(event) is not dict:
            raise InputError(f"{label}: event {number} is no object")
        try:
            viewer.take(number, event)
        except WrongFieldError as error:
            raise InputError(f"{label}: event {number} {error}") from None
    return viewer.finish()


class _Viewer:
    """Sorts events by device."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._devices: dict[object, int] = {}
        self._streams: dict[tuple[object, object], int] = {}
        self._readers: dict[int, KinetoReader] = {}
        self._busy: set[int] = set()
        self._num_sms: dict[int, int] = {}

    def take(self, number: int, event: dict[str, Any]) -> None:
        """Sort an event; those that name processes and threads come first."""
        if event.get("ph") == "M":
            self._name(event)
        elif event.get("ph") == "X":
            device = self._devices.get(named(event, "pid"))
            if device is None:
                self._take_host(number, event)
            elif (named(event, "pid"), named(event, "tid")) in self._streams:
                self._busy.add(device)
                self._readers[device].take(number, [event_of(self._activity(event, device))])

    def _name(self, event: dict[str, Any]) -> None:
        name = text(table(event, "args"), "name", "")
        if event.get("name") == "process_name" and (found := _DEVICE.search(name)):
            device = int(found.group(1))
            self._devices[named(event, "pid")] = device
            self._num_sms[device] = whole(table(event, "args"), "core_count", 0)
            self._readers.setdefault(device, KinetoReader(f"{self._label} (GPU {device})"))
        elif event.get("name") == "thread_name" and (found := _STREAM.search(name)):
            self._streams[named(event, "pid"), named(event, "tid")] = int(found.group(1))

    def _activity(self, event: dict[str, Any], device: int) -> dict[str, Any]:
        """An activity in Kineto's words."""
        args, name = table(event, "args"), text(event, "name")
        stream = self._streams[event.get("pid"), event.get("tid")]
        told: dict[str, Any] = {
            "device": device, "stream": stream, "correlation": whole(args, "correlation_id", 0)
        }  # fmt: skip
        launch = _LAUNCH.search(text(args, "kernel_details", ""))
        if launch is not None:
            registers, static, dynamic = (int(text) for text in launch.groups()[:3])
            grid, block = ([int(n) for n in text.split(",") if n] for text in launch.groups()[3:])
            told |= {
                "grid": grid, "block": block, "registers per thread": registers,
                "shared memory": static + dynamic,
            }  # fmt: skip
        lower = name.lower()
        copies = lower.startswith("memcpy") or "memcpy_details" in args
        category = "gpu_memcpy" if copies else "kernel"
        return {**event, "cat": "gpu_memset" if lower.startswith("memset") else category, "args": told}

    def _take_host(self, number: int, event: dict[str, Any]) -> None:
        """A call that launched, or a step (JAX's StepTraceAnnotation): of any device."""
        args = table(event, "args")
        correlation, step = whole(args, "correlation_id", 0), whole(args, "step_num", -1)
        if correlation > 0:
            event = {**event, "cat": "cuda_driver", "args": {"correlation": correlation}}
        elif step >= 0:
            event = {**event, "cat": "user_annotation", "name": f"ProfilerStep#{step}"}
        else:
            return
        for reader in self._readers.values():
            reader.take(number, [event_of(event)])

    def finish(self) -> list[GpuRecording]:
        """The recordings of devices that did anything."""
        if not self._busy:
            what = ", ".join(f"GPU {device}" for device in sorted(self._readers)) or "no GPU"
            raise InputError(f"{self._label}: no kernels on streams of a GPU ({what}): nothing to replay")
        return [
            self._readers[device].finish({"deviceProperties": [{"numSms": self._num_sms[device]}]})
            for device in sorted(self._busy)
        ]
