"""NCCL's planner: a collective on given ranks becomes a :class:`CollectivePlan`.

What NCCL decides depends on the shape of a group, not on which nodes it sits; the decision is cached by shape
and size, the loads on links by ranks, so that a plan for one more group of a known shape is a lookup.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

from simcore.collectives import closed_form
from simcore.collectives.buffers import communicator_bytes
from simcore.collectives.closed_form import PlannedLoad
from simcore.collectives.communicator import CommunicatorUse
from simcore.collectives.decision import Decision, ForcedSettings
from simcore.collectives.decisions import Decider
from simcore.collectives.environment import parse_environment
from simcore.collectives.forced import forced_algorithms, forced_protocols
from simcore.collectives.kinds import SEND_RECV, Collective, collective_named, kind_of, unknown_collective
from simcore.collectives.layout import PlacedGroup, layout_of
from simcore.collectives.loads import (
    LoadPerByte,
    message_load,
    nvls_load,
    nvls_one_way_load,
    p2p_load,
    pat_load,
    ring_load,
    tree_load,
)
from simcore.collectives.plan import CollectivePlan, LinkUses
from simcore.collectives.protocols import SIMPLE
from simcore.collectives.routed import routed_load
from simcore.collectives.spread import relative_error, tuner_error
from simcore.collectives.timing import GenerationTiming
from simcore.collectives.two_level import two_level_load
from simcore.distinct import among
from simcore.errors import InputError
from simcore.hardware.topology import Topology
from simcore.units import KIB, ps_from_s

#: NCCL's largest number of channels (src/include/device.h, MAXCHANNELS).
_MAX_CHANNELS: Final = 64
_MIN_BUFFER_BYTES: Final = 4 * KIB
_FEW: Final = 16  # links that are sooner looked up one by one than by sorting


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
        topology: Topology,
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
        settings = ForcedSettings(
            algorithms=forced_algorithms(algorithm),
            protocols=forced_protocols(protocol),
            max_channels=max_channels,
            min_channels=min_channels,
            buffer_bytes=buffer_bytes,
            nvls=nvls and set_there.nvls,
        )
        self._topology = topology
        self._decider = Decider(topology.cluster, settings, timing)
        self._layouts: dict[tuple[int, ...], PlacedGroup] = {}
        self._loads: dict[tuple[str, str, tuple[int, ...]], PlannedLoad] = {}
        self._decisions: dict[tuple[object, ...], Decision] = {}
        self._plans: dict[tuple[str, int, tuple[int, ...]], CollectivePlan] = {}
        self._planned_ranks = 0

    @property
    def num_planned_ranks(self) -> int:
        """Members of all groups whose plans are remembered: what this planner's memory grows with."""
        return self._planned_ranks

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
            found = self._plans[key] = self._plan(collective_named(collective), size, group)
            self._planned_ranks += len(group)
        return found

    def plan_p2p(self, num_bytes: int, src_rank: int, dst_rank: int) -> CollectivePlan:
        """The plan of a send/recv pair.  InputError as :meth:`plan`, or when a rank sends to itself."""
        group = (src_rank, dst_rank)
        key = (SEND_RECV.name, num_bytes, group)
        found = self._plans.get(key)
        if found is None:
            size = _checked_bytes(num_bytes)
            if src_rank == dst_rank:
                raise InputError(f"rank {src_rank} cannot send to itself")
            found = self._plans[key] = self._plan(SEND_RECV, size, group)
            self._planned_ranks += len(group)
        return found

    def buffer_bytes(self, communicator: CommunicatorUse) -> int:
        """Memory that a communicator takes of each GPU, outside of allocators.

        See Note [Buffers of a communicator].  InputError as :meth:`plan`.
        """
        costs = self._decider.costs
        layout = self._layout(communicator.ranks)
        if layout.num_ranks == 1:
            return 0
        algorithms = set()
        for name, num_bytes in communicator.calls:
            kind = kind_of(name)
            run = kind.carrier or kind
            if run.kernel is None and not run.grouped and num_bytes:
                algorithms.add(self._decision(run, num_bytes, layout).algorithm)
        home = next(
            node for node in layout.nodes if self._topology.gpu_of_rank(communicator.ranks[0]) in node
        )
        inside = sum(self._topology.gpu_of_rank(peer) in home for peer in communicator.peers)
        return communicator_bytes(
            layout, costs.graph(layout), algorithms,
            nvls_channels=costs.believed.nvls_channels[layout.num_nodes > 1], peers_inside=inside,
            peers_outside=len(communicator.peers) - inside,
            simple_bytes=costs.settings.buffer_bytes or SIMPLE.buffer_bytes, release=costs.release,
        )  # fmt: skip

    def tuner_s(self, collective: str, num_bytes: int, ranks: Sequence[int]) -> tuple[float, float]:
        """(latency, whole time) in seconds that NCCL's own tuner expects, of at least two ranks.

        The numbers by which NCCL chooses, not a prediction: docs/validation-nccl.md has their errors.
        InputError as :meth:`plan`.
        """
        group = tuple(ranks)
        layout = self._layout(group)
        kind = SEND_RECV if collective == SEND_RECV.name else collective_named(collective)
        if kind.kernel is not None:
            raise unknown_collective(collective)
        kind, moved = kind.carrier or kind, kind.fixed_bytes or _checked_bytes(num_bytes)
        decision = self._decision(kind, moved, layout)
        load = self._load(decision.algorithm, kind, group, layout)
        wire = min(load.nvlink_bytes_per_s, load.network_bytes_per_s)
        return self._decider.expected_s(kind, moved, layout, decision, wire)

    def _plan(self, kind: Collective, num_bytes: int, ranks: tuple[int, ...]) -> CollectivePlan:
        layout = self._layout(ranks)
        run, moved = kind.carrier or kind, kind.fixed_bytes or num_bytes
        if layout.num_ranks == 1 or (moved == 0 and not kind.pair):
            return closed_form.empty_plan(kind, num_bytes, ranks)
        decision = self._decision(run, moved, layout)
        load = self._load(decision.algorithm, run, ranks, layout)
        error = relative_error(kind.family, moved, layout.num_nodes)
        return closed_form.plan_of(kind, num_bytes, ranks, decision, load, error)

    def _layout(self, ranks: tuple[int, ...]) -> PlacedGroup:
        layout = self._layouts.get(ranks)
        if layout is None:
            layout = self._layouts[ranks] = layout_of(self._topology, ranks)
        return layout

    def _decision(self, kind: Collective, num_bytes: int, layout: PlacedGroup) -> Decision:
        key = (kind.name, num_bytes, layout.signature)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decisions[key] = self._decider.decision(kind, num_bytes, layout)
        return decision

    def _load(
        self, algorithm: str, kind: Collective, ranks: tuple[int, ...], layout: PlacedGroup
    ) -> PlannedLoad:
        # Kinds that use links alike share what was found for one of them.
        key = (algorithm, kind.name if kind.one_way or kind.grouped else "", ranks)
        load = self._loads.get(key)
        if load is None:
            found = self._link_load(algorithm, kind, ranks, layout)
            load = self._loads[key] = self._load_of(found, algorithm, layout)
        return load

    def _load_of(self, load: LoadPerByte, algorithm: str, layout: PlacedGroup) -> PlannedLoad:
        fabric = self._topology
        ids, weights, connections, inputs = load
        capacity = fabric.links.bytes_per_s[ids]
        if not (capacity > 0).all():
            dead = int(ids[int(np.argmin(capacity))])
            raise InputError(f"link {fabric.links.names[dead]!r} has no bandwidth, but {algorithm} needs it")
        uses = LinkUses(ids, weights * connections, inputs)
        feeds = uses.weight[fabric.are_sending_nics(ids)]
        gpus = np.fromiter(chain.from_iterable(layout.nodes), dtype=np.int64, count=layout.num_ranks)
        nvlink = _among(ids, fabric.inside_links(gpus))
        senders = 1 if algorithm == "p2p" else layout.num_ranks
        return PlannedLoad(
            uses=uses,
            nvlink_bytes_per_s=closed_form.max_min_rate(math.inf, capacity[nvlink], weights[nvlink]),
            network_bytes_per_s=closed_form.max_min_rate(math.inf, capacity[~nvlink], weights[~nvlink]),
            network_share=float(weights[_among(ids, fabric.nics_out_of(gpus))].sum()) / senders,
            connections=connections,
            feed_weight=float(feeds[0]) if len(feeds) else 0.0,
        )

    def _link_load(
        self, algorithm: str, kind: Collective, ranks: tuple[int, ...], layout: PlacedGroup
    ) -> LoadPerByte:
        fabric, efficiency = self._topology, self._decider.nvls_efficiency
        match algorithm:
            case "p2p":
                src, dst = ranks
                return p2p_load(fabric, fabric.gpu_of_rank(src), fabric.gpu_of_rank(dst))
            case "routed" if kind.kernel is not None and kind.pair:
                if len(ranks) != 2:
                    raise InputError(
                        f"{kind.name} is a message of two ranks, not a collective of {len(ranks)}"
                    )
                return p2p_load(fabric, *map(fabric.gpu_of_rank, ranks))
            case "routed" if kind.kernel is not None:
                return routed_load(kind.kernel, fabric, layout)
            case "ring":
                return ring_load(fabric, layout)
            case "tree":
                return tree_load(fabric, layout)
            case "pairwise":
                return message_load(fabric, layout, kind, ranks)
            case "hierarchical":
                return two_level_load(fabric, layout)
            case "pat":
                return pat_load(fabric, layout, gathers=kind.gives_part)
            case "nvls" if kind.one_way:
                return nvls_one_way_load(fabric, layout, efficiency, gathers=kind.gives_part)
            case _:
                return nvls_load(fabric, layout, efficiency)


