"""A row's cluster: a profile by GPU type, with what the row says of network and board."""

from __future__ import annotations

import re
from typing import Final

from simcore.errors import InputError
from workloads.published.row import RunRow

#: GPU type in a table (pattern, ignoring case) to a profile in hardware_profiles/cluster.
_PROFILES: Final = (
    (r"h200", "h200"),
    (r"h800", "h800"),
    (r"h100.*96\s*gb", "h100-96gb"),
    (r"h100", "h100"),
    (r"a800", "a800"),
    (r"a100.*40\s*gb", "a100-40gb"),
    (r"a100", "a100"),
    (r"v100", "v100"),
)


def cluster_of(row: RunRow) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Board, name of a cluster that is large enough, and overrides as ``load_cluster`` takes them.

    Errors: InputError for a GPU without profile.
    """
    kind = row.text("gpu_type")
    profile = next((name for pattern, name in _PROFILES if re.search(pattern, kind, re.IGNORECASE)), None)
    if profile is None:
        raise InputError(
            f"{row.id}: no profile for GPU {kind!r}; known: {', '.join(p for _, p in _PROFILES)}"
        )
    nodes = -(-row.count("gpus") // 8)
    # How racks are wired, and where in them a job ran, is published nowhere: one fabric that blocks nobody.
    wiring = ("cluster.nodes_per_leaf", str(nodes))
    return profile, f"{profile}-{8 * nodes}", (wiring, *_network(row))


def _network(row: RunRow) -> tuple[tuple[str, str], ...]:
    said = f"{row.text('overlap_notes')} {row.text('notes')} {row.text('gpu_type')}"
    cards = re.search(r"(\d+)\s*x\s*OmniPath", said, re.IGNORECASE)
    if cards:
        # Omni-Path 100: 100 Gb/s per port.
        return ("cluster.nics_per_node", cards[1]), ("cluster.nic_bytes_per_s", "100Gb/s")
    node = re.search(r"(\d+)\s*Gb/s\s*(?:\w+\s+)?per node", said, re.IGNORECASE)
    if node:
        return (("cluster.nic_bytes_per_s", f"{float(node[1]) / 8}Gb/s"),)
    return ()
