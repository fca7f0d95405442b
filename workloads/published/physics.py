"""What a GPU sustains in training, by board: one number, fitted over all published rows of the board."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

#: Boards of the same die as another, whose numbers hold for them.
_ALIKE: Final = {
    "h800": "h100", "h200": "h100", "h100-96gb": "h100", "a800": "a100", "a100-40gb": "a100",
}  # fmt: skip


@dataclass(frozen=True)
class BoardPhysics:
    """``clock``: SM clock under continuous load over the one that the profile's peaks are rated at."""

    clock: float = 1.0

    def overrides(self) -> tuple[tuple[str, str], ...]:
        """As ``load_cluster`` takes them."""
        return (("gpu.clock", str(self.clock)),)


def board_group(board: str) -> str:
    """The board whose numbers hold for ``board``."""
    return _ALIKE.get(board, board)


@cache
def board_physics() -> dict[str, BoardPhysics]:
    """Numbers by board group, from ``physics.toml``."""
    text = (resources.files("workloads.published") / "physics.toml").read_text(encoding="utf-8")
    return {board: BoardPhysics(table["clock"]["value"]) for board, table in tomllib.loads(text).items()}
