"""Which format a trace file is in, told by its content, and who imports it.

A format is one entry of :data:`FORMATS`: how the beginning of a file shows it, and the importer, a function
of files, ``skip_bad`` and ``gaps``.  Formats that show one run from two sides are joined (:data:`JOINED`).
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from simcore.errors import InputError, nearest
from workloads.imports.chakra import import_chakra, recognises_chakra
from workloads.imports.execution_trace import recognises_execution_trace
from workloads.imports.execution_trace_import import import_execution_traces, import_pairs
from workloads.imports.job import GAPS, ImportedJob, import_recordings
from workloads.imports.json_events import TraceFile, head_of, trace_files
from workloads.imports.kineto import read_kineto
from workloads.imports.nsys import import_nsys, recognises_nsys
from workloads.imports.pipeline_job import import_pipeline_logs
from workloads.imports.pipeline_log import is_pipeline_log
from workloads.imports.straggler_job import import_worker_logs
from workloads.imports.straggler_trace import is_worker_log
from workloads.imports.trace_viewer import import_trace_viewer, is_trace_viewer
from workloads.imports.xla import import_xla, is_xla_trace

#: (files, skip_bad, gaps) -> job; what they mean: :func:`import_traces`.
ImportFunction = Callable[[Sequence[TraceFile], bool, str], ImportedJob]


@dataclass(frozen=True)
class Importer:
    """A format: what it is called in messages, whether a file is in it, and the function that imports it.

    ``recognises`` gets the file and its first 64 KiB, decompressed.
    """

    title: str
    recognises: Callable[[TraceFile, bytes], bool]
    read: ImportFunction


def import_traces(paths: Sequence[Path], *, skip_bad: bool = False, gaps: str = "recorded") -> ImportedJob:
    """Import the traces at ``paths`` (files, archives or folders), whatever known format they are in.

    ``skip_bad`` leaves out files that cannot be read, naming them in the report.  ``gaps``: launch latencies
    and gaps between kernels as each was recorded, or the typical one of the rank for all; formats that do not
    record launches have none.
    Errors: InputError for a bad file, an unknown format, formats that do not belong together, nothing left.
    """
    if gaps not in GAPS:
        raise InputError(f"unknown gaps {gaps!r}{nearest(gaps, GAPS)}")
    if not paths:
        raise InputError("no trace given")
    by_format: dict[str, list[TraceFile]] = {}
    skipped: list[str] = []
    for path in paths:
        try:
            for source in trace_files(path):
                try:
                    by_format.setdefault(detect_format(source), []).append(source)
                except InputError as error:
                    if not skip_bad:
                        raise
                    skipped.append(str(error))
        except InputError as error:
            if not skip_bad:
                raise
            skipped.append(str(error))
    if not by_format:
        raise InputError("no trace could be read: " + "; ".join(skipped))
    sources = [source for found in by_format.values() for source in found]
    with _uncollected():
        job = _import_function(by_format)(sources, skip_bad, gaps)
    if skipped:
        report = replace(job.report, skipped=(*skipped, *job.report.skipped))
        job = replace(job, report=report)
    return job


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection: a million objects without cycles would be walked again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def detect_format(source: TraceFile) -> str:
    """The name in :data:`FORMATS` of the format that ``source`` is in.

    Errors: InputError when it cannot be read, or no format claims it.
    """
    head = head_of(source)
    if not head:
        raise InputError(f"{source.label}: the file is empty")
    for name, importer in FORMATS.items():
        if importer.recognises(source, head):
            return name
    known = ", ".join(importer.title for importer in FORMATS.values())
    raise InputError(
        f"{source.label}: begins with {head[:16]!r}: no known trace. Known are: {known};"
        " not a profiler trace, or truncated"
    )


def _import_function(by_format: dict[str, list[TraceFile]]) -> ImportFunction:
    if len(by_format) == 1:
        return FORMATS[next(iter(by_format))].read
    joined = JOINED.get(frozenset(by_format))
    if joined is not None:
        return joined
    files = "; ".join(
        f"{FORMATS[name].title}: {', '.join(source.label for source in sources[:3])}"
        + (f" and {len(sources) - 3} more" if len(sources) > 3 else "")
        for name, sources in by_format.items()
    )
    raise InputError(
        f"the files are in formats that do not belong together ({files}); import them one by one"
    )


_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:')
_EVENT = re.compile(rb'^\s*\[\s*(\{[^{}]*"ph"\s*:|\]?\s*$)')


def _is_kineto(_source: TraceFile, head: bytes) -> bool:
    if _EVENTS_KEY.search(head) or _EVENT.match(head):
        return True
    # Its keys may stand after a long header: PyTorch's own header keys tell.
    return any(key in head for key in (b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"'))


def _read_kineto(sources: Sequence[TraceFile], skip_bad: bool, gaps: str) -> ImportedJob:
    return import_recordings(sources, lambda source: [read_kineto(source)], skip_bad=skip_bad, gaps=gaps)


#: By name, in the order in which they are asked.
FORMATS: dict[str, Importer] = {
    "trace_viewer": Importer(
        "trace viewer JSON of XLA's profiler", lambda _, head: is_trace_viewer(head), import_trace_viewer
    ),
    "kineto": Importer("PyTorch profiler (Kineto) JSON", _is_kineto, _read_kineto),
    "execution_trace": Importer(
        "PyTorch execution trace JSON", recognises_execution_trace, import_execution_traces
    ),
    "nsys": Importer("Nsight Systems SQLite", recognises_nsys, import_nsys),
    "chakra": Importer("Chakra execution traces (.et)", recognises_chakra, import_chakra),
    "xla": Importer("XLA thunk traces (JSON)", lambda _, head: is_xla_trace(head), import_xla),
    "pipeline_log": Importer(
        "logs of pipeline stages (JSON)", lambda _, head: is_pipeline_log(head), import_pipeline_logs
    ),
    "worker_log": Importer(
        "op-level logs of workers (CSV, Parquet)", lambda _, head: is_worker_log(head), import_worker_logs
    ),
}

#: Formats that are given together, and who imports them.
JOINED: dict[frozenset[str], ImportFunction] = {frozenset({"kineto", "execution_trace"}): import_pairs}
