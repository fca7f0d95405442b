"""all_gather: every rank gives a part and ends with all of them.  The size is the whole output."""

from __future__ import annotations

from simcore.collectives.kinds.collective import Collective, register
from simcore.collectives.kinds.schedule import (
    Schedule,
    Transfer,
    aggregated_hops,
    channel_chunks,
    owners_and_peers,
    ring,
)


def _ring(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """Takes n - 1 steps; rank r starts with chunk r."""
    del chunks
    return ring(num_ranks, num_bytes, channels, num_ranks - 1, 0, 0)


def _switch(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """NVLS: rank r stores chunk r once and the switch copies it to all."""
    del chunks
    for channel, slices in channel_chunks(num_bytes, channels, num_ranks):
        for owner, peer, offset, size in owners_and_peers(slices):
            yield Transfer(0, channel, owner, peer, owner, offset, size, False)


def _pat(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """Takes ceil(log2 n) steps, the farthest hops first, while chunks are few."""
    del chunks
    for channel, slices in channel_chunks(num_bytes, channels, num_ranks):
        for step, (distance, come) in enumerate(aggregated_hops(num_ranks)):
            for owner, (offset, size) in enumerate(slices):
                for so_far in come:
                    src = (owner + so_far) % num_ranks
                    dst = (src + distance) % num_ranks
                    yield Transfer(step, channel, src, dst, owner, offset, size, False)


ALL_GATHER = register(
    Collective("all_gather", {"ring": _ring, "nvls": _switch, "pat": _pat}, gives_part=True)
)
