"""Playing a program out: template-relative edges become edges between flat ops, vectorised."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcore.distinct import distinct
from simcore.errors import GraphError
from simcore.graph.graph import FlatOps, Graph, Program
from simcore.graph.ops import EdgeKind, IntArray, OpKind
from simcore.records import dataclass

BoolArray = npt.NDArray[np.bool_]


def narrow(codes: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """A column of numbers from 0 on, in 16 bits if they are small enough."""
    return codes.astype(np.uint16, copy=False) if codes.max(initial=0) < 1 << 16 else codes


def by_code(codes: npt.NDArray[np.integer]) -> IntArray:
    """Places of a column of numbers from 0 on, those of each number together and in their order.

    Numbers of 16 bits are sorted digit by digit, in a third of the time.
    """
    return np.argsort(narrow(codes), kind="stable")


@dataclass(frozen=True)
class FlatEdges:
    """Edges between flat ops of one program: ``src[i]`` precedes ``dst[i]`` because of ``kind[i]``.

    ``kind`` holds :class:`EdgeKind` values; rows are sorted by ``dst``, then ``src``, then ``kind``.
    """

    src: IntArray
    dst: IntArray
    kind: IntArray

    def __len__(self) -> int:
        return len(self.dst)

    def of_kind(self, kind: EdgeKind) -> FlatEdges:
        """The edges of one kind."""
        mask = self.kind == kind
        return FlatEdges(self.src[mask], self.dst[mask], self.kind[mask])


@dataclass(frozen=True)
class StreamOrder:
    """Flat ops of one program grouped by stream, in issue order.

    Ops of stream code ``c`` are ``flat[start[c] : start[c + 1]]``; flat op ``i`` stands at ``position[i]`` of
    that run, counted over all streams.
    """

    flat: IntArray
    start: IntArray
    position: IntArray

    @classmethod
    def of(cls, graph: Graph, flat: FlatOps) -> StreamOrder:
        """Order of ``flat`` by the stream column (codes of ``graph.ops.stream``)."""
        codes = graph.ops.stream.codes[flat.row]
        order = by_code(codes)
        start = np.searchsorted(codes[order], np.arange(len(graph.ops.stream.values) + 1)).astype(np.int64)
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        return cls(order, start, position)

    def predecessors(self) -> IntArray:
        """The op issued before each flat op on its stream, -1 for the first."""
        before = np.full(len(self.flat), -1, dtype=np.int64)
        before[self.flat[1:]] = self.flat[:-1]
        heads = self.start[:-1][self.start[:-1] < self.start[1:]]
        before[self.flat[heads]] = -1
        return before


def resolve_waits(graph: Graph, program: Program, flat: FlatOps | None = None) -> tuple[IntArray, IntArray]:
    """WAIT edges of a program as ``(flat_src, flat_dst)``, sorted by ``flat_dst``.

    GraphError when an external reference reaches before the program's start.
    """
    return resolve_edges(graph, program, EdgeKind.WAIT, flat)


def resolve_edges(
    graph: Graph, program: Program, kind: EdgeKind, flat: FlatOps | None = None
) -> tuple[IntArray, IntArray]:
    """Stored edges of one kind (DATA or WAIT) as ``(flat_src, flat_dst)``, sorted by ``flat_dst``.

    GraphError when an external reference reaches before the program's start, naming op and position.
    """
    flat = flat if flat is not None else graph.flat_ops(program)
    src, dst, _, _ = play_edges(graph, flat, np.flatnonzero(graph.edges.kind == kind))
    return src, dst


def play_edges(
    graph: Graph, flat: FlatOps, chosen: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Stored edges ``chosen`` (ascending) played out: ``(flat_src, flat_dst, edge, instance)`` of each.

    GraphError as :func:`resolve_edges`.
    """
    edges, program = graph.edges, flat.program
    bounds = np.searchsorted(edges.dst[chosen], graph.template_start)
    starts, counts = bounds[program.template], np.diff(bounds)[program.template]
    instance = np.repeat(np.arange(len(counts)), counts)
    first_edge = np.concatenate([[0], np.cumsum(counts)])
    edge = chosen[np.arange(len(instance)) - first_edge[instance] + starts[instance]]
    base = flat.first[instance] - graph.template_start[program.template][instance]
    dst = edges.dst[edge] + base
    src = edges.src[edge] + base
    outside = np.flatnonzero(edges.src[edge] < 0)
    if len(outside):
        src[outside] = _external_sources(graph, flat, edge[outside], instance[outside])
    return src, dst, edge, instance


