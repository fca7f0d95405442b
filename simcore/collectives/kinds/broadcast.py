"""broadcast: all ranks end with the root's buffer, which travels round a ring (Note [Chains] of timing)."""

from __future__ import annotations

from simcore.collectives.kinds.collective import Collective, register
from simcore.collectives.kinds.schedule import Schedule, chain


def _ring(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """Rank 0's bytes travel 0, 1, ..., n - 1, pipelined by chunk."""
    return chain(num_ranks, num_bytes, channels, chunks, to_root=False)


def _user_bytes(num_ranks: int) -> float:
    """Of n ranks n - 1 store what comes and the root reads it."""
    del num_ranks
    return 1.0


BROADCAST = register(
    Collective(
        "broadcast", {"ring": _ring}, root_chain=True, user_bytes=_user_bytes, chunk_slots=1, slice_slots=1
    )
)
