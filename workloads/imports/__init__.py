"""Recorded traces as workloads: a profiler's trace in, an execution graph and an import report out."""

from workloads.imports.job import ImportedJob, ImportedRank, import_kineto
from workloads.imports.report import ImportReport

__all__ = ["ImportReport", "ImportedJob", "ImportedRank", "import_kineto"]