def _among(links: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Of each link whether it is one of ``others``."""
    if max(len(links), len(others)) > _FEW:
        return among(links, others)
    few = set(others.tolist())
    return np.array([link in few for link in links.tolist()], dtype=np.bool_)


def _checked_bytes(num_bytes: int) -> int:
    """``num_bytes`` as an int.  InputError unless it is a whole number >= 0."""
    if not math.isfinite(num_bytes) or num_bytes != int(num_bytes) or num_bytes < 0:
        raise InputError(f"a collective's size must be a whole number of bytes >= 0, not {num_bytes}")
    return int(num_bytes)


class AlphaBetaPlanner:
    """Network fidelity ``alphabeta``: plans of ``planner``, lasting what NCCL's own tuner expects.

    The tuner ranks algorithms by latency + bytes / bandwidth from its table (NVIDIA/nccl
    src/graph/tuning.cc).  As a prediction it is coarse, docs/validation-nccl.md says how coarse; it is here
    because others use it.  Links and channels stay as they are.
    """

    def __init__(self, planner: NcclPlanner) -> None:
        self._planner = planner
        self._plans: dict[tuple[str, int, tuple[int, ...]], CollectivePlan] = {}

    def plan(self, collective: str, num_bytes: int, ranks: Sequence[int]) -> CollectivePlan:
        """As :meth:`NcclPlanner.plan`."""
        return self._estimated(self._planner.plan(collective, num_bytes, ranks))

    def plan_p2p(self, num_bytes: int, src_rank: int, dst_rank: int) -> CollectivePlan:
        """As :meth:`NcclPlanner.plan_p2p`."""
        return self._estimated(self._planner.plan_p2p(num_bytes, src_rank, dst_rank))

    def _estimated(self, plan: CollectivePlan) -> CollectivePlan:
        key = (plan.collective, plan.num_bytes, plan.ranks)
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = self._lasting(plan)
        return found

    def _lasting(self, plan: CollectivePlan) -> CollectivePlan:
        if not plan.channels or plan.kind.kernel is not None:
            return plan
        latency_s, whole_s = self._planner.tuner_s(plan.collective, plan.num_bytes, plan.ranks)
        data_s = whole_s - latency_s
        return replace(
            plan,
            latency_ps=ps_from_s(latency_s),
            alone_ps=ps_from_s(whole_s),
            rate_cap_bytes_per_s=plan.volume_bytes / data_s if data_s > 0 else math.inf,
            relative_error=tuner_error(),
        )
