"""Profiles of XLA (``*.xplane.pb``: JAX, TensorFlow), as the trace viewer's events of the same run.

A plane per device ("/device:GPU:0") with a line per stream ("Stream #13(Compute)"), and one of the host with
a line per thread; names and texts stand once per plane.  Source: OpenXLA, tsl/profiler/protobuf/xplane.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from simcore.errors import InputError
from workloads.imports.files import TraceFile, read_whole
from workloads.imports.job import ImportedJob
from workloads.imports.kineto.trace_viewer import read_viewer_events
from workloads.imports.protobuf import ONE_OF, message_classes
from workloads.imports.recording.columns import GpuRecording
from workloads.imports.recording.job import import_recordings

_MESSAGES = {
    "Stat": [
        (1, "metadata_id", "int64", ""), (2, "double_value", "double", ONE_OF),
        (3, "uint64_value", "uint64", ONE_OF), (4, "int64_value", "int64", ONE_OF),
        (5, "str_value", "string", ONE_OF), (6, "bytes_value", "bytes", ONE_OF),
        (7, "ref_value", "uint64", ONE_OF),
    ],
    "Event": [
        (1, "metadata_id", "int64", ""), (2, "offset_ps", "int64", ""), (3, "duration_ps", "int64", ""),
        (4, "stats", "Stat", "many"),
    ],
    "Line": [
        (1, "id", "int64", ""), (2, "name", "string", ""), (3, "timestamp_ns", "int64", ""),
        (4, "events", "Event", "many"), (11, "display_name", "string", ""),
    ],
    "Metadata": [(1, "id", "int64", ""), (2, "name", "string", "")],
    "Named": [(1, "key", "int64", ""), (2, "value", "Metadata", "")],  # an entry of a map
    "Plane": [
        (1, "id", "int64", ""), (2, "name", "string", ""), (3, "lines", "Line", "many"),
        (4, "event_metadata", "Named", "many"), (5, "stat_metadata", "Named", "many"),
        (6, "stats", "Stat", "many"),
    ],
    "Space": [(1, "planes", "Plane", "many"), (2, "errors", "string", "many")],
}  # fmt: skip
#: Of what events say, what the trace viewer's importer reads.
_READ = ("correlation_id", "kernel_details", "memcpy_details", "step_num")


def is_xplane(source: TraceFile, _head: bytes) -> bool:
    """Whether a file is a profile of XLA, by its name."""
    return source.label.endswith((".xplane.pb", ".xplane.pb.gz"))


def import_xplanes(sources: Sequence[TraceFile], skip_bad: bool, gaps: str) -> ImportedJob:
    """Import profiles of XLA; every GPU is a rank, numbered in file order.

    Errors: InputError with file and reason.
    """
    return import_recordings(sources, read_xplane, skip_bad=skip_bad, gaps=gaps, origin="xplane")


def read_xplane(source: TraceFile) -> list[GpuRecording]:
    """The ranks of one profile, by device.

    Errors: InputError: no such message, negative or absurd times, no kernels on streams of a GPU.
    """
    from google.protobuf.message import DecodeError

    space = _messages()["Space"]()
    try:
        space.ParseFromString(read_whole(source))
    except DecodeError as error:
        raise InputError(f"{source.label}: {error}: no profile of XLA, or truncated") from None
    if not space.planes:
        raise InputError(f"{source.label}: has no planes: no profile of XLA")
    return read_viewer_events(source.label, enumerate(_events(space)))


@cache
def _messages() -> dict[str, Any]:
    return message_classes("XLA profiles", _MESSAGES)


def _events(space: Any) -> Iterator[dict[str, Any]]:
    """The trace viewer's events; each plane is a process, each line a thread."""
    for process, plane in enumerate(space.planes):
        texts = {entry.key: entry.value.name for entry in plane.stat_metadata}
        yield _called("process_name", process, 0, plane.name, **_told(texts, plane.stats, ("core_count",)))
        for line in plane.lines:
            yield _called("thread_name", process, line.id, line.display_name or line.name)
        names = {entry.key: entry.value.name for entry in plane.event_metadata}
        for line in plane.lines:
            begin_ps = line.timestamp_ns * 1000
            for event in line.events:
                yield {
                    "ph": "X", "pid": process, "tid": line.id, "name": names.get(event.metadata_id, ""),
                    "ts": _us(begin_ps + event.offset_ps), "dur": _us(event.duration_ps),
                    "args": _told(texts, event.stats, _READ),
                }  # fmt: skip


def _called(what: str, process: int, thread: int, name: str, **more: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name, **more}}


def _told(texts: dict[int, str], stats: Any, wanted: Sequence[str]) -> dict[str, Any]:
    """What ``stats`` say of ``wanted`` things; ``texts`` are names of things, and what they refer to."""
    told = {}
    for stat in stats:
        name, kind = texts.get(stat.metadata_id, ""), stat.WhichOneof(ONE_OF)
        if name in wanted and kind is not None:
            value = getattr(stat, kind)
            told[name] = texts.get(value, "") if kind == "ref_value" else value
    return told


def _us(ps: int) -> str:
    """A time as decimal text in us, without loss."""
    return f"{'-' if ps < 0 else ''}{abs(ps) // 10**6}.{abs(ps) % 10**6:06}"
