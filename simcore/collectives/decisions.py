"""What NCCL decides about a collective on a group of some shape, and what that costs.

Nothing here names a rank or a link: groups of equal shape share a :class:`Decision`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from simcore.collectives import tuner
from simcore.collectives.algorithms import algorithms_of, sent_share
from simcore.collectives.channels import (
    NVLS_CHANNELS,
    ChannelGraph,
    bounded,
    channels_for,
    p2p_channels,
    search_channels,
)
from simcore.collectives.forced import Forced
from simcore.collectives.layout import Layout
from simcore.collectives.protocols import (
    LL,
    LL128,
    P2P_LL_THRESHOLD_BYTES,
    P2P_NETWORK_CHUNK_BYTES,
    P2P_NVLINK_CHUNK_BYTES,
    SIMPLE,
    Chunking,
    Protocol,
    nvls_chunking,
    p2p_chunking,
    protocol_named,
    ring_chunking,
    tree_chunking,
)
from simcore.collectives.rings import tree_levels
from simcore.collectives.timing import GenerationTiming, timing_of
from simcore.collectives.tuning_constants import PAT_EFFICIENCY, PAT_RANK_LATENCY_US
from simcore.collectives.two_level import fits_two_levels, one_after_the_other, two_level_shares
from simcore.hardware.specs import ClusterSpec

#: What send/recv kernels, and so all_to_all, can speak (src/device/sendrecv.h).
_P2P_PROTOCOLS: Final = (LL.name, SIMPLE.name)


@dataclass(frozen=True)
class Settings:
    """What the user forces; the defaults leave it to NCCL.  See :class:`simcore.collectives.NcclPlanner`."""

    algorithms: Forced = tuner.ANY
    protocols: Forced = tuner.ANY
    max_channels: int | None = None
    min_channels: int | None = None
    buffer_bytes: int | None = None
    nvls: bool = True

    def bounded(self, channels: int) -> int:
        """``channels`` within the forced limits."""
        return bounded(channels, self.min_channels, self.max_channels)


@dataclass(frozen=True)
class Decision:
    """Everything about a plan that does not name links or ranks.

    ``data_bytes``: what an average rank sends.  ``fill_bytes``: how much it could send while the pipeline
    fills.  ``copy_bytes_per_s``: what the copy loops of all channels sustain, wire bytes.
    ``copy_share``, ``network_share``: the part of the time that the loops feed NVLink, and that NICs have
    something to send.  Of ``latency_s``, ``between_s`` passes between steps.  See Note [Time of a
    collective] in :mod:`simcore.collectives.timing`.
    """

    algorithm: str
    protocol: Protocol
    channels: int
    chunking: Chunking
    num_steps: int
    latency_s: float
    data_bytes: float
    fill_bytes: float
    copy_bytes_per_s: float
    copy_share: float
    network_share: float
    between_s: float = 0.0


class Decider:
    """Decides for one cluster and one set of forced settings."""

    def __init__(
        self, cluster: ClusterSpec, settings: Settings, timing: GenerationTiming | None = None
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._release = tuner.release_of(cluster.nccl_version)
        self._timing = timing or timing_of(cluster.gpu.generation)
        self._wire = cluster.nvswitch_bytes_per_s

    @property
    def nvls_efficiency(self) -> float:
        """Share of an NVLink port that multicast and in-switch reads reach."""
        return self._timing.nvls_efficiency

    def collective(self, collective: str, num_bytes: int, layout: Layout) -> Decision:
        """A collective of at least two ranks."""
        if collective == "all_to_all":
            return self._all_to_all(num_bytes, layout)
        base = "all_reduce" if collective == "barrier" else collective
        choice = self.choice(base, num_bytes, layout)
        graph = self._graph(layout)
        protocol = protocol_named(choice.protocol)
        if choice.algorithm in ("nvls", "nvls_tree"):
            return self._nvls(base, choice.algorithm, num_bytes, layout)
        channels = channels_for(
            protocol,
            choice.algorithm,
            base,
            num_bytes,
            layout.num_ranks,
            graph.channels,
            self._settings.min_channels,
        )
        decide = {"tree": self._tree, "pat": self._pat}.get(choice.algorithm, self._ring)
        return decide(base, protocol, num_bytes, channels, layout)

    def choice(self, collective: str, num_bytes: int, layout: Layout) -> tuner.Choice:
        """What NCCL's tuner takes for a collective other than all_to_all, and the time it expects."""
        shape = tuner.GroupShape(
            num_ranks=layout.num_ranks,
            num_nodes=layout.num_nodes,
            local_ranks=min(len(gpus) for gpus in layout.nodes),
            generation=self._cluster.gpu.generation,
            release=self._release,
            nvswitch=self._cluster.intra_node == "nvswitch" and self._settings.nvls,
            network_s=layout.network_s,
            graph=self._graph(layout),
        )
        return tuner.choose(collective, num_bytes, shape, self._settings.algorithms, self._settings.protocols)

    def expected_s(
        self, collective: str, num_bytes: int, layout: Layout, decision: Decision, wire_bytes_per_s: float
    ) -> tuple[float, float]:
        """(latency, whole time) by NCCL's tuner, seconds.

        It knows no messages: send/recv and all_to_all have the latency of one step of its ring and move what
        an average rank sends at ``wire_bytes_per_s``, as fast as the group's links let them.
        """
        if collective in ("all_to_all", "send_recv"):
            network_s = layout.network_s if layout.num_nodes > 1 else None
            latency = tuner.message_latency_s(decision.protocol.name, network_s)
            return latency, latency + decision.data_bytes * decision.protocol.wire_overhead / wire_bytes_per_s
        choice = self.choice(collective, num_bytes, layout)
        return choice.latency_s, choice.time_s

    def send_recv(self, num_bytes: int, layout: Layout) -> Decision:
        """One message between two ranks."""
        crosses = layout.num_nodes > 1
        limit = P2P_NETWORK_CHUNK_BYTES if crosses else P2P_NVLINK_CHUNK_BYTES
        channels = p2p_channels(num_bytes, crosses, self._graph(layout), limit)
        decision = self._messages(num_bytes, num_bytes, channels, layout, 1, own_copy=False)
        return replace(decision, algorithm="p2p")

    def _ring(
        self, collective: str, protocol: Protocol, num_bytes: int, channels: int, layout: Layout
    ) -> Decision:
        ranks, nodes = layout.num_ranks, layout.num_nodes
        timing = self._timing.protocols[protocol.name]
        passes = 2 if collective == "all_reduce" else 1
        outer = passes * (nodes - 1)
        inner = passes * (ranks - 1) - outer
        steps = inner + outer
        chunking = ring_chunking(
            collective, protocol, num_bytes, ranks, channels, self._settings.buffer_bytes
        )
        # The root of a chain is not known here: every edge of the ring is charged as one of its n - 1.
        chain = collective in ("broadcast", "reduce")
        tail = timing.scatter_tail_step if collective == "reduce_scatter" else timing.tail_step
        data_bytes = num_bytes if chain else sent_share(collective, ranks) * num_bytes
        lead_s, between_s = self._latencies_s(protocol, channels, inner, outer, layout, data_bytes)
        return Decision(
            algorithm="ring",
            protocol=protocol,
            channels=channels,
            chunking=chunking,
            num_steps=steps,
            latency_s=lead_s + between_s,
            between_s=between_s,
            data_bytes=data_bytes,
            # The last member of a chain starts n - 2 chunks after the first sends.
            fill_bytes=(ranks - 2) * data_bytes / chunking.num_chunks if chain else 0.0,
            copy_bytes_per_s=channels * timing.channel_bytes_per_s * protocol.wire_overhead,
            copy_share=steps / (steps + tail),
            network_share=1.0,
        )

    def _tree(
        self, collective: str, protocol: Protocol, num_bytes: int, channels: int, layout: Layout
    ) -> Decision:
        timing = self._timing.protocols[protocol.name]
        inner, outer = tree_levels(layout)
        steps = 2 * (inner + outer)
        chunking = tree_chunking(
            protocol,
            num_bytes,
            layout.num_ranks,
            layout.num_nodes,
            channels,
            inner + outer,
            self._settings.buffer_bytes,
        )
        data_bytes = sent_share(collective, layout.num_ranks) * num_bytes
        split = self._timing.tree_ll128_share if protocol is LL128 else 1.0
        # Each level stores a chunk before it forwards it, in all channels at once.  Under LL128 threads
        # forward line by line and only the proxy waits for a chunk; LL's are too small to tell.
        stores = 2 * outer if protocol is LL128 else steps - 1
        lead_s, between_s = self._latencies_s(protocol, channels, 2 * inner, 2 * outer, layout, data_bytes)
        return Decision(
            algorithm="tree",
            protocol=protocol,
            channels=channels,
            chunking=chunking,
            num_steps=steps,
            latency_s=lead_s + between_s,
            between_s=between_s,
            data_bytes=data_bytes,
            fill_bytes=stores * chunking.chunk_bytes * channels,
            copy_bytes_per_s=channels * split * timing.channel_bytes_per_s * protocol.wire_overhead,
            copy_share=self._timing.tree_efficiency,
            network_share=self._timing.tree_efficiency,
        )

    def _pat(
        self, collective: str, protocol: Protocol, num_bytes: int, channels: int, layout: Layout
    ) -> Decision:
        timing = self._timing.protocols[protocol.name]
        ranks = layout.num_ranks
        steps = (ranks - 1).bit_length()
        data_bytes = sent_share(collective, ranks) * num_bytes
        # A chunk of every rank passes through the kernel's loop, one after the other.  Nobody has published
        # measurements of PAT: what a chunk costs and what is left of the wire is what NCCL's own table says.
        serial_s = ranks * PAT_RANK_LATENCY_US * 1e-6
        lead_s, between_s = self._latencies_s(protocol, channels, 0, steps, layout, data_bytes)
        return Decision(
            algorithm="pat",
            protocol=protocol,
            channels=channels,
            chunking=ring_chunking(
                collective, protocol, num_bytes, ranks, channels, self._settings.buffer_bytes
            ),
            num_steps=steps,
            latency_s=lead_s + between_s + serial_s,
            between_s=between_s + serial_s,
            data_bytes=data_bytes,
            fill_bytes=0.0,
            copy_bytes_per_s=channels * timing.channel_bytes_per_s * protocol.wire_overhead,
            copy_share=1.0,
            network_share=PAT_EFFICIENCY,
        )

    def _nvls(self, collective: str, algorithm: str, num_bytes: int, layout: Layout) -> Decision:
        channels = self._settings.bounded(NVLS_CHANNELS)
        nodes, levels = layout.num_nodes, tree_levels(layout)[1]
        reduces = collective == "all_reduce"
        # Copy in, reduce, copy out; a gather has nothing to reduce, a scatter nothing to copy out.  Between
        # nodes up and down the tree in place of the middle one: one hop carries a chunk of B once, in
        # N / (2 (N-1)) of the time that a NIC needs for the 2 (N-1)/N of it that it sends in all.
        stages = 2 + 2 * levels if levels else 3 if reduces else 2
        filling = 1 + levels * nodes / (nodes - 1) if levels else stages - 1
        chunking = nvls_chunking(num_bytes, layout.max_per_node, channels, layout.num_nodes)
        data_bytes = sent_share(collective, layout.num_ranks) * num_bytes
        hops = 2 * levels * self._network_hop(SIMPLE, layout)
        warm_up_s = self._warm_up_s(self._timing.nvls_warm_up_s, data_bytes)
        # Between nodes the tree's sends take turns with the switch's reads and writes.
        shared = self._timing.tree_efficiency if levels else 1.0
        return Decision(
            algorithm=algorithm,
            protocol=SIMPLE,
            channels=channels,
            chunking=chunking,
            num_steps=stages,
            latency_s=self._timing.nvls_base_s + hops + warm_up_s,
            between_s=hops + warm_up_s,
            data_bytes=data_bytes,
            fill_bytes=filling * data_bytes / chunking.num_loops,
            # A channel's threads serve both directions of an all_reduce: for one, half of its progress.
            copy_bytes_per_s=channels * self._timing.nvls_channel_bytes_per_s * (1.0 if reduces else 0.5),
            copy_share=shared,
            network_share=shared,
        )

    def _two_levels(self, num_bytes: int, layout: Layout) -> Decision:
        sent = sent_share("all_to_all", layout.num_ranks) * num_bytes
        inner, outer = two_level_shares(layout)
        nodes, local = layout.num_nodes, layout.max_per_node
        message = -(-num_bytes // layout.num_ranks) * max(nodes, local)
        channels = self._graph(layout).p2p_channels
        one_node = replace(layout, nodes=layout.nodes[:1], local_gpus=layout.local_gpus[:1], network_s=0.0)
        within = self._messages(inner * sent, message, channels, one_node, local - 1, own_copy=True)
        between = self._messages(outer * sent, message, channels, layout, nodes - 1, own_copy=True)
        nic = self._cluster.nic_bytes_per_s * self._cluster.nic_efficiency * layout.nics_used / local
        return one_after_the_other(within, between, layout, self._wire, nic)

    def _all_to_all(self, num_bytes: int, layout: Layout) -> Decision:
        wanted = self._settings.algorithms.among("all_to_all", algorithms_of("all_to_all"))
        if wanted == ("hierarchical",) and fits_two_levels(layout):
            return self._two_levels(num_bytes, layout)
        peers = layout.num_ranks - 1
        graph = self._graph(layout)
        crosses = layout.num_nodes > 1
        limit = P2P_NETWORK_CHUNK_BYTES if crosses else P2P_NVLINK_CHUNK_BYTES
        message = -(-num_bytes // layout.num_ranks)
        # Each peer gets channels of its own until they run out.
        channels = min(p2p_channels(message, crosses, graph, limit) * peers, graph.p2p_channels)
        sent = sent_share("all_to_all", layout.num_ranks) * num_bytes
        return self._messages(sent, message, channels, layout, peers, own_copy=True)

    def _messages(
        self,
        data_bytes: float,
        message_bytes: int,
        channels: int,
        layout: Layout,
        peers: int,
        own_copy: bool,
    ) -> Decision:
        """Messages of ``message_bytes`` from each rank to ``peers`` others, ``data_bytes`` together."""
        crosses = layout.num_nodes > 1
        channels = self._settings.bounded(channels)
        collective = "all_to_all" if own_copy else "send_recv"
        allowed = self._settings.protocols.among(collective, _P2P_PROTOCOLS)
        small = message_bytes <= P2P_LL_THRESHOLD_BYTES and LL.name in allowed
        protocol = LL if small or allowed == (LL.name,) else SIMPLE
        timing = self._timing.protocols[protocol.name]
        hop = self._network_hop(protocol, layout) if crosses else timing.nvlink_hop_s + layout.inside_s
        timed = self._timing
        base = timed.p2p_ll_base_s if protocol is LL else timed.p2p_simple_base_s
        # One pair has the wire for itself: profiled send/recv kernels leave no room for a warm-up.
        warm_up = self._warm_up_s(timed.warm_up_s, data_bytes) if own_copy and protocol is SIMPLE else 0.0
        together = self._timing.all_to_all_efficiency if own_copy else 1.0
        own = self._timing.own_copy_step / peers if own_copy else 0.0
        return Decision(
            algorithm="pairwise",
            protocol=protocol,
            channels=channels,
            chunking=p2p_chunking(
                protocol, math.ceil(data_bytes), channels, crosses, self._settings.buffer_bytes
            ),
            num_steps=peers,
            latency_s=base + hop + (peers - 1) * timed.peer_s + warm_up,
            between_s=(peers - 1) * timed.peer_s + warm_up,
            data_bytes=data_bytes,
            fill_bytes=0.0,
            copy_bytes_per_s=channels * timing.channel_bytes_per_s * protocol.wire_overhead,
            copy_share=together / (1 + own),
            network_share=together,
        )

    def _latencies_s(
        self, protocol: Protocol, channels: int, inner: int, outer: int, layout: Layout, data_bytes: float
    ) -> tuple[float, float]:
        """(before the first byte moves, between the steps) of ``inner`` hops in nodes, ``outer`` between."""
        timing = self._timing.protocols[protocol.name]
        inside, network = timing.nvlink_hop_s + layout.inside_s, self._network_hop(protocol, layout)
        warm_up = self._warm_up_s(self._timing.warm_up_s, data_bytes) if protocol is SIMPLE else 0.0
        skew = self._timing.block_skew_s * (channels - 1) / (channels + 1)
        first = (inside if inner else network) if inner + outer else 0.0
        hops = inner * inside + outer * network
        return timing.base_s + skew + first, hops - first + warm_up

    def _warm_up_s(self, scale_s: float, data_bytes: float) -> float:
        return scale_s * math.log1p(data_bytes / self._timing.warm_up_bytes)

    def _network_hop(self, protocol: Protocol, layout: Layout) -> float:
        return layout.network_s + self._timing.protocols[protocol.name].network_hop_s

    def _graph(self, layout: Layout) -> ChannelGraph:
        graph = search_channels(
            self._cluster.gpu.generation,
            layout.num_nodes,
            self._wire,
            self._cluster.nic_bytes_per_s,
            layout.nics_used,
            layout.node_rings,
        )
        channels = self._settings.bounded(graph.channels)
        total = graph.channels * graph.bytes_per_s
        return replace(graph, channels=channels, bytes_per_s=total / channels)
