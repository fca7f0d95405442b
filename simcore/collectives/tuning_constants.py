"""NCCL's tuning table: what it believes about latency and bandwidth when it chooses.

Copied as facts from NVIDIA/nccl src/graph/tuning.cc at 5067397c (release 2.27 and later).  These numbers
only *choose* algorithm and protocol, as NCCL does even where it is wrong; how long things really take is in
:mod:`simcore.collectives.timing`.  What differs between GPU generations stands in
``hardware_profiles/tuner/<generation>.toml``.  Latencies in microseconds, bandwidths in GB/s, columns LL,
LL128, Simple.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from simcore.errors import InputError
from simcore.records import dataclass
from simcore.tables import TEXT, Maybe, Positive, Rows, Sourced, keys_of, load_named

PROTOCOL_ORDER: Final = ("LL", "LL128", "Simple")

BASE_LATENCY_US: Final = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
NVLINK_LATENCY_US: Final = {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)}
NETWORK_LATENCY_US: Final = {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)}
#: NVLS and NVLSTree run under Simple only.
NVLS_NVLINK_LATENCY_US: Final = 25.0
NVLS_TREE_NETWORK_LATENCY_US: Final = 20.9
#: PAT: a start, network hops that overlap in part, and a part that every rank adds.
PAT_BASE_LATENCY_US: Final = 8.0
PAT_LATENCY_SHARE: Final = 3.5
PAT_RANK_LATENCY_US: Final = 2.8
PAT_EFFICIENCY: Final = 0.75
#: Posting a network operation costs the host proxy this much (Intel CPUs); Simple posts three.
NETWORK_OVERHEAD_US: Final = 1.0

#: Between nodes NCCL reads the row of the CPU vendor instead of the GPU's: row 0 (Intel) for all x86 nodes
#: modelled here.  Columns 1, 2 and 4 or more nodes.
LL_MAX_BETWEEN_NODES_GB_PER_S: Final = (39.0, 39.0, 20.4)

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
#: Bytes of a ring's chunk from which on it is real (``GenerationTuning.ring_plateau``).
RING_PLATEAU_FROM_BYTES: Final = 64


@dataclass(frozen=True)
class GenerationTuning:
    """What NCCL believes of one GPU generation; triples by :func:`scale_column`.

    ``ll_max_gb_per_s``: most that LL moves within a node; ``*_channel_gb_per_s``: that one channel moves.
    ``nvls_efficiency``: share of NVLink's rate in reductions by the switch (0: it cannot add);
    ``nvls_channels``: channels of NVLS, and of NVLSTree over several nodes (src/transport/nvls.cc).
    ``ring_plateau``: latency of a ring over several nodes under Simple once its chunks are real, over that of
    small ones.  ``speeds_*``: rates that the search tries for one ring, fastest first;
    ``kept_single_below_gb_per_s``: where it found more than four rings, slower ones are not duplicated.
    """

    ll_max_gb_per_s: tuple[float, float, float]
    ring_ll128_channel_gb_per_s: Positive
    tree_ll128_channel_gb_per_s: tuple[float, float, float]
    tree_channel_gb_per_s: tuple[float, float, float]
    nvls_efficiency: float
    nvls_tree_channel_gb_per_s: tuple[float, float, float]
    nvls_channels: tuple[int, int]
    ring_plateau: Positive
    speeds_in_node_gb_per_s: tuple[float, ...]
    speeds_between_nodes_gb_per_s: tuple[float, ...]
    kept_single_below_gb_per_s: float


#: What a later release changed: its number, and any of the keys above.
_LATER: Final = {key: Maybe(rule) for key, rule in keys_of(GenerationTuning).items()}


@cache
def tuning_of(generation: str, release: tuple[int, int]) -> GenerationTuning:
    """What NCCL's ``release`` (major, minor) believes of a generation.

    A file gives the numbers of its first release, and in ``[[later]]`` what others changed since.
    InputError, with the nearest name, for a generation without a table.
    """
    schema = Sourced({**keys_of(GenerationTuning), "later": Maybe(Rows({"release": TEXT, **_LATER}))})
    table = dict(load_named(schema, "tuner", generation, "no NCCL tuning table of GPU generation"))
    for change in sorted(table.pop("later", ()), key=lambda change: release_of(change["release"])):
        changed = dict(change)
        if release_of(changed.pop("release")) <= release:
            table |= changed
    return GenerationTuning(**table)


def release_of(version: str) -> tuple[int, int]:
    """(major, minor) of an NCCL version such as "2.22.3".  InputError when it is none."""
    parts = version.split(".")
    if len(parts) < 2 or not all(re.fullmatch("[0-9]{1,4}", part) for part in parts[:2]):
        raise InputError(f"nccl_version {version[:40]!r} does not read like 2.22.3")
    return int(parts[0]), int(parts[1])


def scale_column(num_nodes: int) -> int:
    """Column of the tables above for ``num_nodes``: 1, 2, or more."""
    return min(num_nodes, 3) - 1
