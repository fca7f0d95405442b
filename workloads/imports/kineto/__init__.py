"""Traces of PyTorch's profiler (Kineto JSON), and what XLA's and ROCm's profilers write."""

import re
from collections.abc import Sequence

from workloads.imports.files import TraceFile
from workloads.imports.formats import Importer, register
from workloads.imports.job import ImportedJob
from workloads.imports.kineto.beside import read_on_all_cores
from workloads.imports.kineto.rocprof import import_rocprof, is_rocprof
from workloads.imports.kineto.trace_viewer import import_trace_viewer, is_trace_viewer
from workloads.imports.kineto.xplane import import_xplanes, is_xplane
from workloads.imports.recording.job import import_recordings

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:')
_EVENT = re.compile(rb'^\s*\[\s*(\{[^{}]*"ph"\s*:|\]?\s*$)')
#: Keys of PyTorch's header, after which the events may stand far behind.
_HEADER = (b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')


def _is_kineto(_source: TraceFile, head: bytes) -> bool:
    """Whether a file begins like a trace of PyTorch's profiler, or like a bare list of its events."""
    begins = _EVENTS_KEY.search(head) or _EVENT.match(head)
    return begins is not None or any(key in head for key in _HEADER)


def _import_kineto(sources: Sequence[TraceFile], skip_bad: bool, gaps: str) -> ImportedJob:
    """Import traces of PyTorch's profiler, one per rank.  Errors: InputError as :func:`read_on_all_cores`."""
    return import_recordings(
        sources, lambda source: [read_on_all_cores(source)], skip_bad=skip_bad, gaps=gaps, origin="kineto"
    )


register(Importer("xplane", "profiles of XLA (.xplane.pb)", is_xplane, import_xplanes))
# The more special first: both begin alike.
register(
    Importer("trace_viewer", "trace viewer JSON of XLA's profiler", is_trace_viewer, import_trace_viewer)
)
register(Importer("rocprof", "JSON of rocprofv3", is_rocprof, import_rocprof))
register(Importer("kineto", "PyTorch profiler (Kineto) JSON", _is_kineto, _import_kineto))
