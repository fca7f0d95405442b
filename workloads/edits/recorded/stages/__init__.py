"""Pipelines of recordings: forwards and backwards found, layers moved, schedules written anew."""

import workloads.edits.recorded.stages.edits  # noqa: F401  (imported for the edits it registers)
