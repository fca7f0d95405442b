"""Which GPU runs which rank: ``placement`` of a cluster file or of ``--set cluster.placement=...``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from simcore.errors import InputError, nearest

#: Placements with a name; all others are lists of GPUs.
NAMED: Final = ("linear", "round_robin")
_LIST: Final = re.compile(r"\s*[0-9]+\s*(,\s*[0-9]+\s*)*")
_MOST_DIGITS: Final = 9


def placed(
    text: str, num_nodes: int, gpus_per_node: int, where: str, folder: Path | None = None
) -> tuple[str, tuple[int, ...]]:
    """(kind, GPUs by rank) of a placement, for ``ClusterSpec.placement`` and ``.placed_gpus``.

    ``linear`` fills nodes in order, ``round_robin`` deals ranks to nodes in turn, ``nodes:3,0`` fills these
    nodes in this order, ``4,5,0`` are the GPUs of ranks 0, 1, 2; anything else is a file of GPU numbers
    (blanks, commas and lines between them, ``#`` comments), relative to ``folder``.  Errors: InputError for
    what is none of these, a node that does not exist or a word that is no number, with its line.
    """
    if text in NAMED:
        return text, ()
    nodes = text.removeprefix("nodes:")
    if nodes != text:
        if not _LIST.fullmatch(nodes):
            raise InputError(f"{where}: nodes must be numbers with commas, such as nodes:3,0, not {text!r}")
        wanted = [_number(word, where) for word in nodes.split(",")]
        for position, node in enumerate(wanted):
            if node >= num_nodes or node in wanted[:position]:
                problem = "is listed twice" if node in wanted[:position] else "does not exist"
                raise InputError(
                    f"{where}: node {node} {problem}; the cluster has nodes 0 to {num_nodes - 1}"
                )
        return "listed", tuple(
            node * gpus_per_node + local for node in wanted for local in range(gpus_per_node)
        )
    if _LIST.fullmatch(text):
        return "listed", tuple(_number(word, where) for word in text.split(","))
    return "listed", _from_file(text, where, folder)


def _from_file(name: str, where: str, folder: Path | None) -> tuple[int, ...]:
    path = Path(name) if folder is None else folder / name
    if not Path(name).suffix and len(Path(name).parts) == 1 and not path.is_file():
        raise InputError(
            f"{where}: placement cannot be {name!r}{nearest(name, (*NAMED, 'nodes:<n>,<n>'))}; or a list of"
            " GPUs, or a file of them"
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot read placement {str(path)!r}: {error}") from error
    gpus = [
        _number(word, f"{path}:{number}")
        for number, line in enumerate(lines, 1)
        for word in line.partition("#")[0].replace(",", " ").split()
    ]
    if not gpus:
        raise InputError(f"{path}: no GPU numbers in this placement")
    return tuple(gpus)


def _number(word: str, where: str) -> int:
    word = word.strip()
    if not (word.isascii() and word.isdecimal()) or len(word) > _MOST_DIGITS:
        raise InputError(f"{where}: {word!r} is no GPU or node number")
    return int(word)
