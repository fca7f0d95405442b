"""Writing graphs by hand: the few lines that a test or a workload generator needs.

::

    build = GraphBuilder(world_size=2, name="two stages")
    build.group("pp", dims=((2, 1),))
    head, tail = build.template("fwd"), build.template("fwd")
    gemm = head.compute("gemm", recorded_ps=1_000)
    head.send("pp", +1, 4096, waits=(gemm,))
    got = tail.recv("pp", -1, 4096)
    tail.compute("gemm", waits=(got,), recorded_ps=1_000)
    build.program([0], [(head, 0, 0)], stage=0)
    build.program([1], [(tail, 0, 0)], stage=1)
    graph = build.build()
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcore.errors import InputError, nearest
from simcore.graph.graph import Graph, MemoryProfile, Program, Workload
from simcore.graph.groups import Dim, ProcessGroup
from simcore.graph.ops import (
    OP_COLUMNS,
    EdgeKind,
    EdgeTable,
    FreeTable,
    IntArray,
    OpKind,
    OpRows,
    Strings,
)


@dataclass(frozen=True)
class OpHandle:
    """An op of a template under construction: template index and position inside the template."""

    template: int
    position: int


@dataclass(frozen=True)
class External:
    """The ``back``-th latest op (0 = the latest) on ``stream`` before the template instance began."""

    stream: str
    back: int = 0


def external(stream: str, back: int = 0) -> External:
    """A source for ``waits=`` that lies before the template instance.  InputError when ``back`` < 0."""
    if back < 0:
        raise InputError(f"external({stream!r}, back={back}): back counts from 0, the latest op")
    return External(stream, back)


Source = OpHandle | External


@dataclass(frozen=True)
class _Edge:
    dst: int
    kind: EdgeKind
    source: Source


@dataclass(frozen=True)
class _Free:
    after: int
    num_bytes: int
    owner: int
    scope: int


class TemplateBuilder:
    """One straight run of ops in host issue order; made by :meth:`GraphBuilder.template`.

    Every method appends one op and returns its handle.  ``waits`` are ops (of this template, or
    :func:`external`) that must have ended before the op starts; ``data`` are ops whose output it reads
    (recorded, but the engine orders by streams and waits alone, as CUDA does).  No wait is implied.
    Further keywords are columns of the op table (:data:`simcore.graph.ops.OP_COLUMNS`).

    Errors: InputError for an unknown column, an unknown group, or a handle of another template.
    """

    def __init__(self, owner: GraphBuilder, index: int, name: str) -> None:
        self.name = name
        self.index = index
        self._owner = owner
        self._rows: list[dict[str, object]] = []
        self._edges: list[_Edge] = []
        self._frees: list[_Free] = []

    def __len__(self) -> int:
        return len(self._rows)

    def compute(
        self,
        name: str,
        *,
        stream: str = "compute",
        waits: Iterable[Source] = (),
        data: Iterable[Source] = (),
        **columns: object,
    ) -> OpHandle:
        """A compute kernel.  Give ``recorded_ps`` for a fixed duration, or class, shapes, flops and bytes."""
        return self._add(OpKind.COMPUTE, waits, data, name=name, stream=stream, **columns)

    def memcpy(
        self,
        name: str,
        num_bytes: int,
        *,
        stream: str = "compute",
        waits: Iterable[Source] = (),
        data: Iterable[Source] = (),
        **columns: object,
    ) -> OpHandle:
        """A transfer of ``num_bytes`` on a copy engine."""
        columns = {"bytes_read": num_bytes, "bytes_written": num_bytes, "op_class": "copy", **columns}
        return self._add(OpKind.MEMCPY, waits, data, name=name, stream=stream, **columns)

    def collective(
        self,
        collective: str,
        group: str,
        num_bytes: int,
        *,
        stream: str | None = None,
        waits: Iterable[Source] = (),
        data: Iterable[Source] = (),
        **columns: object,
    ) -> OpHandle:
        """A collective of ``num_bytes`` (nccl-tests' size), by default on the group's own stream."""
        reduces = collective in ("all_reduce", "reduce_scatter", "reduce")
        reduce_op = "sum" if reduces else ""
        columns = {"name": f"nccl::{collective}", "collective": collective, "reduce_op": reduce_op, **columns}
        return self._comm(OpKind.COLLECTIVE, group, num_bytes, stream, waits, data, **columns)

    def send(
        self,
        group: str,
        peer_delta: int,
        num_bytes: int,
        *,
        stream: str | None = None,
        waits: Iterable[Source] = (),
        data: Iterable[Source] = (),
        **columns: object,
    ) -> OpHandle:
        """Send to the member ``peer_delta`` further on in ``group`` (modulo its size; may be negative)."""
        return self._p2p(OpKind.SEND, group, peer_delta, num_bytes, stream, waits, data, columns)

    def recv(
        self,
        group: str,
        peer_delta: int,
        num_bytes: int,
        *,
        stream: str | None = None,
        waits: Iterable[Source] = (),
        data: Iterable[Source] = (),
        **columns: object,
    ) -> OpHandle:
        """Receive from the member ``peer_delta`` further on in ``group`` (-1: the previous one)."""
        return self._p2p(OpKind.RECV, group, peer_delta, num_bytes, stream, waits, data, columns)

    def host(self, name: str, duration_ps: int, **columns: object) -> OpHandle:
        """Time that the host spends before it launches the next op, ps."""
        return self._add(OpKind.HOST, (), (), name=name, stream="host", recorded_ps=duration_ps, **columns)

    def sync(
        self, stream: str = "", *, name: str = "cudaDeviceSynchronize", waits: Iterable[Source] = ()
    ) -> OpHandle:
        """The host waits for everything issued so far on ``stream`` ("": on all streams)."""
        return self._add(OpKind.SYNC, waits, (), name=name, stream=stream, blocking=1)

    def free(self, after: OpHandle | None, num_bytes: int, *, owner: OpHandle | None = None) -> None:
        """Release ``num_bytes`` after op ``after`` (None: at the template's start).

        ``owner`` is the op that allocated them, in this template or in the forward template.
        """
        position = -1 if after is None else self._position(after)
        if owner is None:
            self._frees.append(_Free(position, num_bytes, -1, 2))
        else:
            scope = 0 if owner.template == self.index else 1
            self._frees.append(_Free(position, num_bytes, owner.position, scope))

    def _position(self, handle: OpHandle) -> int:
        if handle.template != self.index:
            raise InputError(
                f"template {self.name!r}: an op of another template cannot be waited for by handle; "
                f"use external(stream, back)"
            )
        return handle.position

    def _add(
        self, kind: OpKind, waits: Iterable[Source], data: Iterable[Source], **columns: object
    ) -> OpHandle:
        for column in columns:
            if column not in OP_COLUMNS:
                raise InputError(f"unknown op column {column!r}{nearest(column, OP_COLUMNS)}")
        position = len(self._rows)
        for edge_kind, sources in ((EdgeKind.DATA, data), (EdgeKind.WAIT, waits)):
            for source in sources:
                if isinstance(source, OpHandle):
                    self._position(source)
                self._edges.append(_Edge(position, edge_kind, source))
        self._rows.append({"phase": self._owner.default_phase(self.name), **columns, "kind": int(kind)})
        return OpHandle(self.index, position)

    def _comm(
        self,
        kind: OpKind,
        group: str,
        num_bytes: int,
        stream: str | None,
        waits: Iterable[Source],
        data: Iterable[Source],
        **columns: object,
    ) -> OpHandle:
        self._owner.group_size(group)
        columns = {"group": group, "comm_bytes": num_bytes, "stream": stream or group, **columns}
        return self._add(kind, waits, data, **columns)

    def _p2p(
        self,
        kind: OpKind,
        group: str,
        peer_delta: int,
        num_bytes: int,
        stream: str | None,
        waits: Iterable[Source],
        data: Iterable[Source],
        columns: dict[str, object],
    ) -> OpHandle:
        delta = peer_delta % self._owner.group_size(group)
        columns = {"name": f"nccl::{kind.name.lower()}", "peer_delta": delta, **columns}
        return self._comm(kind, group, num_bytes, stream, waits, data, **columns)


Skeleton = Sequence[tuple[TemplateBuilder, int, int]]


class GraphBuilder:
    """Collects groups, templates and programs, then :meth:`build` gives the :class:`Graph`.

    Further keywords are fields of :class:`Workload` (dims, num_microbatches, precision, ...).
    """

    def __init__(self, world_size: int, *, name: str = "built", **workload: Any) -> None:
        unknown = workload.keys() - Workload.__dataclass_fields__.keys()
        if unknown:
            key = min(unknown)
            raise InputError(f"unknown workload field {key!r}{nearest(key, Workload.__dataclass_fields__)}")
        self._workload = Workload(name=name, world_size=world_size, **workload)
        self._groups: dict[str, ProcessGroup] = {}
        self._templates: list[TemplateBuilder] = []
        self._programs: list[Program] = []

    def group(
        self,
        name: str,
        dims: Sequence[Dim] = (),
        *,
        base_dims: Sequence[Dim] | None = None,
        offset: int = 0,
        explicit: Sequence[Sequence[int]] = (),
    ) -> ProcessGroup:
        """Declare a process group family: strides, or the members of each group in ``explicit``.

        Without ``base_dims`` the groups tile the world: every rank is in one.  InputError when the strides
        cannot (the world is no multiple of them).
        """
        if explicit:
            dims = dims or ((len(explicit[0]), 1),)
            made = ProcessGroup(name, tuple(dims), explicit=tuple(tuple(members) for members in explicit))
        else:
            base = tiling(name, dims, self._workload.world_size) if base_dims is None else tuple(base_dims)
            made = ProcessGroup(name, tuple(dims), base, offset)
        self._groups[name] = made
        return made

    def group_size(self, name: str) -> int:
        """Ranks in one group of the family ``name``.  InputError when it was not declared."""
        try:
            return self._groups[name].size
        except KeyError:
            raise InputError(f"unknown process group {name!r}{nearest(name, self._groups)}") from None

    def has_group(self, name: str) -> bool:
        """Whether a process group of that name was declared."""
        return name in self._groups

    def template(self, name: str) -> TemplateBuilder:
        """A new template; ``name`` says what it is ("fwd", "bwd", ...) and need not be unique."""
        made = TemplateBuilder(self, len(self._templates), name)
        self._templates.append(made)
        return made

    def program(
        self,
        ranks: Iterable[int],
        skeleton: Skeleton,
        *,
        stage: int = 0,
        name: str = "",
        layer_offset: tuple[int, ...] = (0,),
        memory: MemoryProfile | None = None,
    ) -> None:
        """What ``ranks`` do: ``(template, microbatch, chunk)`` in issue order (microbatch -1: none)."""
        for template, _, _ in skeleton:
            if template.index >= len(self._templates) or self._templates[template.index] is not template:
                raise InputError(f"template {template.name!r} belongs to another graph")
        played = [(template.index, microbatch, chunk) for template, microbatch, chunk in skeleton]
        arrays = np.array(played, dtype=np.int32).reshape(-1, 3).T.copy()
        self._programs.append(
            Program(
                name=name or f"program{len(self._programs)}",
                ranks=rank_ranges(ranks),
                stage=stage,
                template=arrays[0],
                microbatch=arrays[1],
                chunk=arrays[2],
                layer_offset=layer_offset,
                memory=memory or MemoryProfile(),
            )
        )

    @staticmethod
    def default_phase(template_name: str) -> str:
        """The phase of ops whose template says it by its name, else "fwd"."""
        return template_name if template_name in ("bwd", "recompute", "optimizer", "grad_sync") else "fwd"

    def build(self) -> Graph:
        """The graph as columns.  Structure only: :func:`simcore.graph.verify` judges its meaning."""
        rows = OpRows()
        starts = [0]
        for template in self._templates:
            for values in template._rows:
                rows.append(**values)
            starts.append(len(rows))
        return Graph(
            workload=self._workload,
            groups=dict(self._groups),
            programs=tuple(self._programs),
            ops=rows.table(),
            edges=self._edge_table(starts),
            frees=self._free_table(starts),
            template_start=np.array(starts, dtype=np.int64),
            template_names=tuple(template.name for template in self._templates),
        )

    def _edge_table(self, starts: list[int]) -> EdgeTable:
        written: list[tuple[int, int, int, str, int]] = []
        for template, start in zip(self._templates, starts, strict=False):
            for edge in template._edges:
                if isinstance(edge.source, External):
                    src, stream, back = -1, edge.source.stream, edge.source.back
                else:
                    src, stream, back = start + edge.source.position, "", 0
                written.append((start + edge.dst, src, int(edge.kind), stream, back))
        written.sort()
        ints = np.array([(d, s, k, b) for d, s, k, _, b in written], dtype=np.int64).reshape(-1, 4).T
        dst, src_rows, kind, back_of = (np.ascontiguousarray(column) for column in ints)
        return EdgeTable(dst, src_rows, kind, Strings.encode([row[3] for row in written]), back_of)

    def _free_table(self, starts: list[int]) -> FreeTable:
        written: list[tuple[int, int, int, int, int]] = []
        for template, start in zip(self._templates, starts, strict=False):
            for free in template._frees:
                after = -1 if free.after < 0 else start + free.after
                owner = start + free.owner if free.scope == 0 else free.owner
                written.append((template.index, after, free.num_bytes, owner, free.scope))
        written.sort()
        columns = np.array(written, dtype=np.int64).reshape(-1, 5).T
        return FreeTable(*(np.ascontiguousarray(column) for column in columns))


def tiling(name: str, dims: Sequence[Dim], world_size: int) -> tuple[Dim, ...]:
    """Base dims that complete ``dims`` to a mixed radix of the whole world.

    InputError when a stride is not a multiple of the dims below it, or the world no multiple of all.
    """
    base: list[Dim] = []
    covered = 1
    for size, stride in sorted(dims, key=lambda dim: dim[1]):
        if stride % covered:
            raise InputError(f"process group {name!r}: stride {stride} is no multiple of {covered}")
        if stride > covered:
            base.append((stride // covered, covered))
        covered = stride * size
    if world_size % covered:
        raise InputError(f"process group {name!r}: {covered} ranks do not divide the world of {world_size}")
    if world_size > covered:
        base.append((world_size // covered, covered))
    return tuple(base)


def rank_ranges(ranks: Iterable[int]) -> tuple[tuple[int, int, int], ...]:
    """``ranks`` as few ``(start, stop, step)`` ranges, ascending.  Greedy: maximal runs of equal step."""
    pending: IntArray = np.unique(np.fromiter(ranks, dtype=np.int64))
    ranges: list[tuple[int, int, int]] = []
    position = 0
    while position < len(pending):
        if position + 1 == len(pending):
            ranges.append((int(pending[position]), int(pending[position]) + 1, 1))
            break
        steps = np.diff(pending[position:])
        differs = np.flatnonzero(steps != steps[0])
        count = int(differs[0]) + 1 if len(differs) else len(steps) + 1
        start, step = int(pending[position]), int(steps[0])
        ranges.append((start, start + (count - 1) * step + 1, step))
        position += count
    return tuple(ranges)
