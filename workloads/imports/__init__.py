"""Recorded traces as workloads: a profiler's trace in, an execution graph and an import report out."""

from workloads.imports.formats import import_traces
from workloads.imports.job import ImportedJob, import_kineto
from workloads.imports.recorded import ImportedRank, RecordedOps
from workloads.imports.report import ImportReport

__all__ = ["ImportReport", "ImportedJob", "ImportedRank", "RecordedOps", "import_kineto", "import_traces"]
