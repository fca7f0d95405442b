"""What a GPU sustains in training, by die: numbers fitted over all published rows of the die."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
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
    """

    clock: float = 1.0
    fp8: float = 1.0

    def overrides(self, board: str) -> tuple[tuple[str, str], ...]:
        """As ``load_cluster`` takes them, for a cluster of ``board``."""
        found = [("gpu.clock", str(self.clock))]
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
