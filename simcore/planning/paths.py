"""A stretch of a step timed while it is written: each op alone on an idle GPU and idle links.

Note [Paths]
    What writes a template for the engine writes it here, too, into a stand-in that books when each op can end
    at the earliest: behind the op before it on its stream, behind what it waits for, behind its launch, and
    for as long as it lasts alone.  Nothing that the engine adds makes an op earlier: SMs, HBM and links that
    are shared, members that come late, a queue that is full.  So every time here is at most the engine's.
    Streams of which nothing is known at the start are taken to be free since ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from simcore.collectives.plan import Planner
from simcore.cost import RooflineCost
from simcore.cost.classify import classify
from simcore.cost.kernel import KernelShape, parse_dtype, parse_shapes
from simcore.graph import OpKind, TemplateBuilder
from simcore.graph.groups import Dim
from simcore.graph.template_builder import OpHandle, Source
from simcore.hardware import ClusterSpec
from simcore.units import ps_from_s
from workloads.models.context_parallel import CP_STREAM
from workloads.models.exchange import TP_STREAM
from workloads.models.pieces import EP_STREAM

#: Groups of a family that several ranks belong to, one for each.
Groups = tuple[tuple[int, ...], ...]
#: A time before all others.
NEVER: Final = -(1 << 60)
HOST: Final = "host"
#: Streams whose ops a pass that takes turns with another may have beside the other's compute.
BESIDE: Final = (EP_STREAM, CP_STREAM, TP_STREAM)

_KERNEL: Final = (
    "name", "op_class", "dtype", "in_shapes", "out_shapes", "flops", "bytes_read", "bytes_written",
)  # fmt: skip


class Prices:
    """Times alone, each worked out once: kernels as ``cost`` has them, collectives as ``planner`` has.

    Both are those of ``cluster``.
    """

    def __init__(self, cost: RooflineCost, planner: Planner, cluster: ClusterSpec) -> None:
        self._cost, self._planner, self.cluster = cost, planner, cluster
        gpu = cluster.gpu
        self.launch_ps, self.latency_ps = ps_from_s(gpu.launch_overhead_s), ps_from_s(gpu.launch_latency_s)
        self._kernels: dict[tuple[object, ...], int] = {}
        self._collectives: dict[tuple[object, ...], int] = {}

    def kernel_ps(self, columns: Mapping[str, Any], *, is_copy: bool = False) -> int:
        """A compute op, or a copy engine's copy, by its columns."""
        values = tuple([columns.get(name, "") for name in _KERNEL])
        key = (*values, columns.get("batch", -1) >= 0, is_copy)
        found = self._kernels.get(key)
        if found is None:
            name, op_class, dtype, ins, outs, flops, read, written = values
            shape = KernelShape(
                name=name,
                op_class=op_class or classify(name),
                dtype=parse_dtype(dtype),
                in_shapes=parse_shapes(ins),
                out_shapes=parse_shapes(outs),
                flops=int(flops or 0),
                bytes_read=int(read or 0),
                bytes_written=int(written or 0),
                replayed=columns.get("batch", -1) >= 0,
            )
            found = self._kernels[key] = self._cost.alone_ps(shape, is_copy=is_copy)
        return found

    def collective_ps(self, what: str, num_bytes: int, groups: Groups) -> int:
        """A collective of the quickest of ``groups``."""
        key = (what, num_bytes, groups)
        found = self._collectives.get(key)
        if found is None:
            plans = [self._planner.plan(what, num_bytes, ranks) for ranks in groups]
            found = self._collectives[key] = min(plan.alone_ps for plan in plans)
        return found

    def message_ps(self, num_bytes: int, source: int, to: int) -> int:
        """A message of one rank to another."""
        key = (num_bytes, source, to)
        found = self._collectives.get(key)
        if found is None:
            found = self._collectives[key] = self._planner.plan_p2p(num_bytes, source, to).alone_ps
        return found


def alike(cluster: ClusterSpec, ranks: Sequence[int]) -> tuple[int, ...]:
    """One of each kind of ``ranks`` from which the same strides lead over links that are wired alike.

    Where ranks fill nodes in order, the wiring repeats itself with every leaf, pod or group of leaves.
    """
    if cluster.placement != "linear" or cluster.link_overrides:
        return tuple(ranks)
    leaves = max(1, cluster.leaves_per_pod, cluster.leaves_per_group)
    period = cluster.gpus_per_node * cluster.nodes_per_leaf * leaves
    return tuple({rank % period: rank for rank in reversed(ranks)}.values())[::-1]


