"""Recorded traces as workloads: a profiler's trace in, an execution graph and an import report out."""

from workloads.imports.formats import Importer, import_traces, register
from workloads.imports.job import ImportedJob, ImportReport
from workloads.imports.recorded import ImportedRank, RecordedOps

# Each registers its formats; files are shown to them in this order, bare lists of events to logs first.
from workloads.imports import logs, kineto, execution, nsys, chakra, xla  # isort: skip  # noqa: F401

__all__ = [
    "ImportReport",
    "ImportedJob",
    "ImportedRank",
    "Importer",
    "RecordedOps",
    "import_traces",
    "register",
]
