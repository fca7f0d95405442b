"""Writing one template of a graph, op by op; see :mod:`simcore.graph.builder`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from simcore.collectives.kinds import kind_of
from simcore.errors import InputError, nearest
from simcore.graph.ops import OP_COLUMNS, EdgeKind, OpKind
from simcore.records import dataclass


class OpHandle(NamedTuple):
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

#: Template names that are the phase of their ops; ops of other templates default to "fwd".
_NAMED_PHASES = ("bwd", "recompute", "optimizer", "grad_sync")


class WrittenEdge(NamedTuple):
    """An edge as written: from ``source`` to the op at position ``dst``."""

    dst: int
    kind: EdgeKind
    source: Source


class WrittenOps(NamedTuple):
    """Ops in a row that may be written once more, in any template, for another layer.

    ``rows`` and ``layers`` as in :class:`TemplateBuilder`; ``edges`` count from the stretch's first op, those
    from ops before it as well (below 0).
    """

    rows: list[dict[str, object]]
    layers: list[int]
    edges: list[tuple[int, EdgeKind, int | External]]


@dataclass(frozen=True)
class WrittenFree:
    """A release as written; positions inside the template, ``scope`` as in :class:`FreeTable`."""

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

    ``rows`` holds columns that are not at their defaults, but for ``layers``; rows of equal ops may be one
    object.  ``known`` is what writers of a graph remember between its templates; None: they do not.

    Errors: InputError for an unknown column, an unknown group, or a handle of another template.
    """

    def __init__(self, index: int, name: str, group_size: Callable[[str], int]) -> None:
        self.name = name
        self.index = index
        self.rows: list[dict[str, object]] = []
        self.layers: list[int] = []
        self.edges: list[WrittenEdge] = []
        self.frees: list[WrittenFree] = []
        self.known: dict[tuple[object, ...], Any] | None = None
        self._group_size = group_size
        self._phase = name if name in _NAMED_PHASES else "fwd"

    def __len__(self) -> int:
        return len(self.rows)

    def op(
        self, kind: OpKind, *, waits: Iterable[Source] = (), data: Iterable[Source] = (), **columns: object
    ) -> OpHandle:
        """An op of any kind with its columns as they are."""
        return self.append(kind, waits, data, columns)

    def append(
        self, kind: OpKind, waits: Iterable[Source], data: Iterable[Source], columns: dict[str, object]
    ) -> OpHandle:
        """What all methods that append end in; ``columns`` become the op's row."""
        if not columns.keys() <= OP_COLUMNS.keys():
            column = next(column for column in columns if column not in OP_COLUMNS)
            raise InputError(f"unknown op column {column!r}{nearest(column, OP_COLUMNS)}")
        position = len(self.rows)
        for edge_kind, sources in ((EdgeKind.DATA, data), (EdgeKind.WAIT, waits)):
            for source in sources:
                if isinstance(source, OpHandle):
                    self._position(source)
                self.edges.append(WrittenEdge(position, edge_kind, source))
        columns.setdefault("phase", self._phase)
        columns["kind"] = int(kind)
        self.layers.append(columns.pop("layer", -1))  # type: ignore[arg-type]
        self.rows.append(columns)
        return OpHandle(self.index, position)

    def stretch(self, first: int, first_edge: int) -> WrittenOps:
        """The ops from position ``first`` on, whose edges are those from number ``first_edge`` on."""
        edges = [
            (dst - first, kind, source if isinstance(source, External) else source.position - first)
            for dst, kind, source in self.edges[first_edge:]
        ]
        return WrittenOps(self.rows[first:], self.layers[first:], edges)

    def repeat(self, stretch: WrittenOps, layer: int) -> None:
        """Append the ops of ``stretch``, those that belong to a layer as ops of ``layer``."""
        first, index = len(self.rows), self.index
        self.rows.extend(stretch.rows)
        self.layers.extend([layer if one >= 0 else -1 for one in stretch.layers])
        self.edges.extend([
            WrittenEdge(
                first + dst, kind, source if isinstance(source, External) else OpHandle(index, first + source)
            )
            for dst, kind, source in stretch.edges
        ])  # fmt: skip

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
        columns["name"], columns["stream"] = name, stream
        return self.append(OpKind.COMPUTE, waits, data, columns)

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
        whole = {"bytes_read": num_bytes, "bytes_written": num_bytes, "op_class": "copy", **columns}
        return self.append(OpKind.MEMCPY, waits, data, {**whole, "name": name, "stream": stream})

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
        reduce_op = "sum" if kind_of(collective).reduces else ""
        columns = {"name": f"nccl::{collective}", "collective": collective, "reduce_op": reduce_op, **columns}
        return self._comm(OpKind.COLLECTIVE, group, num_bytes, stream, waits, data, columns)

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
        return self.append(
            OpKind.HOST, (), (), {"name": name, "stream": "host", "recorded_ps": duration_ps, **columns}
        )

    def event_wait(
        self, name: str, duration_ps: int, *, stream: str = "compute", waits: Iterable[Source] = ()
    ) -> OpHandle:
        """The stream waits for ``waits`` (cudaStreamWaitEvent) and then stands idle for ``duration_ps``."""
        return self.op(OpKind.EVENT_WAIT, waits=waits, name=name, stream=stream, recorded_ps=duration_ps)

    def sync(
        self, stream: str = "", *, name: str = "cudaDeviceSynchronize", waits: Iterable[Source] = ()
    ) -> OpHandle:
        """The host waits for everything issued so far on ``stream`` ("": on all streams)."""
        return self.op(OpKind.SYNC, waits=waits, name=name, stream=stream, blocking=1)

    def free(self, after: OpHandle | None, num_bytes: int, *, owner: OpHandle | None = None) -> None:
        """Release ``num_bytes`` after op ``after`` (None: at the template's start).

        ``owner`` is the op that allocated them, in this template or in the forward template.
        """
        position = -1 if after is None else self._position(after)
        if owner is None:
            self.frees.append(WrittenFree(position, num_bytes, -1, 2))
        else:
            scope = 0 if owner.template == self.index else 1
            self.frees.append(WrittenFree(position, num_bytes, owner.position, scope))

    def _position(self, handle: OpHandle) -> int:
        if handle.template != self.index:
            raise InputError(
                f"template {self.name!r}: an op of another template cannot be waited for by handle; "
                f"use external(stream, back)"
            )
        return handle.position

    def _comm(
        self,
        kind: OpKind,
        group: str,
        num_bytes: int,
        stream: str | None,
        waits: Iterable[Source],
        data: Iterable[Source],
        columns: dict[str, object],
    ) -> OpHandle:
        self._group_size(group)
        columns = {"group": group, "num_bytes": num_bytes, "stream": stream or group, **columns}
        return self.append(kind, waits, data, columns)

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
        delta = peer_delta % self._group_size(group)
        columns = {"name": f"nccl::{kind.name.lower()}", "peer_delta": delta, **columns}
        return self._comm(kind, group, num_bytes, stream, waits, data, columns)
