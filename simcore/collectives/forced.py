"""What NCCL_ALGO and NCCL_PROTO say: lists of names, for all collectives or for some.

NCCL's grammar (User Guide, "Environment Variables"): ``tree``; ``ring,tree``; ``^nvls`` for all but NVLS;
since 2.24 also per collective, ``ring;allreduce:tree,nvls;allgather:^pat``, where a part without a name holds
for those that have none of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from simcore.collectives.kinds import COLLECTIVES
from simcore.collectives.protocols import PROTOCOLS
from simcore.errors import InputError, nearest
from simcore.records import dataclass

#: Algorithms that NCCL_ALGO may force, and one for all_to_all that NCCL itself does not have.
ALGORITHMS: Final = ("ring", "tree", "nvls", "nvls_tree", "pat", "hierarchical")
#: NCCL's names that no cluster here can run: the switches between nodes would have to add.
_NEEDS_SHARP: Final = ("collnetchain", "collnetdirect")
_EVERY: Final = ""


@dataclass(frozen=True)
class Forced:
    """Names that the user allows, by collective; ``""`` for those that are not named."""

    names: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def among(self, collective: str, known: tuple[str, ...]) -> tuple[str, ...]:
        """Those of ``known`` that are allowed; all of them where nothing that is allowed exists.

        NCCL_ALGO=Tree leaves an all_gather its ring: trees carry all_reduce only.
        """
        names = self.names.get(collective, self.names.get(_EVERY))
        picked = known if names is None else tuple(name for name in known if name in names)
        return picked or known


def forced_algorithms(text: str | None) -> Forced:
    """NCCL_ALGO; also with underscores (``nvls_tree``).  InputError for an unknown name or collective."""
    spellings = {name.replace("_", ""): name for name in (*ALGORITHMS, *_NEEDS_SHARP)}
    return _parsed(text, spellings, "algorithm")


def forced_protocols(text: str | None) -> Forced:
    """NCCL_PROTO.  InputError for an unknown name or collective."""
    return _parsed(text, {name.lower(): name for name in PROTOCOLS}, "protocol")


def _parsed(text: str | None, spellings: Mapping[str, str], what: str) -> Forced:
    if text is None:
        return Forced()
    names: dict[str, frozenset[str]] = {}
    for part in text.split(";"):
        function, colon, listed = part.rpartition(":")
        collective = _collective(function) if colon else _EVERY
        if collective in names:
            raise InputError(
                f"NCCL {what} list {text!r} speaks twice of {function.strip() or 'all collectives'}"
            )
        names[collective] = _allowed(listed.strip(), spellings, what)
    return Forced(names)


def _allowed(listed: str, spellings: Mapping[str, str], what: str) -> frozenset[str]:
    but = listed.startswith("^")
    picked = set()
    for name in listed.removeprefix("^").split(","):
        spelling = name.strip().lower().replace("_", "")
        if spelling not in spellings:
            said = name.strip()
            alike = said.lower() if what == "algorithm" else said  # known algorithms are lower case
            raise InputError(f"unknown NCCL {what} {said!r}{nearest(alike, spellings.values())}")
        picked.add(spellings[spelling])
    return frozenset(spellings.values()) - picked if but else frozenset(picked)


def _collective(function: str) -> str:
    spellings = {name.replace("_", ""): name for name in COLLECTIVES}
    spelling = function.strip().lower().replace("_", "")
    if spelling not in spellings:
        raise InputError(f"unknown collective {function.strip()!r}{nearest(spelling, COLLECTIVES)}")
    return spellings[spelling]
