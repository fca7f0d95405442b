"""NCCL's choice of algorithm and protocol: the smallest latency + bytes / bandwidth by its own table.

Follows ncclTopoTuneModel and ncclTopoGetAlgoTime (NVIDIA/nccl src/graph/tuning.cc at 5067397c).  In-switch
algorithms (NVLS, NVLSTree, CollNet) and PAT are not offered here yet, so an H100 node all_reduces by ring
where NCCL of 2.18 and later would use NVLS from about 1 MiB up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simcore.collectives import tuning_constants as table
from simcore.collectives.algorithms import algorithms_of
from simcore.collectives.channels import ChannelGraph
from simcore.collectives.protocols import PROTOCOLS


@dataclass(frozen=True)
class GroupShape:
    """What the tuner knows of a group: sizes, GPU generation and the channels it searched."""

    num_ranks: int
    num_nodes: int
    generation: str
    graph: ChannelGraph


@dataclass(frozen=True)
class Choice:
    """An algorithm and protocol with the time that NCCL expects of them, seconds."""

    algorithm: str
    protocol: str
    time_s: float


def _ring_steps(collective: str, num: int) -> int:
    if collective in ("all_reduce", "barrier"):
        return 2 * (num - 1)
    return num - 1 if collective in ("all_gather", "reduce_scatter") else num


def bus_bandwidth(algorithm: str, protocol: str, shape: GroupShape) -> float:
    """Bus bandwidth that NCCL expects, bytes/s (the busbw of nccl-tests)."""
    column = table.scale_column(shape.num_nodes)
    generation, channels = shape.generation, shape.graph.channels
    wires = channels * shape.graph.bytes_per_s / 1e9
    vendor_row = generation if shape.num_nodes == 1 else "volta"  # row 0: see LL_MAX_GB_PER_S
    ll_max = table.LL_MAX_GB_PER_S[vendor_row][column]
    if algorithm == "ring":
        bus = {
            "LL": min(ll_max, 0.5 * wires),
            "LL128": min(0.92 * wires, channels * table.RING_LL128_CHANNEL_GB_PER_S[generation]),
            "Simple": wires,
        }[protocol]
    else:
        simple = min(0.92 * wires, channels * table.TREE_CHANNEL_GB_PER_S[generation][column])
        lines = 7 / 9 if shape.num_nodes == 1 else 120 / 128
        bus = {
            "LL": min(simple / 3.8, ll_max),
            "LL128": min(simple * lines, channels * table.TREE_LL128_CHANNEL_GB_PER_S[generation][column]),
            "Simple": simple,
        }[protocol]
    return bus * 1e9


def latency_s(collective: str, algorithm: str, protocol: str, shape: GroupShape, network_s: float) -> float:
    """Latency that NCCL expects, seconds; ``network_s`` is what the wires between nodes add per hop."""
    column = table.PROTOCOL_ORDER.index(protocol)
    simple = protocol == "Simple"
    num_ranks, num_nodes = shape.num_ranks, shape.num_nodes
    base = table.BASE_LATENCY_US[algorithm][column]
    intra = table.NVLINK_LATENCY_US[algorithm][column]
    inter_row = "tree" if num_ranks == num_nodes else algorithm
    # Simple flushes received data to memory: the wire once more.
    inter = table.NETWORK_LATENCY_US[inter_row][column] + network_s * 1e6 * (2 if simple else 1)
    if algorithm == "tree":
        hops = (num_ranks // num_nodes - 1) * intra + math.floor(math.log2(num_nodes)) * inter
        return (base + 2 * hops) * 1e-6
    steps = _ring_steps(collective, num_ranks)
    if collective in ("broadcast", "reduce"):
        hop = table.NVLINK_LATENCY_US if num_nodes == 1 else table.NETWORK_LATENCY_US
        return (base + steps * hop["tree" if simple else "ring"][column]) * 1e-6
    inter_steps = 0 if num_nodes == 1 else _ring_steps(collective, num_nodes)
    if num_nodes > 1:
        intra = max(intra, table.NETWORK_OVERHEAD_US * (3 if simple else 1))
    return (base + (steps - inter_steps) * intra + inter_steps * inter) * 1e-6


def expected_time_s(
    collective: str, algorithm: str, protocol: str, num_bytes: int, shape: GroupShape, network_s: float
) -> float:
    """Time that NCCL expects, seconds: its alpha-beta model with its corrections."""
    all_reduce = collective in ("all_reduce", "barrier")
    bus = bus_bandwidth(algorithm, protocol, shape)
    latency = latency_s(collective, algorithm, protocol, shape, network_s)
    if algorithm == "ring":
        algbw = bus * shape.num_ranks / _ring_steps(collective, shape.num_ranks)
        per_chunk = num_bytes // (shape.graph.channels * shape.num_ranks)
        plateau = per_chunk >= table.RING_PLATEAU_FROM_BYTES
        if protocol == "Simple" and shape.num_nodes > 1 and all_reduce and plateau:
            latency *= table.RING_PLATEAU[shape.generation]
    else:
        algbw = bus / 2
        log_size = (num_bytes >> 6).bit_length() - 1
        correction = table.TREE_CORRECTION[protocol]
        if 0 <= log_size < len(correction):
            algbw *= correction[log_size]
    return latency + num_bytes / algbw


def choose(
    collective: str,
    num_bytes: int,
    shape: GroupShape,
    network_s: float,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> Choice:
    """The fastest algorithm and protocol by NCCL's own estimate, within what is forced.

    A forced algorithm that cannot run the collective is ignored, as NCCL_ALGO=Tree is for an all_gather.
    """
    algorithms = algorithms_of(collective)
    if algorithm in algorithms:
        algorithms = (algorithm,)
    protocols = (protocol,) if protocol else tuple(PROTOCOLS)
    options = (
        Choice(a, p, expected_time_s(collective, a, p, num_bytes, shape, network_s))
        for a in algorithms
        for p in protocols
    )
    return min(options, key=lambda option: option.time_s)
