"""Structural edits of traced Megatron GPTs: described, the description changed, generated again."""

import workloads.edits.described.edits  # noqa: F401  (imported for the edits it registers)
