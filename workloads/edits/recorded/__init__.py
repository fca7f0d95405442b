"""Edits of recordings, which tell no description: what repeats is recognised and put together anew."""

import workloads.edits.recorded.groups
import workloads.edits.recorded.layers
import workloads.edits.recorded.pipeline_log
import workloads.edits.recorded.sizes
import workloads.edits.recorded.stages
import workloads.edits.recorded.straggler  # noqa: F401  (imported, as the lines above, for the edits they register)
