"""Which profiles describe a GPU by the name that a program, a table or a person gives it: ``boards.toml``."""

from __future__ import annotations

import re
from functools import cache

from simcore.records import dataclass
from simcore.tables import Rows, load


@dataclass(frozen=True)
class Board:
    """A GPU's profiles: its own, the usual cluster of such (empty where none is described).

    ``pattern`` is what its names look like; ``stands_in`` what to say where another board's profile is taken.
    """

    pattern: str
    gpu: str
    cluster: str = ""
    stands_in: str = ""


def named_board(name: str) -> Board | None:
    """The first board whose pattern is found in ``name``, blanks as dashes; None for an unknown GPU."""
    words = "-".join(name.lower().split())
    return next((board for board in boards() if re.search(board.pattern, words)), None)


@cache
def boards() -> tuple[Board, ...]:
    """All boards that are known by name, the more special first."""
    found: tuple[Board, ...] = load({"board": Rows(Board)}, "hardware_profiles", "boards.toml")["board"]
    return found


def known_clusters() -> str:
    """Names of the clusters that GPUs are known for, as messages list them."""
    return ", ".join(dict.fromkeys(board.cluster for board in boards() if board.cluster))
