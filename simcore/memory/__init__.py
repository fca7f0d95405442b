"""Memory of a step: the peak of every pipeline stage, and whether it fits the GPU."""

from simcore.memory.fits import check_fits
from simcore.memory.peak import ProgramMemory, peak_memory

__all__ = ["ProgramMemory", "check_fits", "peak_memory"]