def members(dims: tuple[Dim, ...], rank: int) -> tuple[int, ...]:
    """The group of a family of strides that ``rank`` belongs to, its first member first."""
    base = rank - sum(rank // stride % size * stride for size, stride in dims)
    found = [base]
    for size, stride in dims:
        found = [start + k * stride for k in range(size) for start in found]
    return tuple(found)


class TimedTemplate(TemplateBuilder):
    """Times of ops as they are written for any of ``ranks``, the least of them; see Note [Paths].

    ``groups``: by name, the group of each of the ``ranks``.  ``streams`` is when each stream's latest op
    ends, ps, and the host's latest call; ``meet``: when members of the groups named come together at the
    earliest; ``met``: when these ranks were there.  Ops on streams ``hidden`` take no time: something else
    may run beside them that is not written here.  ``host_ps``: the host's own time; ``syncs``: it waits for
    the GPU.
    """

    def __init__(
        self,
        prices: Prices,
        groups: Mapping[str, Groups],
        ranks: tuple[int, ...],
        streams: Mapping[str, int],
        meet: Mapping[str, int] | None = None,
        hidden: Collection[str] = (),
    ) -> None:
        super().__init__(0, "fwd", lambda name: len(groups[name][0]))
        self._hidden = hidden
        self._prices, self._groups, self._ranks = prices, groups, ranks
        self.streams = dict(streams)
        self.streams.setdefault(HOST, NEVER)
        self._ends: list[int] = []
        self._meet = meet or {}
        self.met: dict[str, int] = {}
        self.host_ps, self.syncs = 0, False
        self._fused, self._fused_start = -1, 0

    def __len__(self) -> int:
        return len(self._ends)

    def append(
        self,
        kind: OpKind,
        waits: Iterable[Source],
        data: Iterable[Source],  # noqa: ARG002
        columns: dict[str, Any],
    ) -> OpHandle:
        """Book an op instead of writing it down."""
        streams, host = self.streams, self.streams[HOST]
        if kind is OpKind.HOST:
            self.host_ps += columns["recorded_ps"]
            streams[HOST] = end = host + columns["recorded_ps"]
            return self._booked(end)
        stream = columns["stream"]
        start = streams.get(stream, NEVER)
        for source in waits:
            if isinstance(source, OpHandle):
                start = max(start, self._ends[source.position])
            elif source.back == 0:
                start = max(start, streams.get(source.stream, NEVER))
        if kind is OpKind.SYNC:
            self.syncs = True
            end = max(start, host, *(streams.values() if not stream else ()))
            streams[HOST] = end
            return self._booked(end)
        batch = columns.get("batch", -1)
        fused = batch >= 0 and batch == self._fused
        self._fused = batch
        if fused and kind is not OpKind.COMPUTE:
            start = self._fused_start  # calls of one launch run side by side
        else:
            start = max(start, host + self._prices.latency_ps)
        if not fused:
            self.host_ps += self._prices.launch_ps
            streams[HOST] = host + self._prices.launch_ps
        self._fused_start = start
        end = start + self._alone_ps(kind, start, columns)
        streams[stream] = end = max(end, streams.get(stream, NEVER))
        return self._booked(end)

    def _alone_ps(self, kind: OpKind, start: int, columns: Mapping[str, Any]) -> int:
        hidden = columns["stream"] in self._hidden
        if kind in (OpKind.COMPUTE, OpKind.MEMCPY):
            return 0 if hidden else self._prices.kernel_ps(columns, is_copy=kind is OpKind.MEMCPY)
        group = columns["group"]
        groups = self._groups[group]
        if kind is not OpKind.COLLECTIVE:
            return (
                0
                if hidden
                else min(
                    self._message_ps(kind, ranks, own, columns)
                    for ranks, own in zip(groups, self._ranks, strict=True)
                )
            )
        self.met[group] = max(start, self.met.get(group, NEVER))
        waits = max(0, self._meet.get(group, NEVER) - start)
        if hidden:
            return waits
        return waits + self._prices.collective_ps(columns["collective"], columns["num_bytes"], groups)

    def _message_ps(self, kind: OpKind, ranks: tuple[int, ...], own: int, columns: Mapping[str, Any]) -> int:
        other = ranks[(ranks.index(own) + columns["peer_delta"]) % len(ranks)]
        pair = (own, other) if kind is OpKind.SEND else (other, own)
        return self._prices.message_ps(columns["num_bytes"], *pair) if other != own else 0

    def ended(self, handle: OpHandle) -> int:
        """When an op ends."""
        return self._ends[handle.position]

    def _booked(self, end: int) -> OpHandle:
        self._ends.append(end)
        return OpHandle(0, len(self._ends) - 1)
