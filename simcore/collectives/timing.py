"""How long the pieces of a collective take: kernel start, one hop, one channel's copy rate.

Note [Time of a collective]
    A channel is one thread block that walks through the steps of its schedule in order.  Each step costs a
    hop latency (the flag's way, polling, a fence under Simple); the first of all pays the kernel's start.
    Hops add up once, along the longest chain of dependent messages: later chunks follow while earlier ones
    travel.  Bytes then flow at the rate of the slowest of: the channels' copy loops, the links, and, for a
    ring, a channel whose last step receives without sending.  That step keeps the wire idle for a part
    (``tail_step``) of a step, so of S sending steps NVLink sees S / (S + tail_step).  A NIC goes on sending
    from its buffer meanwhile.
    Where every stage stores a whole chunk before it passes it on (trees, chains, NVLS), the pipeline must
    fill first: one chunk time per further stage.

The numbers are fitted per generation, over all sizes, collectives and group sizes together, to nccl-tests
rows: one node from ai-dynamo/aiconfigurator at 095f58a51c (A100 with NCCL 2.27.3, H100 with 2.27.3 and
2.29.2), several nodes of H100 with NDR InfiniBand from NVIDIA/nccl-tests issue 309 (not its 4-node cluster
below 16 MiB, where 1 MiB takes longer than 16).  On these rows the median error is 4 %, the mean 6 %.  Each
number has a meaning of its own and none belongs to a row.  Hops between nodes were only measured on Hopper
and stand for all; the tree's share and the limits of the NVLS, Simple and LL128 copy loops are NCCL's own
(src/graph/tuning.cc), which no row contradicts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from simcore.errors import InputError, nearest


@dataclass(frozen=True)
class ProtocolTiming:
    """One protocol on one GPU generation.

    ``base_s``: kernel start until the first data moves.  ``nvlink_hop_s``: one hop within a node, wire
    included.  ``network_hop_s``: one hop between nodes beyond the wire's latency: proxy thread, NIC
    doorbell, flag polling.  ``channel_bytes_per_s``: data that one channel's copy loop sustains.
    """

    base_s: float
    nvlink_hop_s: float
    network_hop_s: float
    channel_bytes_per_s: float


@dataclass(frozen=True)
class GenerationTiming:
    """All protocols of one GPU generation.

    ``tail_step``: the final receive of a ring, as a share of a sending step.  ``tree_efficiency``: what a
    tree's channel, sending up and down at once, keeps of the ring's rate.  ``p2p_base_s``: start of a
    send/recv or all_to_all kernel, LL and Simple; ``peer_s``: each further peer that it serves.
    ``own_copy_step``: an all_to_all's copy to itself, as a share of a message.  ``all_to_all_efficiency``:
    what is left when unsynchronised peers collide.  ``warm_up_s``: how much longer the first
    ``warm_up_bytes`` under Simple take than the rest (address translation, send window).
    ``nvls_*``: start, share of an NVLink port that in-switch reads and multicast reach, and rate of one
    channel, in bytes of ring progress; zero where the switch cannot add.
    """

    protocols: dict[str, ProtocolTiming]
    tail_step: float
    tree_efficiency: float
    p2p_base_s: dict[str, float]
    peer_s: float
    own_copy_step: float
    all_to_all_efficiency: float
    warm_up_s: float
    warm_up_bytes: float
    nvls_base_s: float = 0.0
    nvls_efficiency: float = 1.0
    nvls_channel_bytes_per_s: float = 0.0


_US = 1e-6

_AMPERE: Final = GenerationTiming(
    protocols={
        "LL": ProtocolTiming(8.9 * _US, 0.68 * _US, 3.1 * _US, 4.35e9),
        "LL128": ProtocolTiming(16.8 * _US, 3.2 * _US, 10.0 * _US, 20.0e9),
        "Simple": ProtocolTiming(21.3 * _US, 4.3 * _US, 8.6 * _US, 24.0e9),
    },
    tail_step=0.5,
    tree_efficiency=0.92,
    p2p_base_s={"LL": 9.8 * _US, "Simple": 9.1 * _US},
    peer_s=0.54 * _US,
    own_copy_step=0.26,
    all_to_all_efficiency=0.85,
    warm_up_s=22.0 * _US,
    warm_up_bytes=9.6e6,
)
_HOPPER: Final = GenerationTiming(
    protocols={
        "LL": ProtocolTiming(5.0 * _US, 0.75 * _US, 3.1 * _US, 13.4e9),
        "LL128": ProtocolTiming(10.7 * _US, 1.64 * _US, 10.0 * _US, 36.7e9),
        "Simple": ProtocolTiming(12.9 * _US, 2.1 * _US, 8.6 * _US, 38.0e9),
    },
    tail_step=0.52,
    tree_efficiency=0.92,
    p2p_base_s={"LL": 5.9 * _US, "Simple": 9.3 * _US},
    peer_s=0.23 * _US,
    own_copy_step=0.17,
    all_to_all_efficiency=0.86,
    warm_up_s=9.8 * _US,
    warm_up_bytes=14.6e6,
    nvls_base_s=13.8 * _US,
    nvls_efficiency=0.82,
    nvls_channel_bytes_per_s=57.7e9,
)
# The published rows have no V100 nodes: Ampere's, with the ratio of NCCL's own LL limits (39 to 87.7 GB/s).
_VOLTA: Final = replace(
    _AMPERE,
    protocols=_AMPERE.protocols | {"LL": replace(_AMPERE.protocols["LL"], channel_bytes_per_s=1.93e9)},
)

TIMINGS: Final[dict[str, GenerationTiming]] = {"volta": _VOLTA, "ampere": _AMPERE, "hopper": _HOPPER}


def timing_of(generation: str) -> GenerationTiming:
    """Timing of a GPU generation.  InputError with the nearest name for one that nothing is known about."""
    try:
        return TIMINGS[generation]
    except KeyError:
        raise InputError(
            f"no NCCL timing for GPU generation {generation!r}{nearest(generation, TIMINGS)}"
        ) from None
