"""A row's cluster: a profile by GPU type, with what the row says of network and board."""

from __future__ import annotations

import re
from typing import Final

from simcore.errors import InputError
from simcore.hardware import cluster_for, known_clusters, load_cluster, load_gpu, named_board
from simcore.hardware.profiles import fabric_profile
from workloads.jobs.published.row import RunRow

#: A DGX-2 has NVSwitches; other V100 are taken for a DGX-1V's.
_DGX2: Final = r"v100.*(sxm3|dgx-?2)"
_FOUR_PER_NODE: Final = r"\b4\s*(x\s*)?(gpus?|a100s?)\s*(per|/|a)\s*node|(4|four)-gpu nodes"

#: Share of an Omni-Path port's rate that NCCL moves over it: all_reduce of 4 GB,
#: 32 A100 of 4 nodes of Jean Zay, NCCL 2.10.3: 40.5 of 100 Gb/s, one port out of each node and one into it
#: (bigscience-workshop/bigscience, experiments/bandwidth/all_reduce_bench-a100-n4.txt).
_OMNI_PATH_EFFICIENCY: Final = "0.405"
_OMNI_PATH_NCCL: Final = "2.10.3"


def cluster_of(row: RunRow) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Board, name of a cluster that is large enough, and overrides as ``load_cluster`` takes them.

    Errors: InputError for a GPU without profile.
    """
    kind = row.text("gpu_type")
    found = named_board(kind)
    if found is None or not (found.cluster or row.counts_samples):
        raise InputError(f"{row.id}: no profile for GPU {kind!r}; known: {known_clusters()}")
    profile = found.cluster or "pcie"
    said = f"{kind} {row.text('gpu_notes')}"
    if profile == "v100" and not re.search(_DGX2, said, re.IGNORECASE):
        profile = "dgx1v"
    if profile.startswith("a100") and re.search(_FOUR_PER_NODE, _said(row), re.IGNORECASE):
        profile = "hgx4-a100"
    on_fabric = fabric_profile(profile, _said(row))
    family, board = on_fabric or (profile, None)
    if row.counts_samples:
        return _of_samples(row, profile, found.gpu)
    name, wired = large_enough(family, row.count("gpus"))
    gpu = (("cluster.gpu", board),) if board else ()
    return profile, name, (*gpu, *wired, *_network(row, family))


def large_enough(family: str, gpus: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Name of a cluster with at least so many GPUs, and overrides.

    How racks are wired, and where in them a job ran, is published nowhere: one fabric that blocks nobody.
    """
    name, placed = cluster_for(family, gpus)
    return name, (("cluster.nodes_per_leaf", str(load_cluster(name).num_nodes)), *placed)


def _of_samples(row: RunRow, profile: str, board: str) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Nodes of as many GPUs as the row says: without NVSwitch, and other than usual, boards on PCIe alone."""
    gpus = row.count("gpus")
    nodes = max(1, row.count("num_nodes", 1) if row.says("num_nodes") else 1)
    each = -(-gpus // nodes)
    usual = load_cluster(profile)
    overrides: dict[str, str] = {}
    if each > usual.gpus_per_node or (nodes > 1 and each < usual.gpus_per_node):
        overrides["cluster.gpus_per_node"] = str(each)
        if usual.intra_node != "nvswitch":
            profile = "pcie"
            overrides["cluster.cpu_of_gpu"] = ",".join(str(int(2 * gpu >= each)) for gpu in range(each))
        elif usual.nics_per_node > each:
            overrides["cluster.nics_per_node"] = str(each)
    if load_cluster(profile).gpu.name != load_gpu(board).name:
        overrides["cluster.gpu"] = board
    per_node = load_cluster(profile, tuple(overrides.items())).gpus_per_node
    nodes = -(-gpus // per_node)
    size = {"cluster.num_nodes": str(nodes), "cluster.nodes_per_leaf": str(nodes)}
    return profile, profile, (*overrides.items(), *size.items())


def _said(row: RunRow) -> str:
    return f"{row.text('overlap_notes')} {row.text('notes')} {row.text('gpu_type')}"


def _network(row: RunRow, profile: str) -> tuple[tuple[str, str], ...]:
    said = _said(row)
    cards = re.search(r"(\d+)\s*x\s*OmniPath", said, re.IGNORECASE)
    if cards:
        # Omni-Path 100: 100 Gb/s per port.
        return (
            ("cluster.nics_per_node", cards[1]), ("cluster.nic_bytes_per_s", "100Gb/s"),
            ("cluster.nic_efficiency", _OMNI_PATH_EFFICIENCY), ("cluster.nccl_version", _OMNI_PATH_NCCL),
        )  # fmt: skip
    usual = load_cluster(profile).nics_per_node
    node = re.search(r"(\d+)\s*G(?:b/s|bps|bit/s|bE)?\s*(?:\w+\s+)?(?:per|/)\s*node", said, re.IGNORECASE)
    if node:
        return (("cluster.nic_bytes_per_s", f"{float(node[1]) / usual}Gb/s"),)
    ports = re.search(r"\b([1-8])\s*x\s*(\d{2,3})\s*G(?:b/s|bps|bit/s|bE)?\b", said, re.IGNORECASE)
    if ports:
        found = {"cluster.nics_per_node": ports[1], "cluster.nic_bytes_per_s": f"{ports[2]}Gb/s"}
        plain = load_cluster(profile)
        told = load_cluster(profile, tuple(found.items()))
        if (told.nics_per_node, told.nic_bytes_per_s) != (plain.nics_per_node, plain.nic_bytes_per_s):
            return tuple(found.items())
    return ()
