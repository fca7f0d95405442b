"""Data that crosses streams without a wait: legal to write, wrong on a GPU.

Note [Vector clocks]: an op knows, for each stream, the latest op that certainly ended before it
starts.  That knowledge changes only where something waits, so each stream keeps checkpoints (one per
wait) and not a clock per op; the host keeps its own, which every op launched later inherits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import field

import numpy as np

from simcore.graph.flatten import play_edges, resolve_edges
from simcore.graph.graph import FlatOps, Graph
from simcore.graph.ops import EdgeKind, IntArray, OpKind
from simcore.records import dataclass


def missing_waits(graph: Graph, flats: list[FlatOps]) -> list[str]:
    """One warning per pair of op names whose DATA edge crosses streams with no wait that orders it.

    ``flats`` are the flat ops of each program; equal skeletons are looked at once.
    """
    found: Counter[tuple[str, str, str, str]] = Counter()
    first: dict[tuple[str, str, str, str], str] = {}
    seen: set[bytes] = set()
    for flat in flats:
        key = flat.program.template.tobytes()
        if key in seen:
            continue
        seen.add(key)
        src, dst = _unordered(graph, flat)
        for one, other in zip(flat.row[src].tolist(), flat.row[dst].tolist(), strict=True):
            ops = graph.ops
            pair = (ops.name[one], ops.stream[one], ops.name[other], ops.stream[other])
            found[pair] += 1
            first.setdefault(pair, flat.program.name)
    return [
        f"{count} op(s) {reader!r} on stream {into!r} read what {writer!r} on stream {out_of!r} writes, "
        f"but no wait orders them (first in program {first[writer, out_of, reader, into]!r})"
        for (writer, out_of, reader, into), count in found.items()
    ]


def _unordered(graph: Graph, flat: FlatOps) -> tuple[IntArray, IntArray]:
    """DATA edges (flat src, flat dst) between streams that no chain of waits orders."""
    src, dst, _, _ = play_edges(graph, flat, _crossing_data(graph))
    codes = graph.ops.stream.codes[flat.row]
    if not len(src):
        return src, dst
    clocks = _clocks(graph, flat, codes)
    ordered = [
        clocks.knows(int(codes[reader]), reader, int(codes[writer]), writer)
        for writer, reader in zip(src.tolist(), dst.tolist(), strict=True)
    ]
    keep = ~np.array(ordered, dtype=np.bool_)
    return src[keep], dst[keep]


def _crossing_data(graph: Graph) -> IntArray:
    """Stored DATA edges whose two ends are on different streams."""
    edges, streams = graph.edges, graph.ops.stream
    codes = {name: code for code, name in enumerate(streams.values)}
    outside = np.array([codes.get(name, -1) for name in edges.ext_stream.values], dtype=np.int64)
    # Edges from outside carry the stream's name; -1 stands for a stream that nothing runs on.
    source = np.where(edges.src >= 0, streams.codes[edges.src], outside[edges.ext_stream.codes])
    return np.flatnonzero((edges.kind == EdgeKind.DATA) & (source != streams.codes[edges.dst]))


@dataclass
class _Clocks:
    """Checkpoints: at flat op ``at[s][k]`` stream ``s`` learns ``clock[s][k]``, the latest ended ops."""

    num_streams: int
    at: list[list[int]] = field(default_factory=list)
    clock: list[list[list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The last slot is the host.
        self.at = [[] for _ in range(self.num_streams + 1)]
        self.clock = [[] for _ in range(self.num_streams + 1)]

    def upto(self, stream: int, op: int) -> list[int]:
        """What stream ``stream`` knows when its flat op ``op`` starts, the host's knowledge included."""
        mine = bisect_right(self.at[stream], op) - 1
        host = bisect_right(self.at[-1], op) - 1
        if mine >= 0 and host >= 0:
            return list(map(max, self.clock[stream][mine], self.clock[-1][host]))
        if mine >= 0 or host >= 0:
            return list(self.clock[stream][mine] if mine >= 0 else self.clock[-1][host])
        return [-1] * self.num_streams

    def knows(self, reader: int, op: int, writer: int, written: int) -> bool:
        """Whether flat op ``op`` on stream ``reader`` is certain that ``written`` has ended."""
        return self.upto(reader, op)[writer] >= written

    def learn(self, slot: int, op: int, clock: list[int]) -> None:
        """From flat op ``op`` on, ``slot`` knows ``clock`` too."""
        if self.clock[slot]:
            clock = list(map(max, clock, self.clock[slot][-1]))
        self.at[slot].append(op)
        self.clock[slot].append(clock)


def _clocks(graph: Graph, flat: FlatOps, codes: np.ndarray[tuple[int], np.dtype[np.int32]]) -> _Clocks:
    """Checkpoints of a whole program, in issue order.  See Note [Vector clocks]."""
    clocks = _Clocks(len(graph.ops.stream.values))
    host = clocks.num_streams
    wait_src, wait_dst = resolve_edges(graph, flat.program, EdgeKind.WAIT, flat)
    blocks = np.flatnonzero(((graph.ops.blocking > 0) | (graph.ops.kind == OpKind.SYNC))[flat.row])
    events = [(d, 0, s) for s, d in zip(wait_src.tolist(), wait_dst.tolist(), strict=True)]
    events += [(b, 1, -1) for b in blocks.tolist()]
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(host + 1))
    issued = [order[bounds[code] : bounds[code + 1]] for code in range(host)]
    for op, is_block, source in sorted(events):
        stream = int(codes[op])
        if not is_block:
            clock = clocks.upto(int(codes[source]), source)
            clock[int(codes[source])] = max(clock[int(codes[source])], source)
            clocks.learn(stream, op, clock)
            continue
        waited = range(host) if graph.ops.stream.values[stream] == "" else (stream,)
        for code in waited:
            index = int(np.searchsorted(issued[code], op, side="right")) - 1
            if index >= 0:
                tail = int(issued[code][index])
                clock = clocks.upto(code, tail)
                clock[code] = max(clock[code], tail)
                clocks.learn(host, op + 1, clock)
    return clocks
