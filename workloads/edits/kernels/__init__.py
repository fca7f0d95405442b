"""Edits of what a job's GPUs and links run: kernels, host, hardware, network."""

import workloads.edits.kernels.edits
import workloads.edits.kernels.hardware
import workloads.edits.kernels.host
import workloads.edits.kernels.network  # noqa: F401  (imported, as the lines above, for the edits they register)
