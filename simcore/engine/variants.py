"""What differs between ranks: slower or other GPUs, and noise in kernel times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from simcore.elementary import exp_of
from simcore.errors import InputError
from simcore.graph.ops import IntArray
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.cost.demand import CostModel
    from simcore.hardware import GpuSpec


@dataclass(frozen=True)
class Variants:
    """Ranks on different GPUs: ``of_rank[r]`` indexes ``gpus`` and the cost models that price them."""

    gpus: tuple[GpuSpec, ...]
    costs: tuple[CostModel, ...]
    of_rank: IntArray


@dataclass(frozen=True)
class Noise:
    """Log-normal noise: each kernel of each rank takes ``exp(sigma * z - sigma^2 / 2)`` times as long.

    ``z`` is standard normal from a generator seeded by (seed, rank), so a rank's noise does not depend on
    how many others there are; the mean is 1.  Errors: InputError unless 0 <= sigma <= 1 and seed >= 0.
    """

    sigma: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.sigma <= 1.0:
            raise InputError(f"noise sigma must be between 0 and 1, not {self.sigma}")
        if self.seed < 0:
            raise InputError(f"the noise's seed must not be negative, is {self.seed}")

    def factors(self, rank: int, num_ops: int) -> npt.NDArray[np.float64]:
        """One factor per flat op of a rank."""
        z = np.random.default_rng([self.seed, rank]).standard_normal(num_ops)
        # Of the outermost of them the last bits come from the C library.
        return exp_of(self.sigma * np.round(z, 12) - self.sigma * self.sigma / 2)
