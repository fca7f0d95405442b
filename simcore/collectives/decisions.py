"""What NCCL decides about a collective on a group of some shape, and what that costs.

Nothing here names a rank or a link: groups of equal shape share a :class:`Decision`.
"""

from __future__ import annotations

from simcore.collectives import tuner
from simcore.collectives.channels import channels_for
from simcore.collectives.decision import Costs, Decision, ForcedSettings
from simcore.collectives.kinds import Collective
from simcore.collectives.layout import PlacedGroup
from simcore.collectives.loads import NVLS_HEADS, tree_levels
from simcore.collectives.messages import Messages
from simcore.collectives.protocols import (
    LL,
    LL128,
    SIMPLE,
    Protocol,
    nvls_chunking,
    protocol_named,
    ring_chunking,
    tree_chunking,
)
from simcore.collectives.routed import routed_decision
from simcore.collectives.timing import GenerationTiming, timing_of
from simcore.collectives.tuning_constants import PAT_EFFICIENCY, PAT_RANK_LATENCY_US
from simcore.hardware.specs import ClusterSpec


class Decider:
    """Decides for one cluster and one set of forced settings."""

    def __init__(
        self, cluster: ClusterSpec, settings: ForcedSettings, timing: GenerationTiming | None = None
    ) -> None:
        self._costs = Costs(cluster, settings, timing or timing_of(cluster.gpu.table("nccl")))
        self._messages = Messages(self._costs)
        self._release = self._costs.release

    @property
    def costs(self) -> Costs:
        """What every decision about this cluster needs."""
        return self._costs

    @property
    def nvls_efficiency(self) -> float:
        """Share of an NVLink port that multicast and in-switch reads reach."""
        return self._costs.timing.nvls_efficiency

    def decision(self, kind: Collective, num_bytes: int, layout: PlacedGroup) -> Decision:
        """A collective of at least two ranks, or a message between two."""
        if kind.kernel is not None:
            return routed_decision(kind.kernel, self._costs, num_bytes, layout)
        if kind.grouped:
            return self._messages.decision(kind, num_bytes, layout)
        choice = self.choice(kind, num_bytes, layout)
        graph = self._costs.graph(layout)
        protocol = protocol_named(choice.protocol)
        if choice.algorithm in ("nvls", "nvls_tree"):
            return self._nvls(kind, choice.algorithm, num_bytes, layout)
        channels = channels_for(
            protocol,
            choice.algorithm,
            kind,
            num_bytes,
            layout.num_ranks,
            graph.channels,
            self._costs.settings.min_channels,
        )
        decide = {"tree": self._tree, "pat": self._pat}.get(choice.algorithm, self._ring)
        return decide(kind, protocol, num_bytes, channels, layout)

    def choice(self, kind: Collective, num_bytes: int, layout: PlacedGroup) -> tuner.Choice:
        """What NCCL's tuner takes for a collective that it has a kernel for, and the time it expects."""
        shape = tuner.GroupShape(
            num_ranks=layout.num_ranks,
            num_nodes=layout.num_nodes,
            local_ranks=min(len(gpus) for gpus in layout.nodes),
            believed=self._costs.believed,
            release=self._release,
            nvswitch=self._costs.cluster.intra_node == "nvswitch" and self._costs.settings.nvls,
            network_s=self._costs.cluster.nccl_net_latency_s or layout.network_s,
            graph=self._costs.graph(layout),
            nvlink=self._costs.cluster.intra_node != "pcie" or layout.max_per_node == 1,
            same_rings=layout.num_rings == 1,
            switched=self._costs.cluster.intra_node == "nvswitch",
        )
        return tuner.choose(
            kind, num_bytes, shape, self._costs.settings.algorithms, self._costs.settings.protocols
        )

    def expected_s(
        self,
        kind: Collective,
        num_bytes: int,
        layout: PlacedGroup,
        decision: Decision,
        wire_bytes_per_s: float,
    ) -> tuple[float, float]:
        """(latency, whole time) by NCCL's tuner, seconds.

        It knows no messages: send/recv and all_to_all have the latency of one step of its ring and move what
        an average rank sends at ``wire_bytes_per_s``, as fast as the group's links let them.
        """
        if kind.grouped:
            told_s = self._costs.cluster.nccl_net_latency_s or layout.network_s
            network_s = told_s if layout.num_nodes > 1 else None
            latency = tuner.message_latency_s(decision.protocol.name, network_s)
            return latency, latency + decision.sent_bytes * decision.protocol.wire_overhead / wire_bytes_per_s
        choice = self.choice(kind, num_bytes, layout)
        return choice.latency_s, choice.time_s

    def _ring(
        self, kind: Collective, protocol: Protocol, num_bytes: int, channels: int, layout: PlacedGroup
    ) -> Decision:
        ranks, nodes = layout.num_ranks, layout.num_nodes
        timing = self._costs.timing.protocols[protocol.name]
        outer = kind.passes * (nodes - 1)
        inner = kind.passes * (ranks - 1) - outer
        steps = inner + outer
        chunking = ring_chunking(
            kind, protocol, num_bytes, ranks, channels, self._costs.settings.buffer_bytes
        )
        # The root of a chain is not known here: every edge of the ring is charged as one of its n - 1.
        chain = kind.root_chain
        tail = timing.scatter_tail_step if kind.gets_part else timing.tail_step
        sent_bytes = num_bytes if chain else kind.sent_share(ranks) * num_bytes
        lead_s, between_s = self._latencies_s(
            protocol, channels, inner, outer, layout, sent_bytes, in_step=not chain
        )
        # See Note [Chains] in simcore.collectives.timing.
        chunk_bytes = sent_bytes / chunking.num_chunks
        inside, between = _stores(inner, outer) if protocol is SIMPLE else (0, outer)
        return Decision(
            algorithm="ring",
            protocol=protocol,
            channels=channels,
            chunking=chunking,
            num_steps=steps,
            latency_s=lead_s + between_s,
            between_s=between_s,
            sent_bytes=sent_bytes,
            fill_bytes=0.0,
            fill_inside_bytes=inside * chunk_bytes if chain else 0.0,
            fill_between_bytes=between * chunk_bytes if chain else 0.0,
            copy_bytes_per_s=channels * timing.channel_bytes_per_s * protocol.wire_overhead,
            copy_share=1.0 if chain else steps / (steps + tail),
            network_share=1.0,
        )

    def _tree(
        self, kind: Collective, protocol: Protocol, num_bytes: int, channels: int, layout: PlacedGroup
    ) -> Decision:
        timing = self._costs.timing.protocols[protocol.name]
        inner, outer = tree_levels(layout)
        steps = 2 * (inner + outer)
        chunking = tree_chunking(
            protocol,
            num_bytes,
            layout.num_ranks,
            layout.num_nodes,
            channels,
            inner + outer,
            self._costs.settings.buffer_bytes,
            self._release,
        )
        sent_bytes = kind.sent_share(layout.num_ranks) * num_bytes
        split = self._costs.timing.tree_ll128_share if protocol is LL128 else 1.0
        # Each level stores a chunk before it forwards it, in all channels at once.  Under LL128 threads
        # forward line by line and only the proxy waits for a chunk; LL's are too small to tell.
        in_flight = chunking.chunk_bytes * channels
        stored = {LL.name: steps - 1, LL128.name: 2 * outer}.get(protocol.name, 0) * in_flight
        # A chunk crosses between nodes once over all NICs of a node, which carry a message in the time in
        # which an average rank sends sent_bytes.
        inside, between = _stores(2 * inner, 2 * outer) if protocol is SIMPLE else (0, 0)
        lead_s, between_s = self._latencies_s(protocol, channels, 2 * inner, 2 * outer, layout, sent_bytes)
        return Decision(
            algorithm="tree",
            protocol=protocol,
            channels=channels,
            chunking=chunking,
            num_steps=steps,
            latency_s=lead_s + between_s,
            between_s=between_s,
            sent_bytes=sent_bytes,
            fill_bytes=stored,
            fill_inside_bytes=inside * in_flight,
            fill_between_bytes=between * in_flight * sent_bytes / num_bytes,
            copy_bytes_per_s=channels * split * timing.channel_bytes_per_s * protocol.wire_overhead,
            copy_share=self._costs.timing.tree_efficiency,
            network_share=self._costs.timing.tree_efficiency,
        )

    def _pat(
        self, kind: Collective, protocol: Protocol, num_bytes: int, channels: int, layout: PlacedGroup
    ) -> Decision:
        timing = self._costs.timing.protocols[protocol.name]
        ranks = layout.num_ranks
        steps = (ranks - 1).bit_length()
        sent_bytes = kind.sent_share(ranks) * num_bytes
        # A chunk of every rank passes through the kernel's loop, one after the other.  Nobody has published
        # measurements of PAT: what a chunk costs and what is left of the wire is what NCCL's own table says.
        serial_s = ranks * PAT_RANK_LATENCY_US * 1e-6
        lead_s, between_s = self._latencies_s(protocol, channels, 0, steps, layout, sent_bytes)
        return Decision(
            algorithm="pat",
            protocol=protocol,
            channels=channels,
            chunking=ring_chunking(
                kind, protocol, num_bytes, ranks, channels, self._costs.settings.buffer_bytes
            ),
            num_steps=steps,
            latency_s=lead_s + between_s + serial_s,
            between_s=between_s + serial_s,
            sent_bytes=sent_bytes,
            fill_bytes=0.0,
            copy_bytes_per_s=channels * timing.channel_bytes_per_s * protocol.wire_overhead,
            copy_share=1.0,
            network_share=PAT_EFFICIENCY,
        )

    def _nvls(self, kind: Collective, algorithm: str, num_bytes: int, layout: PlacedGroup) -> Decision:
        channels = self._costs.settings.bounded(self._costs.believed.nvls_channels[layout.num_nodes > 1])
        nodes, levels = layout.num_nodes, tree_levels(layout)[1]
        both_ways, heads = not kind.one_way, min(layout.max_per_node, NVLS_HEADS)
        # Copy in, reduce, copy out; a gather has nothing to reduce, a scatter nothing to copy out.  Between
        # nodes up and down the tree in place of the middle one: one hop carries a chunk of B once, in
        # N / (2 (N-1)) of the time that a NIC needs for the 2 (N-1)/N of it that it sends in all.
        stages = 2 + 2 * levels if levels else 3 if both_ways else 2
        filling = 1 + levels * nodes / (nodes - 1) if levels else stages - 1
        chunking = nvls_chunking(num_bytes, heads, channels, layout.num_nodes)
        sent_bytes = kind.sent_share(layout.num_ranks) * num_bytes
        hops = 2 * levels * self._costs.network_hop_s(SIMPLE, layout)
        warm_up_s = self._costs.warm_up_s(self._costs.timing.nvls_warm_up_s, sent_bytes)
        # Between nodes the tree's sends take turns with the switch's reads and writes.
        shared = self._costs.timing.tree_efficiency if levels else 1.0
        return Decision(
            algorithm=algorithm,
            protocol=SIMPLE,
            channels=channels,
            chunking=chunking,
            num_steps=stages,
            latency_s=self._costs.timing.nvls_base_s + hops + warm_up_s,
            between_s=hops + warm_up_s,
            sent_bytes=sent_bytes,
            fill_bytes=filling * sent_bytes / chunking.num_loops,
            # A channel's threads serve both directions of an all_reduce: for one, half of its progress.
            copy_bytes_per_s=channels
            * self._costs.timing.nvls_channel_bytes_per_s
            * (1.0 if both_ways else 0.5),
            copy_share=shared,
            network_share=shared,
        )

    def _latencies_s(
        self,
        protocol: Protocol,
        channels: int,
        inner: int,
        outer: int,
        layout: PlacedGroup,
        sent_bytes: float,
        *,
        in_step: bool = True,
    ) -> tuple[float, float]:
        """(before the first byte moves, between the steps) of ``inner`` hops in nodes, ``outer`` between.

        ``in_step``: all ranks send at once, so that their channels have to drift apart first.
        """
        timing = self._costs.timing.protocols[protocol.name]
        inside, network = timing.nvlink_hop_s + layout.inside_s, self._costs.network_hop_s(protocol, layout)
        generation = self._costs.timing
        warms = in_step and protocol is SIMPLE
        warm_up = self._costs.warm_up_s(generation.warm_up_s, sent_bytes) if warms else 0.0
        skew = generation.block_skew_s * (channels - 1) / (channels + 1)
        first = (inside if inner else network) if inner + outer else 0.0
        hops = inner * inside + outer * network
        return timing.base_s + skew + first, hops - first + warm_up


def _stores(inner: int, outer: int) -> tuple[int, int]:
    """Hops (within nodes, between them) that a chunk crosses before the last rank receives without a pause.

    All but one of the slower kind, whose time is a part of the whole message's.
    """
    return (inner, outer - 1) if outer else (max(0, inner - 1), 0)
