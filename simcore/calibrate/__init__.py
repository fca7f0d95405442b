"""Predicted against measured: readers of measurement files, errors by family, fits of constants."""

from simcore.calibrate.errors import ErrorTable, error_table
from simcore.calibrate.kernels import KernelRow, read_kernel_rows

__all__ = ["ErrorTable", "KernelRow", "error_table", "read_kernel_rows"]
