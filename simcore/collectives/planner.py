"""NCCL's planner: a collective on given ranks becomes a :class:`CollectivePlan`.

What NCCL decides depends on the shape of a group, not on which nodes it sits; the decision is cached by shape
and size, the loads on links by ranks, so that a plan for one more group of a known shape is a lookup.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simcore.collectives import closed_form
from simcore.collectives.algorithms import algorithms_of
from simcore.collectives.decision import Decision, Settings
from simcore.collectives.decisions import Decider
from simcore.collectives.environment import parse_environment
from simcore.collectives.forced import forced_algorithms, forced_protocols
from simcore.collectives.layout import Fabric, Layout, layout_of
from simcore.collectives.plan import CollectivePlan, LinkUse
from simcore.collectives.rings import (
    Load,
    all_to_all_load,
    nvls_load,
    p2p_load,
    ring_load,
    tree_load,
)
from simcore.collectives.routed import routed_decision, routed_hbm_bytes, routed_load
from simcore.collectives.spread import relative_error
from simcore.collectives.switch_loads import nvls_one_way_load, pat_load
from simcore.collectives.timing import GenerationTiming
from simcore.collectives.two_level import two_level_load
from simcore.errors import InputError
from simcore.graph.exchanges import TokenExchange
from simcore.units import KIB, ps_from_s

#: torch.distributed's barrier is an all_reduce of one word.
_BARRIER_BYTES: Final = 4
#: NCCL's largest number of channels (src/include/device.h, MAXCHANNELS).
_MAX_CHANNELS: Final = 64
#: A day: a step with a slower collective comes from a mistyped bandwidth, and overflows 64 bits of ps soon.
_LONGEST_S: Final = 86_400.0
_MIN_BUFFER_BYTES: Final = 4 * KIB
#: Collectives whose two directions differ under PAT and in the switch.
_ONE_WAY: Final = ("all_gather", "reduce_scatter")


@dataclass(frozen=True)
class _Load:
    """Links of one group under one algorithm.

    ``nvlink_bytes_per_s``, ``network_bytes_per_s``: the smallest capacity / weight among the members' NVLink
    ports and among all other links, per byte of an average rank.  The weights of ``uses`` are per byte of
    one connection, ``connections`` of which carry what an average rank sends
    (:class:`simcore.collectives.rings.Load`).  ``network_share``: of what an average rank sends, the part
    that crosses nodes.
    """

    uses: tuple[LinkUse, ...]
    nvlink_bytes_per_s: float
    network_bytes_per_s: float
    network_share: float
    connections: float
    feed_weight: float


class NcclPlanner:
    """Plans collectives and send/recv as NCCL runs them on a topology.

    ``algorithm`` and ``protocol`` (lists as NCCL_ALGO and NCCL_PROTO take them, see
    :mod:`simcore.collectives.forced`), ``min_channels``, ``max_channels`` and ``buffer_bytes`` force what
    NCCL_ALGO, NCCL_PROTO, NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS and NCCL_BUFFSIZE force.  ``nvls`` False is
    NCCL_NVLS_ENABLE=0, and what NCCL does for types that the switch cannot add (int8, fp8).  What is not
    forced is as the cluster's ``nccl_environment`` says, else NCCL's choice.  ``timing``
    replaces the profile's constants (fits use it).  Errors: InputError for an unknown name, a channel count
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
        nvls: bool = True,
        timing: GenerationTiming | None = None,
    ) -> None:
        set_there = parse_environment(topology.cluster.nccl_environment)
        algorithm, protocol = algorithm or set_there.algorithm, protocol or set_there.protocol
        if min_channels is None and max_channels is None:
            min_channels, max_channels = set_there.min_channels, set_there.max_channels
        buffer_bytes = set_there.buffer_bytes if buffer_bytes is None else buffer_bytes
        for name, value in (("min_channels", min_channels), ("max_channels", max_channels)):
            if value is not None and not 1 <= value <= _MAX_CHANNELS:
                raise InputError(f"{name} must be between 1 and {_MAX_CHANNELS}, not {value}")
        if min_channels is not None and max_channels is not None and min_channels > max_channels:
            raise InputError(f"min_channels {min_channels} is above max_channels {max_channels}")
        if buffer_bytes is not None and buffer_bytes < _MIN_BUFFER_BYTES:
            raise InputError(f"buffer_bytes must be at least {_MIN_BUFFER_BYTES}, not {buffer_bytes}")
        settings = Settings(
            algorithms=forced_algorithms(algorithm),
            protocols=forced_protocols(protocol),
            max_channels=max_channels,
            min_channels=min_channels,
            buffer_bytes=buffer_bytes,
            nvls=nvls and set_there.nvls,
        )
        self._topology = topology
        self._decider = Decider(topology.cluster, settings, timing)
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._loads: dict[tuple[str, str, tuple[int, ...]], _Load] = {}
        self._decisions: dict[tuple[object, ...], Decision] = {}
        self._plans: dict[tuple[str, int, tuple[int, ...]], CollectivePlan] = {}

    def plan(self, collective: str, num_bytes: int, ranks: Sequence[int]) -> CollectivePlan:
        """The plan of ``collective`` over ``ranks``, sizes as nccl-tests counts them (in bytes).

        A group of one rank, or no bytes, have a plan without channels, links and latency.  InputError for
        an unknown collective, a negative or fractional size, no ranks, a rank twice or outside the topology.
        """
        group = tuple(ranks)
        key = (collective, num_bytes, group)
        found = self._plans.get(key)
        if found is None:
            size = _checked_bytes(num_bytes)
            routed = TokenExchange.parse(collective)
            if routed is not None:
                found = self._plans[key] = self._plan_routed(collective, routed, size, group)
                return found
            algorithms_of(collective)
            found = self._plans[key] = self._plan(collective, size, group)
        return found

    def plan_p2p(self, num_bytes: int, src_rank: int, dst_rank: int) -> CollectivePlan:
        """The plan of a send/recv pair.  InputError as :meth:`plan`, or when a rank sends to itself."""
        group = (src_rank, dst_rank)
        key = ("send_recv", num_bytes, group)
        found = self._plans.get(key)
        if found is None:
            size = _checked_bytes(num_bytes)
            if src_rank == dst_rank:
                raise InputError(f"rank {src_rank} cannot send to itself")
            found = self._plans[key] = self._plan("send_recv", size, group)
        return found

    def tuner_s(self, collective: str, num_bytes: int, ranks: Sequence[int]) -> tuple[float, float]:
        """(latency, whole time) in seconds that NCCL's own tuner expects, of at least two ranks.

        The numbers by which NCCL chooses, not a prediction: docs/validation-nccl.md has their errors.
        InputError as :meth:`plan`.
        """
        group = tuple(ranks)
        layout = self._layout(group)
        base = "all_reduce" if collective == "barrier" else collective
        moved = _BARRIER_BYTES if collective == "barrier" else _checked_bytes(num_bytes)
        decision = self._decision(collective, moved, layout)
        load = self._load(decision.algorithm, collective, group, layout)
        wire = min(load.nvlink_bytes_per_s, load.network_bytes_per_s)
        return self._decider.expected_s(base, moved, layout, decision, wire)

    def _plan(self, collective: str, num_bytes: int, ranks: tuple[int, ...]) -> CollectivePlan:
        layout = self._layout(ranks)
        if layout.num_ranks == 1 or (num_bytes == 0 and collective not in ("barrier", "send_recv")):
            return _nothing(collective, num_bytes, ranks)
        moved = _BARRIER_BYTES if collective == "barrier" else num_bytes
        decision = self._decision(collective, moved, layout)
        load = self._load(decision.algorithm, collective, ranks, layout)
        error = relative_error(collective, moved, layout.num_nodes)
        return _assembled(collective, num_bytes, ranks, decision, load, error)

    def _plan_routed(
        self, collective: str, exchange: TokenExchange, num_bytes: int, ranks: tuple[int, ...]
    ) -> CollectivePlan:
        """An exchange by kernels of its own, which NCCL has no part in."""
        layout = self._layout(ranks)
        if layout.num_ranks == 1 or not num_bytes:
            return _nothing(collective, num_bytes, ranks)
        key = (collective, "", ranks)
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = self._load_of(
                routed_load(exchange, self._topology, layout), "routed", layout
            )
        decision = routed_decision(exchange, self._decider.costs, num_bytes, layout)
        error = relative_error("all_to_all", num_bytes, layout.num_nodes)
        plan = _assembled(collective, num_bytes, ranks, decision, load, error)
        return replace(plan, hbm_bytes_per_byte=routed_hbm_bytes(exchange, layout) * load.connections)

    def _layout(self, ranks: tuple[int, ...]) -> Layout:
        layout = self._layouts.get(ranks)
        if layout is None:
            layout = self._layouts[ranks] = layout_of(self._topology, ranks)
        return layout

    def _decision(self, collective: str, num_bytes: int, layout: Layout) -> Decision:
        key = (collective, num_bytes, layout.signature)
        decision = self._decisions.get(key)
        if decision is None:
            if collective == "send_recv":
                decision = self._decider.send_recv(num_bytes, layout)
            else:
                decision = self._decider.collective(collective, num_bytes, layout)
            self._decisions[key] = decision
        return decision

    def _load(self, algorithm: str, collective: str, ranks: tuple[int, ...], layout: Layout) -> _Load:
        key = (algorithm, collective if collective in _ONE_WAY else "", ranks)
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = self._build_load(algorithm, collective, ranks, layout)
        return load

    def _build_load(self, algorithm: str, collective: str, ranks: tuple[int, ...], layout: Layout) -> _Load:
        return self._load_of(self._link_load(algorithm, collective, ranks, layout), algorithm, layout)

    def _load_of(self, load: Load, algorithm: str, layout: Layout) -> _Load:
        fabric = self._topology
        ids, weights, connections, inputs = load
        capacity = fabric.links.bytes_per_s[ids]
        if not (capacity > 0).all():
            dead = int(ids[int(np.argmin(capacity))])
            raise InputError(f"link {fabric.links.names[dead]!r} has no bandwidth, but {algorithm} needs it")
        uses = closed_form.link_uses(ids, weights * connections, inputs)
        gpus = [gpu for members in layout.nodes for gpu in members]
        nics = {fabric.nic_out(gpu) for gpu in gpus}
        nvlink = np.isin(ids, fabric.inside_links(gpus))
        senders = 1 if algorithm == "p2p" else layout.num_ranks
        return _Load(
            uses=uses,
            nvlink_bytes_per_s=closed_form.max_min_rate(math.inf, capacity[nvlink], weights[nvlink]),
            network_bytes_per_s=closed_form.max_min_rate(math.inf, capacity[~nvlink], weights[~nvlink]),
            network_share=float(weights[np.isin(ids, list(nics))].sum()) / senders,
            connections=connections,
            feed_weight=next((use.weight for use in uses if use.link in fabric.sending_nics), 0.0),
        )

    def _link_load(self, algorithm: str, collective: str, ranks: tuple[int, ...], layout: Layout) -> Load:
        fabric = self._topology
        gathers = collective == "all_gather"
        match algorithm:
            case "p2p":
                src, dst = ranks
                return p2p_load(fabric, fabric.gpu_of_rank(src), fabric.gpu_of_rank(dst))
            case "ring":
                return ring_load(fabric, layout)
            case "tree":
                return tree_load(fabric, layout)
            case "pairwise":
                return all_to_all_load(fabric, layout)
            case "hierarchical":
                return two_level_load(fabric, layout)
            case "pat":
                return pat_load(fabric, layout, gathers=gathers)
            case "nvls" if collective in _ONE_WAY:
                return nvls_one_way_load(fabric, layout, self._decider.nvls_efficiency, gathers=gathers)
            case _:
                return nvls_load(fabric, layout, self._decider.nvls_efficiency)


