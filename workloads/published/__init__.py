"""Published training runs: a row of a table to a model, its parallelism, its build and its cluster."""

from workloads.published.case import Band, Case, describe
from workloads.published.measured import measured_step_s
from workloads.published.row import RunRow, read_run_rows

__all__ = ["Band", "Case", "RunRow", "describe", "measured_step_s", "read_run_rows"]
