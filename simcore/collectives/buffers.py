"""Memory that NCCL's communicators take of a GPU, outside of any framework's allocator.

Note [Buffers of a communicator]
    A connection to a peer has a buffer of each protocol for each channel (src/init.cc, computeBuffSizes):
    0.5, 4.7 and 4 MiB.  Over NVLink the receiver has all three, in whole 2 MiB as memory is shared, and the
    sender 2 MiB for its state; where receivers read (Ampere) the sender has Simple's, 6 MiB each
    (src/transport/p2p.cc).  Over the network both ends have theirs on the GPU, the sender's LL is the host's
    (src/transport/net.cc).  A ring connects a rank with the next and the one before.  A tree is a chain in
    its node, both ways, one way of which are the ring's connections, with parent and children on other
    nodes.  NVLS has two buffers of eight steps for each channel and each GPU of the node
    (src/transport/nvls.cc).  Messages have connections of their own, on as many channels as a peer gets;
    over the network they share one pool (sharedNetBuffersInit).  Since 2.22 algorithms are connected when
    they are first used, before that rings and trees at once.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from simcore.collectives.channels import ChannelGraph
from simcore.collectives.layout import PlacedGroup
from simcore.collectives.protocols import LL, LL128, P2P_NETWORK_CHUNK_BYTES
from simcore.units import KIB, MIB

#: CUDA_IPC_MIN: what GPUs share comes in whole ones.
_SHARED_STEP: Final = 2 * MIB
#: Of a channel of NVLS: NVLS_CHUNKSIZE of 128 KiB in NCCL_STEPS, up and down.
_NVLS_BYTES: Final = 2 * 8 * 128 * KIB
#: Messages under way on each channel of the pool that those over the network share (NCCL_SHARED_STEPS).
_SHARED_STEPS: Final = 16
#: The release since which nothing is connected before it is used.
_CONNECTS_LATE: Final = (2, 22)


def connection_bytes(simple_bytes: int) -> tuple[int, int]:
    """Of a channel of a rank that sends to one peer and receives from one: over NVLink, over the network."""
    received = LL.buffer_bytes + LL128.buffer_bytes + simple_bytes + 1
    inside = -(-received // _SHARED_STEP) * _SHARED_STEP + _SHARED_STEP
    return inside, LL.buffer_bytes + 2 * (LL128.buffer_bytes + simple_bytes)


def communicator_bytes(
    layout: PlacedGroup,
    graph: ChannelGraph,
    algorithms: Collection[str],
    *,
    nvls_channels: int,
    peers_inside: int,
    peers_outside: int,
    simple_bytes: int,
    release: tuple[int, int],
) -> int:
    """Bytes on a rank in the middle of its node's chains, which has most, and an average rank's share of
    connections to other nodes; see Note [Buffers of a communicator].

    ``algorithms`` that its collectives run by; ``peers_inside`` and ``peers_outside`` of its node with which
    it exchanges messages.
    """
    inside, across = connection_bytes(simple_bytes)
    per_node, nodes = layout.max_per_node, layout.num_nodes
    used = set(algorithms)
    if used and release < _CONNECTS_LATE:
        used |= {"ring", "tree"}
    rings, trees = bool(used & {"ring", "pat"}), bool(used & {"tree", "nvls_tree"})
    total = 0.0
    if rings:
        crosses = 1 / per_node if nodes > 1 else 0.0  # of all its hops
        total += graph.channels * ((1 - crosses) * inside + crosses * across)
    if trees:
        ways = min(2, per_node - 1) - (rings and per_node > 1)
        total += graph.channels * (ways * inside + 2 * (nodes - 1) / nodes / per_node * across)
    if used & {"nvls", "nvls_tree"}:
        total += nvls_channels * _NVLS_BYTES * per_node
    each = graph.p2p_channels if nodes == 1 else min(2, graph.p2p_channels)
    total += peers_inside * each * inside
    if peers_outside:
        total += 2 * graph.p2p_channels * _SHARED_STEPS * P2P_NETWORK_CHUNK_BYTES
    return round(total)