def _external_sources(graph: Graph, flat: FlatOps, edge: IntArray, instance: IntArray) -> IntArray:
    """Flat source of each external edge, played in ``instance``: the ``back``-th latest of its stream."""
    edges, streams = graph.edges, graph.ops.stream
    code_of = {name: code for code, name in enumerate(streams.values)}
    codes = np.array([code_of.get(name, -1) for name in edges.ext_stream.values], dtype=np.int64)
    wanted, streams_of = codes[edges.ext_stream.codes[edge]], narrow(graph.ops.stream.codes)[flat.row]
    source = np.full(len(edge), -1, dtype=np.int64)
    for code in distinct(wanted):
        if code < 0:
            continue
        mine = np.flatnonzero(wanted == code)
        ops = np.flatnonzero(streams_of == code)
        place = np.searchsorted(ops, flat.first[instance[mine]]) - 1 - edges.ext_back[edge[mine]]
        found = place >= 0
        source[mine[found]] = ops[place[found]]
    missing = np.flatnonzero(source < 0)
    if len(missing):
        row, which = int(edge[missing[0]]), int(instance[missing[0]])
        op = int(edges.dst[row])
        raise GraphError(
            f"program {flat.program.name!r} (ranks {_ranks_text(flat.program)}): op {graph.ops.name[op]!r} "
            f"in instance {which} (template {_template_text(graph, flat.program, which)}) refers to op "
            f"{int(edges.ext_back[row])} before the latest on stream {edges.ext_stream[row]!r}, "
            f"which has no such op by then"
        )
    return source


def program_edges(graph: Graph, program: Program, flat: FlatOps | None = None) -> FlatEdges:
    """All typed edges of a program: DATA, WAIT, STREAM (issue order per stream) and LAUNCH (per host).

    A SYNC op on stream "" waits for every stream: it has a STREAM edge from each stream's latest op.
    GraphError as :func:`resolve_edges`.
    """
    flat = flat if flat is not None else graph.flat_ops(program)
    parts = []
    for kind in (EdgeKind.DATA, EdgeKind.WAIT):
        src, dst = resolve_edges(graph, program, kind, flat)
        parts.append((src, dst, kind))
    before = StreamOrder.of(graph, flat).predecessors()
    later = np.flatnonzero(before >= 0)
    parts.append((before[later], later, EdgeKind.STREAM))
    parts.append((*_device_sync_edges(graph, flat), EdgeKind.STREAM))
    launched = np.arange(1, len(flat), dtype=np.int64)
    parts.append((launched - 1, launched, EdgeKind.LAUNCH))
    all_src = np.concatenate([src for src, _, _ in parts])
    all_dst = np.concatenate([dst for _, dst, _ in parts])
    kinds = np.concatenate([np.full(len(src), kind, dtype=np.int64) for src, _, kind in parts])
    order = np.lexsort((kinds, all_src, all_dst))
    return FlatEdges(all_src[order], all_dst[order], kinds[order])


def _device_sync_edges(graph: Graph, flat: FlatOps) -> tuple[IntArray, IntArray]:
    """(src, dst): each stream's latest op before every SYNC of all streams."""
    all_streams = (graph.ops.kind == OpKind.SYNC) & graph.ops.stream.equals("")
    syncs = np.flatnonzero(all_streams[flat.row])
    order = StreamOrder.of(graph, flat)
    sources, targets = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for code, name in enumerate(graph.ops.stream.values):
        ops = order.flat[order.start[code] : order.start[code + 1]]
        if name == "" or not len(ops) or not len(syncs):
            continue
        place = np.searchsorted(ops, syncs) - 1
        sources.append(ops[place[place >= 0]])
        targets.append(syncs[place >= 0])
    return np.concatenate(sources), np.concatenate(targets)


def _ranks_text(program: Program) -> str:
    ranks = program.rank_list()
    shown = ", ".join(map(str, ranks[:4]))
    return shown if len(ranks) <= 4 else f"{shown}, ... {len(ranks)} in all"


def _template_text(graph: Graph, program: Program, instance: int) -> str:
    template = int(program.template[instance])
    microbatch = int(program.microbatch[instance])
    where = f", microbatch {microbatch}" if microbatch >= 0 else ""
    return f"{graph.template_names[template]!r}{where}"
