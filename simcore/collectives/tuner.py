"""NCCL's choice of algorithm and protocol: the smallest latency + bytes / bandwidth by its own table.

Follows ncclTopoTuneModel and ncclTopoGetAlgoTime (NVIDIA/nccl src/graph/tuning.cc at 5067397c).  CollNet is
not offered: it needs switches that add (SHARP), which no cluster profile has.
"""

from __future__ import annotations

from typing import Final

from simcore.collectives import tuning_constants as table
from simcore.collectives.channels import ChannelGraph
from simcore.collectives.forced import Forced
from simcore.collectives.kinds import Collective
from simcore.collectives.loads import NVLS_HEADS
from simcore.collectives.protocols import LL128, PROTOCOLS
from simcore.errors import InputError
from simcore.records import dataclass

#: NVSwitch reductions are set up for more than two GPUs of a node (src/transport/nvls.cc, ncclNvlsInit).
_NVLS_MIN_LOCAL_RANKS: Final = 3
#: The release that made NVLS and NVLSTree the default (NCCL 2.18 release notes).
_NVLS_FROM_RELEASE: Final = (2, 18)
#: The release that added PAT (NCCL 2.23 release notes); only where every node holds one rank.
_PAT_FROM_RELEASE: Final = (2, 23)
#: What ring rates that the search rounds down leave of a port.
_ROUNDED: Final = 1.03
ANY: Final = Forced()


@dataclass(frozen=True)
class GroupShape:
    """What the tuner knows of a group.

    ``believed``: its numbers of the GPUs' generation; ``release``: NCCL's, major and minor.
    ``local_ranks``: members on the emptiest node.  ``network_s``: what the wires between nodes add per hop.
    ``graph``: the channels that NCCL searched.  ``nvlink``: whether
    NVLink joins members of a node, without which LL128 is only run when forced (src/graph/tuning.cc).
    ``same_rings``: all channels go round in one order, as behind NVSwitches (sameChannels of the graph).
    ``switched``: NVSwitches join the GPUs of a node, so that any of them can be given to a tree's edges.
    """

    num_ranks: int
    num_nodes: int
    local_ranks: int
    believed: table.GenerationTuning
    release: tuple[int, int]
    nvswitch: bool
    network_s: float
    graph: ChannelGraph
    nvlink: bool = True
    same_rings: bool = False
    switched: bool = False


@dataclass(frozen=True)
class Choice:
    """An algorithm and protocol with the latency and the whole time that NCCL expects of them, seconds."""

    algorithm: str
    protocol: str
    latency_s: float
    time_s: float


def available(kind: Collective, algorithm: str, protocol: str, shape: GroupShape) -> bool:
    """Whether NCCL would consider ``algorithm`` under ``protocol`` for a group of this shape."""
    if algorithm == "pat":
        alone = shape.num_nodes == shape.num_ranks
        return alone and shape.release >= _PAT_FROM_RELEASE and protocol == "Simple"
    if algorithm not in ("nvls", "nvls_tree"):
        return True
    switch = shape.nvswitch and shape.believed.nvls_efficiency > 0
    supported = switch and shape.release >= _NVLS_FROM_RELEASE
    fits = shape.num_nodes == 1 if algorithm == "nvls" else shape.num_nodes > 1
    # Only sums of everybody's data may leave GPUs without a slice of their own (src/enqueue.cc).
    fits = fits and (kind.passes == 2 or shape.local_ranks <= NVLS_HEADS)
    return supported and fits and protocol == "Simple" and shape.local_ranks >= _NVLS_MIN_LOCAL_RANKS


def _ll_max(shape: GroupShape) -> float:
    """Most that LL moves, GB/s."""
    believed = shape.believed.ll_max_gb_per_s
    rates = believed if shape.num_nodes == 1 else table.LL_MAX_BETWEEN_NODES_GB_PER_S
    return rates[table.scale_column(shape.num_nodes)]


def _ring_bus(protocol: str, shape: GroupShape, wires: float) -> float:
    per_channel = shape.believed.ring_ll128_channel_gb_per_s
    return {
        "LL": min(_ll_max(shape), 0.5 * wires),
        "LL128": min(0.92 * wires, shape.graph.searched * per_channel),
        "Simple": wires,
    }[protocol]


