"""Which format a trace file is in, told by its content, and who imports it.

Note [A new format].  An importer is a folder that registers an :class:`Importer` when it is loaded, and a
name in the line of ``workloads/imports/__init__.py`` that loads the others.  It says two things:

``recognises(source, head)`` tells the format by the file's first 64 KiB, decompressed, or by its name;
formats are asked in the order of registration, and the first that says yes has the file.
``read(sources, skip_bad, gaps)`` makes one :class:`ImportedJob` of all files of a call in the format:
a graph with one program per rank, whose ops last what was recorded; what was recorded of each rank, for
comparison; and a report of what was found, inferred and is missing.  It raises InputError with file, position
and reason, and with ``skip_bad`` goes on without the file (:func:`~workloads.imports.files.read_each`).

There are three ways to the graph.  A profiler's columns of launches, kernels and waits are a
:class:`~workloads.imports.recording.columns.GpuRecording`, and
:func:`~workloads.imports.recording.job.import_recordings` does the rest.  Intervals without launches are
lists of :class:`~workloads.imports.timed_ops.TimedOp`.  Ops without times, or a million of them, are written
with :class:`~workloads.imports.op_columns.OpColumns`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Final

from simcore.errors import InputError, nearest
from simcore.records import dataclass
from workloads.imports.files import TraceFile, head_of, trace_files
from workloads.imports.job import ImportedJob

#: (files, skip_bad, gaps) -> job; what they mean: :func:`import_traces`.
ImportFunction = Callable[[Sequence[TraceFile], bool, str], ImportedJob]
GAPS = ("recorded", "typical")


@dataclass(frozen=True)
class Importer:
    """A format: its name in reports and in messages, whether a file is in it, who imports it (see the Note).

    ``beside``: formats whose files may show the same run from another side, and who imports both together.
    """

    name: str
    title: str
    recognises: Callable[[TraceFile, bytes], bool]
    read: ImportFunction
    beside: Mapping[str, ImportFunction] = field(default_factory=dict)


#: By name, in the order in which they are asked.
FORMATS: dict[str, Importer] = {}


def register(importer: Importer) -> None:
    """Have files shown to ``importer``, after all that are known already."""
    assert importer.name not in FORMATS, importer.name
    FORMATS[importer.name] = importer


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
    report = replace(job.report, skipped=(*skipped, *job.report.skipped))
    return replace(job, report=report)


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
    for begin, end, what in _OTHERS:
        if (begin and head.startswith(begin)) or (end and source.label.endswith(end)):
            raise InputError(f"{source.label}: is {what}")
    for name, importer in FORMATS.items():
        if importer.recognises(source, head):
            return name
    known = ", ".join(importer.title for importer in FORMATS.values())
    raise InputError(
        f"{source.label}: begins with {head[:16]!r}: no known trace. Known are: {known};"
        " not a profiler trace, or truncated"
    )


#: How files begin, or end their names, that hold no trace which could be read; what they are, and what helps.
_OTHERS: Final[tuple[tuple[bytes, tuple[str, ...], str], ...]] = (
    (b"PK\x03\x04", (), "a zip archive: name it *.zip, or unpack it"),
    (b"BZh", (".bz2",), "compressed by bzip2: unpack it"),
    (b"\xfd7zXZ\0", (".xz",), "compressed by xz: unpack it"),
    (b"\x28\xb5\x2f\xfd", (".zst",), "compressed by zstd: unpack it"),
    (b"7z\xbc\xaf", (".7z",), "a 7z archive: unpack it"),
    (b"\xff\xfe", (), "text in UTF-16 or UTF-32: save it in UTF-8"),
    (b"\xfe\xff", (), "text in UTF-16: save it in UTF-8"),
    (
        b"",
        (".nsys-rep", ".qdrep"),
        "a report of Nsight Systems: make a database of it (nsys export --type sqlite)",
    ),
    (b"", (".ncu-rep",), "a report of Nsight Compute, which measures kernels one by one and records no run"),
    (b"", (".pftrace", ".perfetto-trace"), "a trace of Perfetto: give what the profiler itself wrote"),
    (b"", (".pickle", ".pkl"), "a Python pickle (of a memory snapshot?): no trace"),
)


def _import_function(by_format: dict[str, list[TraceFile]]) -> ImportFunction:
    if len(by_format) == 1:
        return FORMATS[next(iter(by_format))].read
    if len(by_format) == 2:
        for name, other in (tuple(by_format), tuple(by_format)[::-1]):
            if other in FORMATS[name].beside:
                return FORMATS[name].beside[other]
    files = "; ".join(
        f"{FORMATS[name].title}: {', '.join(source.label for source in sources[:3])}"
        + (f" and {len(sources) - 3} more" if len(sources) > 3 else "")
        for name, sources in by_format.items()
    )
    raise InputError(
        f"the files are in formats that do not belong together ({files}); import them one by one"
    )
