"""A communicator as one of its ranks uses it, whatever hardware it is on."""

from __future__ import annotations

from simcore.records import dataclass


@dataclass(frozen=True)
class CommunicatorUse:
    """A process group as one of its ranks uses it.

    ``calls``: its collectives by name with their bytes as nccl-tests counts them; ``peers``: ranks with which
    it exchanges messages.
    """

    name: str
    ranks: tuple[int, ...]
    calls: frozenset[tuple[str, int]]
    peers: frozenset[int] = frozenset()
