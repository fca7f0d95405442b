"""``validate.py --memory``: peaks of memory that runs report, against what their storages hold."""

from simcore.apps.validate.memory.found import MemoryTable
from simcore.apps.validate.memory.lines import memory_lines
from simcore.apps.validate.memory.tables import memory_errors

__all__ = ["MemoryTable", "memory_errors", "memory_lines"]
