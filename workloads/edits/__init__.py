"""What-if: a job's graph edited, as a chain of pure functions on jobs."""

import workloads.edits.described
import workloads.edits.hardware
import workloads.edits.host
import workloads.edits.kernels
import workloads.edits.network
import workloads.edits.pipeline_log
import workloads.edits.recorded_groups
import workloads.edits.recorded_layers
import workloads.edits.recorded_sizes
import workloads.edits.stages
import workloads.edits.straggler  # noqa: F401  (imported, as the lines above, for the edits they register)
from workloads.edits.job import EditableJob, Edited, Planner
from workloads.edits.registry import Applied, apply_edit, registered_edits, split_edits

__all__ = ["Applied", "EditableJob", "Edited", "Planner", "apply_edit", "registered_edits", "split_edits"]
