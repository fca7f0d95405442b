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
    (r"h100", "h100"),
    (r"a800", "a800"),
    (r"a100.*40\s*gb", "a100-40gb"),
    (r"a100", "a100"),
    (r"v100", "v100"),
)


def cluster_of(row: RunRow) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Name of a cluster that is large enough and overrides, as ``load_cluster`` takes them.

    Errors: InputError for a GPU without profile.
    """
    kind = row.text("gpu_type")
    profile = next((name for pattern, name in _PROFILES if re.search(pattern, kind, re.IGNORECASE)), None)
    if profile is None:
        raise InputError(
            f"{row.id}: no profile for GPU {kind!r}; known: {', '.join(p for _, p in _PROFILES)}"
        )
    gpus = -(-row.count("gpus") // 8) * 8
    return f"{profile}-{gpus}", (*_board(kind), *_network(row))


def _board(kind: str) -> list[tuple[str, str]]:
    """Memory of another board than the profile's, e.g. "H100-96GB HBM2e 2.4TB/s 500W"."""
    found = []
    bandwidth = re.search(r"(\d+(?:\.\d+)?)\s*TB/s", kind)
    if bandwidth:
        found.append(("gpu.hbm_bytes_per_s", f"{bandwidth[1]}TB/s"))
        size = re.search(r"(\d+)\s*GB\b", kind)
        if size:
            found.append(("gpu.hbm_bytes", f"{size[1]}GB"))
    return found


def _network(row: RunRow) -> list[tuple[str, str]]:
    said = f"{row.text('overlap_notes')} {row.text('notes')} {row.text('gpu_type')}"
    found = []
    cards = re.search(r"(\d+)\s*x\s*OmniPath", said, re.IGNORECASE)
    if cards:
        # Omni-Path 100: 100 Gb/s per port.
        return [("cluster.nics_per_node", cards[1]), ("cluster.nic_bytes_per_s", "100Gb/s")]
    node = re.search(r"(\d+)\s*Gb/s\s*(?:\w+\s+)?per node", said, re.IGNORECASE)
    if node:
        found.append(("cluster.nic_bytes_per_s", f"{float(node[1]) / 8}Gb/s"))
    return found