def _tree_bus(protocol: str, shape: GroupShape, wires: float) -> float:
    column = table.scale_column(shape.num_nodes)
    believed, channels = shape.believed, shape.graph.searched
    if shape.num_nodes == 2 and shape.switched:
        # Each node is the root of one of the two trees, so that a byte crosses a NIC once: the search widens
        # trees inside nodes up to twice the NIC's rate (src/graph/search.cc, ncclTopoCompute, pass 2), and
        # for two nodes the tuner reads that bandwidth.
        wires = min(2 * wires, max(wires, shape.graph.nvlink_bytes_per_s / 1e9))
    simple = min(0.92 * wires, channels * believed.tree_channel_gb_per_s[column])
    lines = 7 / 9 if shape.num_nodes == 1 else 120 / 128
    return {
        "LL": min(simple / 3.8, _ll_max(shape)),
        "LL128": min(simple * lines, channels * believed.tree_ll128_channel_gb_per_s[column]),
        "Simple": simple,
    }[protocol]


def _nvls_bus(algorithm: str, kind: Collective, shape: GroupShape, wires: float) -> float:
    believed = shape.believed
    nvlink = shape.graph.nvlink_bytes_per_s / 1e9
    channels = believed.nvls_channels[shape.num_nodes > 1]
    if algorithm == "nvls":
        nvlink, heads = _nvls_search(nvlink, shape)
        within = nvlink * believed.nvls_efficiency * (heads - 1) / heads
    else:
        within = nvlink * believed.nvls_efficiency * (channels - 1) / channels
    if kind.one_way:
        return within * (shape.num_ranks - 1) / shape.num_ranks
    within *= 2
    if algorithm == "nvls":
        return within
    # Two nodes exchange halves: each byte crosses once, not twice.
    between = wires * (2 if shape.num_nodes <= 2 else 1)
    column = table.scale_column(shape.num_nodes)
    return min(within, between, channels * believed.nvls_tree_channel_gb_per_s[column])


def _nvls_search(nvlink: float, shape: GroupShape) -> tuple[float, int]:
    """(GB/s of all channels, channels) that NCCL's search finds for a reduction within one node.

    A channel for each GPU, up to :data:`NVLS_HEADS`; it takes its rate from every GPU's port and twice from
    that of its own (src/graph/search.cc, ncclTopoSearchTryNvls).  Of few GPUs the fastest rate that the
    search tries is what limits, so that rings win among four.
    """
    heads = min(shape.num_ranks, NVLS_HEADS)
    speeds = shape.believed.speeds_in_node_gb_per_s
    speed = next((s for s in speeds if (heads + 1) * s <= nvlink * _ROUNDED), speeds[-1])
    return heads * speed, heads


def bus_bandwidth(kind: Collective, algorithm: str, protocol: str, shape: GroupShape) -> float:
    """Bus bandwidth that NCCL expects, bytes/s (the busbw of nccl-tests)."""
    wires = shape.graph.channels * shape.graph.bytes_per_s / 1e9
    if algorithm == "ring":
        bus = _ring_bus(protocol, shape, wires)
    elif algorithm == "tree":
        bus = _tree_bus(protocol, shape, wires)
    elif algorithm == "pat":
        bus = table.PAT_EFFICIENCY * wires
    else:
        bus = _nvls_bus(algorithm, kind, shape, wires)
    return bus * 1e9


def message_latency_s(protocol: str, network_s: float | None) -> float:
    """What a send/recv is charged before its bytes: start and one hop of a ring, within a node if None.

    NCCL's tuner has no entry for messages; this is its ring with a single step.
    """
    column = table.PROTOCOL_ORDER.index(protocol)
    base = table.BASE_LATENCY_US["ring"][column] * 1e-6
    if network_s is None:
        return base + table.NVLINK_LATENCY_US["ring"][column] * 1e-6
    wire_s = network_s * (2 if protocol == "Simple" else 1)
    return base + table.NETWORK_LATENCY_US["ring"][column] * 1e-6 + wire_s