def _assembled(
    collective: str,
    num_bytes: int,
    ranks: tuple[int, ...],
    decision: Decision,
    load: _Load,
    error: float,
) -> CollectivePlan:
    overhead = decision.protocol.wire_overhead
    volume = decision.sent_bytes * overhead
    inside = decision.copy_share * min(decision.copy_bytes_per_s, load.nvlink_bytes_per_s)
    between = decision.network_share * load.network_bytes_per_s
    rate = min(inside, between)
    fill_s = overhead * (
        decision.fill_bytes / rate
        + decision.fill_inside_bytes / inside
        + decision.fill_between_bytes / between
    )
    seconds = decision.latency_s + volume / rate + fill_s
    if not seconds <= _LONGEST_S:
        raise InputError(
            f"{collective} of {num_bytes} bytes among {len(ranks)} ranks would take {seconds:.3g} s at"
            f" {rate:.3g} B/s, more than the {_LONGEST_S:g} s that one may take; check the links' bandwidths"
        )
    latency_ps = ps_from_s(decision.latency_s + fill_s)
    hbm_bytes = closed_form.hbm_bytes_per_wire_byte(
        collective, decision.algorithm, len(ranks), overhead, load.network_share
    )
    # Progress counts the bytes of one connection, so that max-min sharing is fair between connections.
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
        volume_bytes=volume / load.connections,
        rate_cap_bytes_per_s=rate / load.connections,
        hbm_bytes_per_byte=hbm_bytes * load.connections,
        links=load.uses,
        alone_ps=closed_form.alone_ps(latency_ps, volume, rate),
        relative_error=error,
        copy_bytes_per_s=decision.copy_share * decision.copy_bytes_per_s / load.connections,
        between_ps=ps_from_s(decision.between_s + fill_s),
        feed_weight=load.feed_weight,
    )


def _nothing(collective: str, num_bytes: int, ranks: tuple[int, ...]) -> CollectivePlan:
    """The plan of a group of one, or of no bytes: NCCL returns at once, nothing is launched."""
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
        rate_cap_bytes_per_s=math.inf,
        hbm_bytes_per_byte=0.0,
        links=(),
        alone_ps=0,
    )


def _checked_bytes(num_bytes: int) -> int:
    """``num_bytes`` as an int.  InputError unless it is a whole number >= 0."""
    if not math.isfinite(num_bytes) or num_bytes != int(num_bytes) or num_bytes < 0:
        raise InputError(f"a collective's size must be a whole number of bytes >= 0, not {num_bytes}")
    return int(num_bytes)
