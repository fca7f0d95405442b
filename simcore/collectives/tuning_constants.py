"""NCCL's tuning table: what it believes about latency and bandwidth when it chooses.

Copied as facts from NVIDIA/nccl src/graph/tuning.cc at 5067397c (release 2.27 and later).  These numbers
only *choose* algorithm and protocol, as NCCL does even where it is wrong; how long things really take is in
:mod:`simcore.collectives.timing`.  Latencies in microseconds, bandwidths in GB/s, columns LL, LL128, Simple.
"""

from __future__ import annotations

from typing import Final

PROTOCOL_ORDER: Final = ("LL", "LL128", "Simple")

BASE_LATENCY_US: Final = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
NVLINK_LATENCY_US: Final = {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)}
NETWORK_LATENCY_US: Final = {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)}
#: NVLS and NVLSTree run under Simple only.
NVLS_NVLINK_LATENCY_US: Final = 25.0
NVLS_TREE_NETWORK_LATENCY_US: Final = 20.9
NVLS_EFFICIENCY: Final = {"hopper": 0.85}
NVLS_TREE_CHANNEL_GB_PER_S: Final = {"hopper": (0.0, 57.7, 45.5)}
#: PAT: a start, network hops that overlap in part, and a part that every rank adds.
PAT_BASE_LATENCY_US: Final = 8.0
PAT_LATENCY_SHARE: Final = 3.5
PAT_RANK_LATENCY_US: Final = 2.8
PAT_EFFICIENCY: Final = 0.75
#: Posting a network operation costs the host proxy this much (Intel CPUs); Simple posts three.
NETWORK_OVERHEAD_US: Final = 1.0

#: By generation (one node), columns 1, 2 and 4 or more nodes.  Between nodes NCCL reads the row of the CPU
#: vendor instead of the GPU's: row 0 (Intel) for all x86 nodes modelled here.
LL_MAX_GB_PER_S: Final = {
    "volta": (39.0, 39.0, 20.4),
    "ampere": (87.7, 22.5, 19.0),
    "hopper": (141.0, 45.0, 35.0),
}
RING_LL128_CHANNEL_GB_PER_S: Final = {"volta": 20.0, "ampere": 20.0, "hopper": 36.7}
TREE_LL128_CHANNEL_GB_PER_S: Final = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 29.0),
}
TREE_CHANNEL_GB_PER_S: Final = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
}

#: Factors on the tree's bandwidth by message size, powers of two from 64 B up.
TREE_CORRECTION: Final = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (
        *(1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6),
        *(0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    ),
    "Simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
    ),
}
#: A ring over several nodes under Simple has this much more latency once its chunks are real.
RING_PLATEAU: Final = {"volta": 1.9, "ampere": 1.4, "hopper": 1.4}
RING_PLATEAU_FROM_BYTES: Final = 64


def scale_column(num_nodes: int) -> int:
    """Column of the tables above for ``num_nodes``: 1, 2, or more."""
    return min(num_nodes, 3) - 1
