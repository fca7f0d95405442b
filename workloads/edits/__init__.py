"""What-if: a job's graph edited, as a chain of pure functions on jobs."""

import workloads.edits.described
import workloads.edits.kernels
import workloads.edits.recorded  # noqa: F401  (imported, as the lines above, for the edits they register)
from workloads.edits.job import EditableJob, Edited
from workloads.edits.registry import Applied, apply_edit, registered_edits, split_edits

__all__ = ["Applied", "EditableJob", "Edited", "apply_edit", "registered_edits", "split_edits"]
