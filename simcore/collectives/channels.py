"""How many channels NCCL opens for a group, and how many of them a message gets.

A channel is a thread block on every member, with its own ring and trees.  NCCL searches for the most rings
that the wires can feed, duplicates fast ones so that one block need not fill a wire alone
(src/graph/search.cc, ncclTopoCompute and ncclTopoDupChannels), doubles once more when it connects them
(src/graph/connect.cc, ncclTopoPostset), and starts small messages on fewer (src/enqueue.cc).
"""

from __future__ import annotations

from typing import Final

from simcore.collectives.kinds import Collective
from simcore.collectives.protocols import Protocol
from simcore.collectives.ring_search import NodeRings
from simcore.collectives.tuning_constants import GenerationTuning
from simcore.records import dataclass

#: The search keeps slowing its rings down while the next speed is above this share of the best so far.
_SEARCH_DEPTH: Final = 0.49
_DUPLICATE_FROM_GB_PER_S: Final = 25.0
_MANY_RINGS: Final = 4
_MAX_SEARCHED: Final = 16
_MAX_CHANNELS: Final = 32
_MAX_P2P_CHANNELS: Final = 32
_P2P_CHANNELS_PER_NET_PEER: Final = 2

#: Traffic that makes a further channel worth its start (src/enqueue.cc, MinTrafficPerChannel).
_MIN_TRAFFIC_BYTES: Final = 32 * 1024


@dataclass(frozen=True)
class ChannelGraph:
    """Rings that a group can run: ``channels`` of ``bytes_per_s`` each, as NCCL's tuner believes.

    ``nvlink_bytes_per_s`` is what rings within one node could reach together; ``searched`` how many rings the
    search found, which the tuner multiplies rates of a channel by.
    """

    channels: int
    bytes_per_s: float
    nvlink_bytes_per_s: float
    searched: int = 0

    @property
    def p2p_channels(self) -> int:
        """Channels that send/recv may use, a power of two (src/graph/paths.cc)."""
        return min(1 << (self.channels - 1).bit_length(), _MAX_P2P_CHANNELS)


def _best_rings(total_gb_per_s: float, speeds: tuple[float, ...]) -> tuple[int, float]:
    """(rings, GB/s each): the most bandwidth in total, the fewest rings among equals."""
    rings, speed = 0, 0.0
    for candidate in speeds:
        if rings and candidate <= _SEARCH_DEPTH * speed:
            break
        count = min(int(total_gb_per_s / candidate + 1e-9), _MAX_SEARCHED)
        if count * candidate > rings * speed:
            rings, speed = count, candidate
    return (rings, speed) if rings else (1, total_gb_per_s)


def _duplicated(rings: int, speed: float, kept_single_below: float) -> tuple[int, float]:
    if speed < _DUPLICATE_FROM_GB_PER_S or (speed < kept_single_below and rings > _MANY_RINGS):
        return rings, speed
    doubled = min(2 * rings, _MAX_SEARCHED)
    return doubled, speed / -(-doubled // rings)


def search_channels(
    believed: GenerationTuning,
    num_nodes: int,
    nvlink_bytes_per_s: float,
    nic_bytes_per_s: float,
    nics_used: int,
    node_rings: NodeRings | None = None,
) -> ChannelGraph:
    """Channels of a group's communicator.

    ``believed``: NCCL's numbers of the generation.  ``nvlink_bytes_per_s`` is what one GPU's port carries
    per direction, ``nic_bytes_per_s`` the line rate of one NIC, ``nics_used`` the NICs per node that belong
    to the group's GPUs.  ``node_rings`` are the rings that wires allow in a node without NVSwitches; there
    they stand for the port.
    """
    # One GPU of each node has no rings inside it.
    if node_rings is None or node_rings.bytes_per_s == float("inf"):
        within = _best_rings(nvlink_bytes_per_s / 1e9, believed.speeds_in_node_gb_per_s)
    else:
        within = len(node_rings.orders), node_rings.bytes_per_s / 1e9
        nvlink_bytes_per_s = node_rings.total_bytes_per_s
    rings, speed = within
    if num_nodes > 1:
        # One ring per NIC; NVLink must carry them all through the node.
        line = min(nic_bytes_per_s, nvlink_bytes_per_s / nics_used) / 1e9
        speeds = believed.speeds_between_nodes_gb_per_s
        rings, speed = nics_used, next((s for s in speeds if s <= line), line)
    rings, speed = _duplicated(rings, speed, believed.kept_single_below_gb_per_s)
    channels = min(2 * rings, _MAX_CHANNELS)
    return ChannelGraph(channels, rings * speed * 1e9 / channels, within[0] * within[1] * 1e9, rings)


def bounded(channels: int, min_channels: int | None, max_channels: int | None) -> int:
    """``channels`` within NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS; the maximum wins."""
    if min_channels is not None:
        channels = max(channels, min_channels)
    if max_channels is not None:
        channels = min(channels, max_channels)
    return channels


def channels_for(
    protocol: Protocol,
    algorithm: str,
    kind: Collective,
    num_bytes: int,
    num_ranks: int,
    available: int,
    min_channels: int | None = None,
) -> int:
    """Channels that a message gets out of ``available`` (topoGetAlgoInfo in src/enqueue.cc).

    Every thread must have work: ``thread_threshold_bytes`` each, times the ranks for a ring under LL.  A
    channel must also be worth its start: 32 KiB of traffic (:meth:`Collective.channel_traffic`), LL counting
    four times.
    """
    threshold = protocol.max_threads * protocol.thread_threshold_bytes
    traffic = kind.channel_traffic(num_ranks)
    if protocol.name == "LL":
        threshold *= num_ranks if algorithm == "ring" else 1
        traffic *= 4
    wanted = min(num_bytes // threshold, -(-num_bytes * traffic // _MIN_TRAFFIC_BYTES))
    return min(available, max(1, wanted, min_channels or 1))


def p2p_channels(num_bytes: int, crosses_nodes: bool, graph: ChannelGraph, chunk_bytes: int) -> int:
    """Channels of one send/recv: as many as there are parts of an eighth of a chunk, up to the peer's share.

    Two per peer over the network, all p2p channels within a node (src/enqueue.cc, calcP2pChunkSize).
    """
    limit = _P2P_CHANNELS_PER_NET_PEER if crosses_nodes else graph.p2p_channels
    parts = -(-num_bytes // (chunk_bytes // 8))
    return max(1, min(limit, parts))
