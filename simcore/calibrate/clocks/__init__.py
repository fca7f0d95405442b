"""Which clock GPUs keep in training, and why: laws held against published runs (docs/clocks.md)."""

from simcore.calibrate.clocks.command import print_clock_laws
from simcore.calibrate.clocks.watts import print_watts

__all__ = ["print_clock_laws", "print_watts"]
