"""Structural edits of traced Megatron GPTs: the program is described, the description changed, and generated."""

import workloads.edits.described.edits  # noqa: F401  (imported for the edits it registers)
