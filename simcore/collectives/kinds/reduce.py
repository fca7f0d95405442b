"""reduce: the root ends with the sum, which grows on its way round a ring (Note [Chains] of timing)."""

from __future__ import annotations

from simcore.collectives.kinds.collective import Collective, register
from simcore.collectives.kinds.schedule import Schedule, chain


def _ring(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """Partial sums travel 1, 2, ..., n - 1, 0, pipelined by chunk."""
    return chain(num_ranks, num_bytes, channels, chunks, to_root=True)


def _user_bytes(num_ranks: int) -> float:
    """All n ranks add their own, and one stores the sum."""
    return (num_ranks + 1) / num_ranks


REDUCE = register(
    Collective(
        "reduce",
        {"ring": _ring},
        reduces=True,
        root_chain=True,
        user_bytes=_user_bytes,
        chunk_slots=1,
        slice_slots=1,
    )
)
