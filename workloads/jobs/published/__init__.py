"""Published training runs: a row of a table to a model, its parallelism, its build and its cluster."""

from workloads.jobs.published.case import Band, Case, describe
from workloads.jobs.published.measured import causal_ratio, measured_step_s
from workloads.jobs.published.notes import notes_of, oddity
from workloads.jobs.published.row import RunRow, read_run_rows

__all__ = [
    "Band",
    "Case",
    "RunRow",
    "causal_ratio",
    "describe",
    "measured_step_s",
    "notes_of",
    "oddity",
    "read_run_rows",
]
