"""What NCCL decides about messages: send/recv, and collectives that are made of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from simcore.collectives.channels import p2p_channels
from simcore.collectives.decision import Costs, Decision
from simcore.collectives.kinds import Collective
from simcore.collectives.layout import PlacedGroup
from simcore.collectives.protocols import (
    LL,
    P2P_LL_THRESHOLD_BYTES,
    P2P_NETWORK_CHUNK_BYTES,
    P2P_NVLINK_CHUNK_BYTES,
    SIMPLE,
    p2p_chunking,
)
from simcore.collectives.two_level import fits_two_levels, one_after_the_other, two_level_shares

#: What send/recv kernels, and so all_to_all, can speak (src/device/sendrecv.h).
_P2P_PROTOCOLS: Final = (LL.name, SIMPLE.name)


class Messages:
    """Decides about messages on one cluster."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs

    def decision(self, kind: Collective, num_bytes: int, layout: PlacedGroup) -> Decision:
        """One message between two ranks, or messages between all of a group."""
        return self._pair(kind, num_bytes, layout) if kind.pair else self._group(kind, num_bytes, layout)

    def _pair(self, kind: Collective, num_bytes: int, layout: PlacedGroup) -> Decision:
        crosses = layout.num_nodes > 1
        limit = P2P_NETWORK_CHUNK_BYTES if crosses else P2P_NVLINK_CHUNK_BYTES
        channels = p2p_channels(num_bytes, crosses, self._costs.graph(layout), limit)
        decision = self._messages(kind, num_bytes, num_bytes, channels, layout, 1)
        return replace(decision, algorithm="p2p")

    def _group(self, kind: Collective, num_bytes: int, layout: PlacedGroup) -> Decision:
        """Messages from everybody to everybody, or two levels of them where that is forced."""
        wanted = self._costs.settings.algorithms.among(kind.family, kind.algorithms)
        if wanted == ("hierarchical",) and fits_two_levels(layout):
            return self._two_levels(kind, num_bytes, layout)
        peers = layout.num_ranks - 1
        graph = self._costs.graph(layout)
        crosses = layout.num_nodes > 1
        limit = P2P_NETWORK_CHUNK_BYTES if crosses else P2P_NVLINK_CHUNK_BYTES
        message = kind.largest_message(num_bytes, layout.num_ranks)
        # Each peer gets channels of its own until they run out.
        channels = min(p2p_channels(message, crosses, graph, limit) * peers, graph.p2p_channels)
        sent = kind.sent_share(layout.num_ranks) * num_bytes
        return self._messages(kind, sent, message, channels, layout, peers)

    def _two_levels(self, kind: Collective, num_bytes: int, layout: PlacedGroup) -> Decision:
        sent = kind.sent_share(layout.num_ranks) * num_bytes
        inner, outer = two_level_shares(layout)
        nodes, local = layout.num_nodes, layout.max_per_node
        message = kind.largest_message(num_bytes, layout.num_ranks) * max(nodes, local)
        channels = self._costs.graph(layout).p2p_channels
        one_node = replace(layout, nodes=layout.nodes[:1], local_gpus=layout.local_gpus[:1], network_s=0.0)
        within = self._messages(kind, inner * sent, message, channels, one_node, local - 1)
        between = self._messages(kind, outer * sent, message, channels, layout, nodes - 1)
        nic = (
            self._costs.cluster.nic_bytes_per_s
            * self._costs.cluster.nic_efficiency
            * layout.nics_used
            / local
        )
        return one_after_the_other(within, between, layout, self._costs.wire, nic)

    def _messages(
        self,
        kind: Collective,
        sent_bytes: float,
        message_bytes: int,
        channels: int,
        layout: PlacedGroup,
        peers: int,
    ) -> Decision:
        """Messages of ``message_bytes`` from each rank to ``peers`` others, ``sent_bytes`` together."""
        crosses = layout.num_nodes > 1
        channels = self._costs.settings.bounded(channels)
        own_copy = not kind.pair
        allowed = self._costs.settings.protocols.among(kind.family, _P2P_PROTOCOLS)
        small = message_bytes <= P2P_LL_THRESHOLD_BYTES and LL.name in allowed
        protocol = LL if small or allowed == (LL.name,) else SIMPLE
        timing = self._costs.timing.protocols[protocol.name]
        hop = (
            self._costs.network_hop_s(protocol, layout) if crosses else timing.nvlink_hop_s + layout.inside_s
        )
        timed = self._costs.timing
        base = timed.p2p_ll_base_s if protocol is LL else timed.p2p_simple_base_s
        # One pair has the wire for itself: profiled send/recv kernels leave no room for a warm-up.
        warm_up = (
            self._costs.warm_up_s(timed.warm_up_s, sent_bytes) if own_copy and protocol is SIMPLE else 0.0
        )
        together = self._costs.timing.all_to_all_efficiency if own_copy else 1.0
        own = self._costs.timing.own_copy_step / peers if own_copy else 0.0
        return Decision(
            algorithm="pairwise",
            protocol=protocol,
            channels=channels,
            chunking=p2p_chunking(
                protocol, math.ceil(sent_bytes), channels, crosses, self._costs.settings.buffer_bytes
            ),
            num_steps=peers,
            latency_s=base + hop + (peers - 1) * timed.peer_s + warm_up,
            between_s=(peers - 1) * timed.peer_s + warm_up,
            sent_bytes=sent_bytes,
            fill_bytes=0.0,
            copy_bytes_per_s=channels * timing.channel_bytes_per_s * protocol.wire_overhead,
            copy_share=together / (1 + own),
            network_share=together,
        )
