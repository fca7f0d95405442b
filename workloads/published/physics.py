"""What a GPU sustains in training, by board: two numbers, fitted over all published rows of the board."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

#: Boards with the same die and power limit as another.
_ALIKE: Final = {"h800": "h100", "h200": "h100", "a800": "a100", "a100-40gb": "a100"}


@dataclass(frozen=True)
class BoardPhysics:
    """``clock``: SM clock under continuous load over the rated one; ``hbm_efficiency``: share of peak."""

    clock: float = 1.0
    hbm_efficiency: float = 0.0  # 0: the profile's own

    def overrides(self) -> tuple[tuple[str, str], ...]:
        """As ``load_cluster`` takes them."""
        found = [("gpu.clock", str(self.clock))]
        if self.hbm_efficiency:
            found.append(("gpu.hbm_efficiency", str(self.hbm_efficiency)))
        return tuple(found)


def board_group(board: str) -> str:
    """The board whose numbers hold for ``board``."""
    return _ALIKE.get(board, board)


@cache
def board_physics() -> dict[str, BoardPhysics]:
    """Numbers by board group, from ``physics.toml``."""
    text = (resources.files("workloads.published") / "physics.toml").read_text(encoding="utf-8")
    return {
        board: BoardPhysics(table["clock"]["value"], table["hbm_efficiency"]["value"])
        for board, table in tomllib.loads(text).items()
    }
