"""What a die keeps up in long training, beside what its boards are rated at.

Note [Slowest GPU]
    GPUs of one type differ in the clock that they keep at the power limit (arXiv 2208.11035), and in a step
    everybody waits for everybody: over tensor-parallel sums, pipeline messages and gradients the slowest GPU
    of the job sets the pace.  Clocks are taken as normal; of N draws the least is expected about
    Phi^-1((N - 3/8) / (N + 1/4)) standard deviations below the mean (Blom's approximation).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from statistics import NormalDist
from typing import Final, Literal

from simcore.hardware.quantities import Number

#: How a GPU runs: at the clocks of long training, or at the rated ones of a microbenchmark.
Conditions = Literal["sustained", "cool"]
CONDITIONS: Final[tuple[Conditions, ...]] = ("sustained", "cool")

SUSTAINED_NUMBERS: Final[dict[str, Number]] = {
    "clock": Number("ratio"),
    "fp8": Number("ratio"),
    "spread": Number("ratio", zero_allowed=True, at_most=1),
}


@dataclass(frozen=True)
class Sustained:
    """Numbers of a die under continuous load, relative to the profile's rated ones.

    ``clock``: mean SM clock at the power limit.  ``fp8``: rate of fp8 products over twice that of bf16 ones,
    which is what the datasheet promises.  ``spread``: standard deviation of clocks between GPUs over their
    mean, see Note [Slowest GPU].  ``measured_on``: names of the GPUs that they were fitted on.
    """

    clock: float = 1.0
    fp8: float = 1.0
    spread: float = 0.0
    measured_on: tuple[str, ...] = field(default=(), compare=False)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def slowest_clock(self, num_gpus: int) -> float:
        """The clock to expect of the slowest of ``num_gpus``, relative to the rated one."""
        return self.clock * (1 - self.spread * _deviations(num_gpus))


@cache
def _deviations(num_gpus: int) -> float:
    return NormalDist().inv_cdf((num_gpus - 0.375) / (num_gpus + 0.25)) if num_gpus > 1 else 0.0