def latency_s(kind: Collective, algorithm: str, protocol: str, shape: GroupShape) -> float:
    """Latency that NCCL expects, seconds."""
    num_ranks, num_nodes = shape.num_ranks, shape.num_nodes
    simple = protocol == "Simple"
    # Simple flushes received data to memory: the wire once more.
    wire = shape.network_s * 1e6 * (2 if simple else 1)
    levels = num_nodes.bit_length() - 1  # log2, rounded down
    if algorithm in ("nvls", "nvls_tree"):
        between = 2 * levels * (table.NVLS_TREE_NETWORK_LATENCY_US + wire)
        return (table.NVLS_NVLINK_LATENCY_US + between) * 1e-6
    column = table.PROTOCOL_ORDER.index(protocol)
    if algorithm == "pat":
        # One rank per node exposes the network's latency in full: NCCL reads the tree's.
        exposed = table.NETWORK_LATENCY_US["tree"][column] + wire
        tree = levels * exposed / table.PAT_LATENCY_SHARE + num_ranks * table.PAT_RANK_LATENCY_US
        return (table.PAT_BASE_LATENCY_US + tree) * 1e-6
    base = table.BASE_LATENCY_US[algorithm][column]
    intra = table.NVLINK_LATENCY_US[algorithm][column]
    inter_row = "tree" if num_ranks == num_nodes else algorithm
    inter = table.NETWORK_LATENCY_US[inter_row][column] + wire
    if algorithm == "tree":
        return (base + 2 * ((num_ranks // num_nodes - 1) * intra + levels * inter)) * 1e-6
    steps = kind.ring_steps(num_ranks)
    if kind.root_chain and shape.same_rings:
        # One hop, whatever the length of the ring: NCCL expects the rest to be hidden.
        hop_us = intra if num_nodes == 1 else table.NETWORK_LATENCY_US["ring"][column]
        return (base + hop_us) * 1e-6
    if kind.root_chain:
        hop = table.NVLINK_LATENCY_US if num_nodes == 1 else table.NETWORK_LATENCY_US
        return (base + steps * hop["tree" if simple else "ring"][column]) * 1e-6
    inter_steps = 0 if num_nodes == 1 else kind.ring_steps(num_nodes)
    if num_nodes > 1:
        intra = max(intra, table.NETWORK_OVERHEAD_US * (3 if simple else 1))
    return (base + (steps - inter_steps) * intra + inter_steps * inter) * 1e-6


def expected(kind: Collective, algorithm: str, protocol: str, num_bytes: int, shape: GroupShape) -> Choice:
    """Time that NCCL expects: its alpha-beta model with its corrections."""
    bus = bus_bandwidth(kind, algorithm, protocol, shape)
    latency = latency_s(kind, algorithm, protocol, shape)
    if algorithm == "tree":
        algbw = bus / 2
        log_size = (num_bytes >> 6).bit_length() - 1
        correction = table.TREE_CORRECTION[protocol]
        if 0 <= log_size < len(correction):
            algbw *= correction[log_size]
    elif algorithm != "ring" and kind.one_way:
        algbw = bus  # here NCCL takes the one for the other
    else:
        algbw = bus * shape.num_ranks / kind.ring_steps(shape.num_ranks)
    if algorithm == "ring" and protocol == "Simple" and shape.num_nodes > 1 and kind.passes == 2:
        per_chunk = num_bytes // (shape.graph.channels * shape.num_ranks)
        if per_chunk >= table.RING_PLATEAU_FROM_BYTES:
            latency *= shape.believed.ring_plateau
    return Choice(algorithm, protocol, latency, latency + num_bytes / algbw)


def choose(
    kind: Collective,
    num_bytes: int,
    shape: GroupShape,
    algorithms: Forced = ANY,
    protocols: Forced = ANY,
) -> Choice:
    """The fastest algorithm and protocol by NCCL's own estimate, within what is forced.

    A forced algorithm that does not exist for the collective or the group is ignored, as NCCL_ALGO=Tree is
    for an all_gather.  InputError when a forced pair contradicts itself (NVLS under LL).
    """
    present = tuple(a for a in kind.algorithms if any(available(kind, a, p, shape) for p in PROTOCOLS))
    picked = algorithms.among(kind.family, present)
    speaking = protocols.among(kind.family, tuple(PROTOCOLS))
    if not shape.nvlink and len(speaking) > 1:
        speaking = tuple(name for name in speaking if name != LL128.name)
    options = [
        expected(kind, a, p, num_bytes, shape)
        for a in picked
        for p in speaking
        if available(kind, a, p, shape)
    ]
    if not options:
        raise InputError(
            f"NCCL algorithm {', '.join(map(repr, picked))} does not run under protocol"
            f" {', '.join(map(repr, speaking))}; use Simple"
        )
    return min(options, key=lambda option: option.time_s)
