"""reduce_scatter: every rank ends with its part of the sum.  The size is the whole input."""

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
    """Takes n - 1 steps; rank r ends with chunk r reduced."""
    del chunks
    return ring(num_ranks, num_bytes, channels, num_ranks - 1, num_ranks - 1, 1)


def _switch(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """NVLS: rank r fetches chunk r, added up on the way."""
    del chunks
    for channel, slices in channel_chunks(num_bytes, channels, num_ranks):
        for owner, peer, offset, size in owners_and_peers(slices):
            yield Transfer(0, channel, peer, owner, owner, offset, size, True)


def _pat(num_ranks: int, num_bytes: int, channels: int = 1, chunks: int = 1) -> Schedule:
    """The all_gather backwards: sums travel towards their owner, the nearest hops first."""
    del chunks
    for channel, slices in channel_chunks(num_bytes, channels, num_ranks):
        for step, (distance, come) in enumerate(reversed(aggregated_hops(num_ranks))):
            for owner, (offset, size) in enumerate(slices):
                for so_far in come:
                    dst = (owner + so_far) % num_ranks
                    src = (dst + distance) % num_ranks
                    yield Transfer(step, channel, src, dst, owner, offset, size, True)


REDUCE_SCATTER = register(
    Collective("reduce_scatter", {"ring": _ring, "nvls": _switch, "pat": _pat}, reduces=True, gets_part=True)
)
