"""JSON of rocprofv3 (ROCm's profiler, ``--output-format json``): each GPU of a process a rank.

A document holds records by kind (kernels, copies, calls of HIP, roctx ranges) and tables of what they number:
kernels, operations, agents.  They are read as the events of PyTorch's profiler that say the same.  A kernel's
``correlation_id`` is that of the HIP call that launched it, where calls were recorded (``--hip-trace``).
Source: ROCm/rocprofiler-sdk, source/docs/rocprofv3-schema.json and serialization.hpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from simcore.errors import InputError
from workloads.imports.fields import WrongFieldError, entries, table, text, whole
from workloads.imports.files import TraceFile, read_object
from workloads.imports.job import ImportedJob
from workloads.imports.kineto.events import event_of
from workloads.imports.kineto.read import KinetoReader
from workloads.imports.recording.columns import GpuRecording
from workloads.imports.recording.job import import_recordings

_TOOL = "rocprofiler-sdk-tool"
_GPU = 2  # among types of agents
_COPIES = {
    "HOST_TO_HOST": "HtoH", "HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH", "DEVICE_TO_DEVICE": "DtoD",
}  # fmt: skip
#: Where ROCm before 7 does not say the stream of a copy: one for each direction, behind all others.
_COPY_STREAMS = 1_000_000


def is_rocprof(_source: TraceFile, head: bytes) -> bool:
    """Whether a file begins like JSON of rocprofv3."""
    return head.lstrip()[:64].startswith(b"{") and f'"{_TOOL}"'.encode() in head[:256]


def import_rocprof(sources: Sequence[TraceFile], skip_bad: bool, gaps: str) -> ImportedJob:
    """Import JSON of rocprofv3; every GPU that a process used is a rank, numbered in file order.

    Errors: InputError with file, record and reason.
    """
    return import_recordings(sources, read_rocprof, skip_bad=skip_bad, gaps=gaps, origin="rocprof")


def read_rocprof(source: TraceFile) -> list[GpuRecording]:
    """The ranks of one process, by agent.

    Errors: InputError: no JSON, truncated, fields of the wrong type, absurd times, no kernels and copies.
    """
    tool = read_object(source, "rocprofv3").get(_TOOL)
    processes = tool if type(tool) is list else [tool]  # a list in later versions
    labels = [
        f"{source.label} (process {n})" if len(processes) > 1 else source.label
        for n, _ in enumerate(processes)
    ]
    found = [
        rank
        for label, process in zip(labels, processes, strict=True)
        for rank in _Process(label, process).ranks()
    ]
    if not found:
        raise InputError(f"{source.label}: no kernels and no copies: nothing to replay")
    return found


class _Process:
    """One process's records."""

    def __init__(self, label: str, content: Any) -> None:
        self._label = label
        if type(content) is not dict:
            raise InputError(f"{label}: {_TOOL} is no object")
        self._readers: dict[int, KinetoReader] = {}
        try:
            self._records = table(content, "buffer_records")
            strings = table(content, "strings")
            self._operations = [
                entries(kind, "operations", "names", lambda name: type(name) is str)
                for kind in entries(strings, "buffer_records", "kinds of records", _is_object)
            ]
            self._ranges = {
                whole(entry, "key", -1): text(entry, "value")
                for entry in entries(strings, "marker_api", "ranges", _is_object)
            }
            self._kernels = {
                whole(entry, "kernel_id", -1): text(entry, "formatted_kernel_name")
                for entry in entries(content, "kernel_symbols", "kernels", _is_object)
            }
            self._gpus = {
                _handle(agent, "id"): agent
                for agent in entries(content, "agents", "agents", _is_object)
                if whole(agent, "type", 0) == _GPU
            }
        except WrongFieldError as error:
            raise InputError(f"{label}: {error}") from None

    def ranks(self) -> list[GpuRecording]:
        """A recording of each GPU that did anything."""
        for kind, read in (("kernel_dispatch", self._kernel), ("memory_copy", self._copy)):
            for number, record in self._of_kind(kind):
                device, event = self._read(kind, number, record, read)
                if device not in self._readers:
                    number_of = list(self._gpus).index(device) if device in self._gpus else device
                    self._readers[device] = KinetoReader(f"{self._label} (GPU {number_of})")
                self._readers[device].take(number, [event_of(event)])
        for kind, call in (("hip_api", self._call), ("marker_api", self._range)):
            for number, record in self._of_kind(kind):
                event = self._read(kind, number, record, call)
                for reader in self._readers.values() if event else ():
                    reader.take(number, [event_of(event)])
        return [self._readers[device].finish(self._header(device)) for device in sorted(self._readers)]

    def _of_kind(self, kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            yield from enumerate(entries(self._records, kind, "records", _is_object))
        except WrongFieldError as error:
            raise InputError(f"{self._label}: buffer_records {error}") from None

    def _read(self, kind: str, number: int, record: dict[str, Any], read: Any) -> Any:
        try:
            return read(record)
        except WrongFieldError as error:
            raise InputError(f"{self._label}: {kind} {number} {error}") from None

    def _header(self, device: int) -> dict[str, Any]:
        agent = self._gpus.get(device, {})
        name, units = agent.get("product_name"), agent.get("cu_count")
        return {"deviceProperties": [{"name": name or "", "numSms": units if type(units) is int else 0}]}

    def _event(self, record: dict[str, Any], category: str, name: str, **more: Any) -> dict[str, Any]:
        start, end = whole(record, "start_timestamp", 0), whole(record, "end_timestamp", 0)
        args = {"correlation": whole(table(record, "correlation_id"), "internal", 0), **more}
        thread = whole(record, "thread_id", 0)
        return {
            "ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread, "args": args,
            "ts": _us(start), "dur": _us(end - start),
        }  # fmt: skip

    def _kernel(self, record: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        launch = table(record, "dispatch_info")
        device, kernel = _handle(launch, "agent_id"), whole(launch, "kernel_id", -1)
        stream = record if "stream_id" in record else launch
        name = self._kernels.get(kernel) or f"kernel {kernel}"
        return device, self._event(
            record, "kernel", name, device=device,
            stream=_handle(stream, "stream_id" if stream is record else "queue_id"),
        )  # fmt: skip

    def _copy(self, record: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        source, target = _handle(record, "src_agent_id"), _handle(record, "dst_agent_id")
        device = source if source in self._gpus else target
        operation = whole(record, "operation", 0)
        way = self._operation(record).removeprefix("MEMORY_COPY_")
        known = "stream_id" in record
        return device, self._event(
            record, "gpu_memcpy", f"Memcpy {_COPIES.get(way, way)}", device=device,
            stream=_handle(record, "stream_id") if known else _COPY_STREAMS + operation,
            bytes=whole(record, "bytes", 0),
        )  # fmt: skip

    def _call(self, record: dict[str, Any]) -> dict[str, Any]:
        return self._event(record, "hip_runtime", self._operation(record))

    def _range(self, record: dict[str, Any]) -> dict[str, Any] | None:
        name = self._ranges.get(whole(table(record, "correlation_id"), "internal", -1))
        return self._event(record, "user_annotation", name) if name else None

    def _operation(self, record: dict[str, Any]) -> str:
        kind, operation = whole(record, "kind", -1), whole(record, "operation", -1)
        if 0 <= kind < len(self._operations) and 0 <= operation < len(self._operations[kind]):
            return str(self._operations[kind][operation])
        return f"operation {operation} of kind {kind}"


def _is_object(value: Any) -> bool:
    return type(value) is dict


def _handle(fields: dict[str, Any], key: str) -> int:
    return whole(table(fields, key), "handle", 0)


def _us(ns: int) -> str:
    """A time as decimal text in us, without loss."""
    return f"{'-' if ns < 0 else ''}{abs(ns) // 1000}.{abs(ns) % 1000:03}"
