"""What a GPU sustains in training, by die: numbers fitted over all published rows of the die.

Note [Slowest GPU]
    GPUs of one type differ in the clock that they keep at the power limit (arXiv 2208.11035), and in a step
    everybody waits for everybody: over tensor-parallel sums, pipeline messages and gradients the slowest GPU
    of the job sets the pace.  Clocks are taken as normal; of N draws the least is expected about
    Phi^-1((N - 3/8) / (N + 1/4)) standard deviations below the mean (Blom's approximation).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import NormalDist
from typing import Final

from simcore.hardware import load_cluster

#: Boards of the same die as another, whose numbers hold for them.
_ALIKE: Final = {
    "h800": "h100", "h200": "h100", "h100-96gb": "h100", "a800": "a100", "a100-40gb": "a100",
    "hgx4-a100": "a100",
}  # fmt: skip


@dataclass(frozen=True)
class BoardPhysics:
    """``clock``: SM clock under continuous load over the one that the profile's peaks are rated at.

    ``fp8``: rate of fp8 products over twice that of bf16 ones, which is what the datasheet promises.
    ``spread``: standard deviation of clocks between GPUs over their mean, see Note [Slowest GPU].
    """

    clock: float = 1.0
    fp8: float = 1.0
    spread: float = 0.0

    def slowest_clock(self, gpus: int) -> float:
        """The clock to expect of the slowest of ``gpus``, in units of ``clock``."""
        deviations = NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25)) if gpus > 1 else 0.0
        return self.clock * (1 - self.spread * deviations)

    def overrides(self, board: str, gpus: int) -> tuple[tuple[str, str], ...]:
        """As ``load_cluster`` takes them, for a job of ``gpus`` on a cluster of ``board``."""
        found = [("gpu.clock", str(self.slowest_clock(gpus)))]
        if self.fp8 != 1.0:
            peak = load_cluster(board).gpu.peak_flops.get("fp8", 0.0)
            if peak:
                found.append(("gpu.peak_flops.fp8", str(peak * self.fp8)))
        return tuple(found)


def board_group(board: str) -> str:
    """The board whose numbers hold for ``board``."""
    return _ALIKE.get(board, board)


@cache
def board_physics() -> dict[str, BoardPhysics]:
    """Numbers by board group, from ``physics.toml``."""
    text = (resources.files("workloads.published") / "physics.toml").read_text(encoding="utf-8")
    return {
        board: BoardPhysics(**{name: entry["value"] for name, entry in table.items()})
        for board, table in tomllib.loads(text).items()
    }
