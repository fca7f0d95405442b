"""NCCL's planner: a collective on given ranks becomes a :class:`CollectivePlan`.

What NCCL decides depends on the shape of a group, not on which nodes it sits; the decision is cached by shape
and size, the loads on links by ranks, so that a plan for one more group of a known shape is a lookup.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from simcore.collectives import closed_form, tuner
from simcore.collectives.algorithms import ALGORITHMS, algorithms_of, sent_share
from simcore.collectives.channels import ChannelGraph, bounded, channels_for, p2p_channels, search_channels
from simcore.collectives.layout import Fabric, Layout, layout_of
from simcore.collectives.plan import CollectivePlan, LinkUse
from simcore.collectives.protocols import (
    LL,
    P2P_LL_THRESHOLD_BYTES,
    P2P_NETWORK_CHUNK_BYTES,
    P2P_NVLINK_CHUNK_BYTES,
    SIMPLE,
    Chunking,
    Protocol,
    p2p_chunking,
    protocol_named,
    ring_chunking,
    tree_chunking,
)
from simcore.collectives.rings import (
    Ids,
    Weights,
    all_to_all_load,
    p2p_load,
    ring_load,
    tree_levels,
    tree_load,
)
from simcore.collectives.timing import timing_of
from simcore.errors import InputError, nearest
from simcore.units import PS_PER_S

#: torch.distributed's barrier is an all_reduce of one word.
_BARRIER_BYTES: Final = 4
#: NCCL's largest number of channels (src/include/device.h, MAXCHANNELS).
_MAX_CHANNELS: Final = 64
#: Traffic per byte by which NCCL spreads work over channels (src/enqueue.cc, ncclFuncTrafficPerByte).
_TRAFFIC_PER_BYTE: Final = {"all_reduce": 2, "barrier": 2}


@dataclass(frozen=True)
class _Decision:
    """Everything about a plan that does not name links or ranks."""

    algorithm: str
    protocol: Protocol
    channels: int
    chunking: Chunking
    num_steps: int
    latency_s: float
    data_bytes: float  # that an average rank sends
    rate_cap: float  # wire bytes/s


@dataclass(frozen=True)
class _Load:
    """Links of one group under one algorithm, with the tightest capacity / weight among them."""

    ids: Ids
    weights: Weights
    uses: tuple[LinkUse, ...]
    tightest: float
    network_share: float  # of what an average rank sends, the part that crosses nodes


class NcclPlanner:
    """Plans collectives and send/recv as NCCL runs them on a topology.

    ``algorithm`` ("ring", "tree"), ``protocol`` ("LL", "LL128", "Simple"), ``min_channels``,
    ``max_channels`` and ``buffer_bytes`` force what NCCL_ALGO, NCCL_PROTO, NCCL_MIN_NCHANNELS,
    NCCL_MAX_NCHANNELS and NCCL_BUFFSIZE force.  Errors: InputError for an unknown name, a channel count
    outside 1..64, min > max, or a buffer smaller than 4 KiB.
    """

    def __init__(
        self,
        topology: Fabric,
        *,
        algorithm: str | None = None,
        protocol: str | None = None,
        max_channels: int | None = None,
        min_channels: int | None = None,
        buffer_bytes: int | None = None,
    ) -> None:
        if algorithm is not None and algorithm.lower() not in ALGORITHMS:
            raise InputError(f"unknown NCCL algorithm {algorithm!r}{nearest(algorithm.lower(), ALGORITHMS)}")
        for name, value in (("min_channels", min_channels), ("max_channels", max_channels)):
            if value is not None and not 1 <= value <= _MAX_CHANNELS:
                raise InputError(f"{name} must be between 1 and {_MAX_CHANNELS}, not {value}")
        if min_channels is not None and max_channels is not None and min_channels > max_channels:
            raise InputError(f"min_channels {min_channels} is above max_channels {max_channels}")
        if buffer_bytes is not None and buffer_bytes < 4096:
            raise InputError(f"buffer_bytes must be at least 4096, not {buffer_bytes}")
        self._topology = topology
        self._algorithm = algorithm.lower() if algorithm else None
        self._protocol = protocol_named(protocol) if protocol else None
        self._max_channels = max_channels
        self._min_channels = min_channels
        self._buffer_bytes = buffer_bytes
        self._gpu = topology.cluster.gpu
        self._timing = timing_of(self._gpu.generation)
        self._network_s = self._same_leaf_latency_s()
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._graphs: dict[tuple[object, ...], ChannelGraph] = {}
        self._loads: dict[tuple[str, tuple[int, ...]], _Load] = {}
        self._decisions: dict[tuple[object, ...], _Decision] = {}
        self._plans: dict[tuple[str, int, tuple[int, ...]], CollectivePlan] = {}

    def plan(self, collective: str, num_bytes: int, ranks: Sequence[int]) -> CollectivePlan:
        """The plan of ``collective`` over ``ranks``, sizes as nccl-tests counts them (in bytes).

        A group of one rank has a plan without channels and without latency.  InputError for an unknown
        collective, a negative or fractional size, no ranks, a rank twice or outside the topology.
        """
        group = tuple(ranks)
        key = (collective, num_bytes, group)
        found = self._plans.get(key)
        if found is None:
            algorithms_of(collective)
            _check_bytes(num_bytes)
            found = self._plans[key] = self._plan(collective, num_bytes, group)
        return found

    def plan_p2p(self, num_bytes: int, src_rank: int, dst_rank: int) -> CollectivePlan:
        """The plan of a send/recv pair.  InputError as :meth:`plan`, or when a rank sends to itself."""
        key = ("send_recv", num_bytes, (src_rank, dst_rank))
        found = self._plans.get(key)
        if found is None:
            _check_bytes(num_bytes)
            if src_rank == dst_rank:
                raise InputError(f"rank {src_rank} cannot send to itself")
            found = self._plans[key] = self._plan_p2p(num_bytes, src_rank, dst_rank)
        return found

    def _plan(self, collective: str, num_bytes: int, ranks: tuple[int, ...]) -> CollectivePlan:
        layout = self._layout(ranks)
        if layout.num_ranks == 1:
            return _nothing(collective, num_bytes, ranks)
        moved = _BARRIER_BYTES if collective == "barrier" else num_bytes
        key = (collective, moved, layout.signature)
        decision = self._decisions.get(key)
        if decision is None:
            pairwise = collective == "all_to_all"
            decision = (
                self._decide_all_to_all(moved, layout)
                if pairwise
                else self._decide(collective, moved, layout)
            )
            self._decisions[key] = decision
        return self._assemble(collective, num_bytes, ranks, decision, self._load(decision.algorithm, ranks))

    def _plan_p2p(self, num_bytes: int, src_rank: int, dst_rank: int) -> CollectivePlan:
        ranks = (src_rank, dst_rank)
        layout = self._layout(ranks)
        crosses = layout.num_nodes > 1
        key = ("send_recv", num_bytes, crosses)
        decision = self._decisions.get(key)
        if decision is None:
            limit = P2P_NETWORK_CHUNK_BYTES if crosses else P2P_NVLINK_CHUNK_BYTES
            channels = self._bounded(p2p_channels(num_bytes, crosses, self._graph(layout), limit))
            decision = self._p2p_decision(num_bytes, num_bytes, channels, layout, peers=1)
            self._decisions[key] = decision
        return self._assemble("send_recv", num_bytes, ranks, decision, self._load("p2p", ranks))

    def _decide(self, collective: str, num_bytes: int, layout: Layout) -> _Decision:
        graph = self._graph(layout)
        shape = tuner.GroupShape(layout.num_ranks, layout.num_nodes, self._gpu.generation, graph)
        forced = self._protocol.name if self._protocol else None
        choice = tuner.choose(collective, num_bytes, shape, self._network_s, self._algorithm, forced)
        protocol = protocol_named(choice.protocol)
        base = "all_reduce" if collective == "barrier" else collective
        ranks, nodes = layout.num_ranks, layout.num_nodes
        traffic = _TRAFFIC_PER_BYTE.get(collective, ranks if base != collective or _sharded(base) else 1)
        channels = channels_for(
            protocol, choice.algorithm, num_bytes, ranks, graph.channels, traffic, self._min_channels
        )
        timing = self._timing.protocols[protocol.name]
        share = sent_share(collective, ranks)
        rate = channels * timing.channel_bytes_per_s
        if choice.algorithm == "tree":
            inner, outer = tree_levels(layout)
            chunks = tree_chunking(
                protocol, num_bytes, ranks, nodes, channels, inner + outer, self._buffer_bytes
            )
            inner, outer = 2 * inner, 2 * outer
            rate = min(rate, self._wire_rate()) * self._timing.tree_efficiency
        else:
            chunks = ring_chunking(base, protocol, num_bytes, ranks, channels, self._buffer_bytes)
            passes = 2 if base == "all_reduce" else 1
            outer = passes * (nodes - 1) if nodes > 1 else 0
            inner = passes * (ranks - 1) - outer
            steps = inner + outer
            rate = min(rate, self._wire_rate() / protocol.wire_overhead)
            rate *= steps / (steps + self._timing.tail_step)
        latency = math.fsum((timing.base_s, inner * timing.nvlink_hop_s, outer * self._network_hop(protocol)))
        return _Decision(
            algorithm=choice.algorithm,
            protocol=protocol,
            channels=channels,
            chunking=chunks,
            num_steps=inner + outer,
            latency_s=latency,
            data_bytes=share * num_bytes,
            rate_cap=rate * protocol.wire_overhead,
        )

    def _decide_all_to_all(self, num_bytes: int, layout: Layout) -> _Decision:
        ranks = layout.num_ranks
        graph = self._graph(layout)
        crosses = layout.num_nodes > 1
        limit = P2P_NETWORK_CHUNK_BYTES if crosses else P2P_NVLINK_CHUNK_BYTES
        message = -(-num_bytes // ranks)
        # Each peer gets its own channels until they run out.
        channels = min(
            p2p_channels(message, crosses, graph, limit) * (ranks - 1), _power_of_two(graph.channels)
        )
        sent = sent_share("all_to_all", ranks) * num_bytes
        return self._p2p_decision(sent, message, self._bounded(channels), layout, peers=ranks - 1)

    def _p2p_decision(
        self, data_bytes: float, message_bytes: int, channels: int, layout: Layout, peers: int
    ) -> _Decision:
        """Send/recv of ``message_bytes`` to each of ``peers``, ``data_bytes`` in all."""
        crosses = layout.num_nodes > 1
        protocol = self._protocol or (LL if message_bytes <= P2P_LL_THRESHOLD_BYTES else SIMPLE)
        # LL128 has no send/recv kernel (src/device/sendrecv.h).
        protocol = protocol if protocol in (LL, SIMPLE) else SIMPLE
        timing = self._timing.protocols[protocol.name]
        hop = self._network_hop(protocol) if crosses else timing.nvlink_hop_s
        latency = math.fsum((self._timing.p2p_base_s[protocol.name], hop, (peers - 1) * self._timing.peer_s))
        return _Decision(
            algorithm="p2p" if peers == 1 else "pairwise",
            protocol=protocol,
            channels=channels,
            chunking=p2p_chunking(protocol, math.ceil(data_bytes), channels, crosses, self._buffer_bytes),
            num_steps=peers,
            latency_s=latency,
            data_bytes=data_bytes,
            rate_cap=channels * timing.channel_bytes_per_s * protocol.wire_overhead,
        )

    def _assemble(
        self, collective: str, num_bytes: int, ranks: tuple[int, ...], decision: _Decision, load: _Load
    ) -> CollectivePlan:
        overhead = decision.protocol.wire_overhead
        volume = decision.data_bytes * overhead
        latency_ps = closed_form.seconds_to_ps(decision.latency_s)
        rate = min(decision.rate_cap, load.tightest)
        return CollectivePlan(
            collective=collective,
            num_bytes=num_bytes,
            ranks=ranks,
            algorithm=decision.algorithm,
            protocol=decision.protocol.name,
            channels=decision.channels,
            chunk_bytes=decision.chunking.chunk_bytes,
            num_chunks=decision.chunking.num_chunks,
            num_steps=decision.num_steps,
            latency_ps=latency_ps,
            volume_bytes=volume,
            rate_cap_bytes_per_s=decision.rate_cap,
            hbm_bytes_per_byte=closed_form.hbm_bytes_per_wire_byte(
                collective, len(ranks), overhead, load.network_share
            ),
            links=load.uses,
            alone_ps=closed_form.alone_ps(latency_ps, volume, rate),
        )

    def _layout(self, ranks: tuple[int, ...]) -> Layout:
        found = self._layouts.get(ranks)
        if found is None:
            found = self._layouts[ranks] = layout_of(self._topology, ranks)
        return found

    def _graph(self, layout: Layout) -> ChannelGraph:
        key = (layout.num_nodes > 1, layout.nics_used)
        found = self._graphs.get(key)
        if found is None:
            graph = search_channels(
                self._gpu.generation,
                layout.num_nodes,
                self._wire_rate(),
                self._topology.cluster.nic_bytes_per_s,
                layout.nics_used,
            )
            total = graph.channels * graph.bytes_per_s
            channels = self._bounded(graph.channels)
            found = self._graphs[key] = ChannelGraph(channels, total / channels)
        return found

    def _bounded(self, channels: int) -> int:
        return bounded(channels, self._min_channels, self._max_channels)

    def _wire_rate(self) -> float:
        """What a healthy NVLink port carries, bytes/s per direction."""
        return self._gpu.nvlink_bytes_per_s * self._gpu.nvlink_efficiency

    def _network_hop(self, protocol: Protocol) -> float:
        return self._network_s + self._timing.protocols[protocol.name].network_hop_s

    def _same_leaf_latency_s(self) -> float:
        cluster = self._topology.cluster
        if cluster.num_nodes < 2:
            return 0.0
        return self._topology.latency_s(0, cluster.gpus_per_node)

    def _load(self, algorithm: str, ranks: tuple[int, ...]) -> _Load:
        key = (algorithm, ranks)
        found = self._loads.get(key)
        if found is None:
            found = self._loads[key] = self._build_load(algorithm, ranks)
        return found

    def _build_load(self, algorithm: str, ranks: tuple[int, ...]) -> _Load:
        fabric, layout = self._topology, self._layout(ranks)
        if algorithm == "p2p":
            src, dst = (fabric.gpu_of_rank(rank) for rank in ranks)
            ids, weights = p2p_load(fabric, src, dst)
        else:
            build = {"ring": ring_load, "tree": tree_load, "pairwise": all_to_all_load}[algorithm]
            ids, weights = build(fabric, layout)
        capacity = fabric.links.bytes_per_s[ids]
        senders = 1 if algorithm == "p2p" else layout.num_ranks
        nics = np.unique([fabric.nic_out(gpu) for gpus in layout.nodes for gpu in gpus])
        crossing = float(weights[np.isin(ids, nics)].sum()) / senders
        return _Load(
            ids=ids,
            weights=weights,
            uses=closed_form.link_uses(ids, weights),
            tightest=closed_form.max_min_rate(math.inf, capacity, weights),
            network_share=crossing,
        )


def _sharded(collective: str) -> bool:
    return collective in ("all_gather", "reduce_scatter")


def _power_of_two(channels: int) -> int:
    return 1 << (channels - 1).bit_length()


def _check_bytes(num_bytes: int) -> None:
    if isinstance(num_bytes, float) and not math.isfinite(num_bytes):
        raise InputError(f"a collective's size must be a whole number of bytes, not {num_bytes}")
    if num_bytes != int(num_bytes) or num_bytes < 0:
        raise InputError(f"a collective's size must be a whole number of bytes >= 0, not {num_bytes}")


def _nothing(collective: str, num_bytes: int, ranks: tuple[int, ...]) -> CollectivePlan:
    """The plan of a group of one: NCCL returns at once for an in-place call."""
    return CollectivePlan(
        collective=collective,
        num_bytes=num_bytes,
        ranks=ranks,
        algorithm="none",
        protocol="Simple",
        channels=0,
        chunk_bytes=0,
        num_chunks=0,
        num_steps=0,
        latency_ps=0,
        volume_bytes=0.0,
        rate_cap_bytes_per_s=float(PS_PER_S),
        hbm_bytes_per_byte=0.0,
        links=(),
        alone_ps=0,
    )
