"""Memory of a step: the peak of every pipeline stage, and whether it fits the GPU."""

from simcore.memory.fits import parts_and_advice
from simcore.memory.outside import OutsideHolders, OutsideMemory, outside_memory
from simcore.memory.peak import ProgramMemory, activations_of, peak_memory
from simcore.memory.verdict import MemoryMisses, MemoryVerdict, StageNeed, verdict

__all__ = [
    "MemoryMisses",
    "MemoryVerdict",
    "OutsideHolders",
    "OutsideMemory",
    "ProgramMemory",
    "StageNeed",
    "activations_of",
    "outside_memory",
    "parts_and_advice",
    "peak_memory",
    "verdict",
]
