"""Flat ops of a program sorted by stream and cut into items."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from simcore.engine.launches import Launches
from simcore.graph import FlatOps, Graph, OpKind, resolve_waits
from simcore.graph.flatten import by_code
from simcore.graph.graph import Int32Array
from simcore.graph.kinds import BoolArray, is_on_host
from simcore.graph.ops import IntArray
from simcore.records import dataclass

Completion = tuple[int, int]  # (stream index, item number on that stream)


@dataclass(frozen=True)
class StreamLayout:
    """Where each op stands and which item it belongs to; what items and the host wait for."""

    order: Int32Array  # flat ops, streams one after the other
    stream_names: tuple[str, ...]
    stream_start: tuple[int, ...]  # position of each stream's first op
    heads: IntArray  # position of each item's first op
    stream_of_item: array[int]
    item_of: Int32Array  # by position
    first_item: tuple[int, ...]
    host_ops: IntArray
    wait_src: IntArray  # flat ops on other streams ...
    wait_dst: IntArray  # ... that these wait for
    host_src: IntArray  # flat ops on the GPU ...
    host_dst: IntArray  # ... that these of the host wait for by an edge

    @classmethod
    def of(cls, graph: Graph, flat: FlatOps, launches: Launches, is_comm: BoolArray) -> StreamLayout:
        """The layout of a program; ``is_comm`` marks its communication ops."""
        rows, kind = flat.row, graph.ops.kind[flat.row]
        of_host = is_on_host(kind)
        code = graph.ops.stream.codes[rows]
        on_gpu = np.flatnonzero(~of_host)
        order = on_gpu[by_code(code[on_gpu])].astype(np.int32)
        begins = np.ones(len(order), dtype=np.bool_)
        begins[1:] = np.diff(code[order]) != 0
        codes, stream_of = code[order][begins], np.cumsum(begins) - 1
        src, dst = resolve_waits(graph, flat.program, flat)
        crossing = ~of_host[src] & ~of_host[dst] & (code[src] != code[dst])
        to_host = ~of_host[src] & of_host[dst]
        waits, signals = np.zeros((2, len(rows)), dtype=np.bool_)
        waits[dst[crossing]] = True
        signals[src[crossing | to_host]] = True
        is_run = ~is_comm & (kind != OpKind.MEMCPY)
        joined = _joined(graph, flat, order, is_comm, is_run, launches.segment, waits, signals)
        joined[1:] &= stream_of[1:] == stream_of[:-1]
        heads = np.flatnonzero(~joined)
        stream_of_item = array("i", stream_of[heads].astype(np.int32).tobytes())
        streams = np.arange(len(codes) + 1)
        first_item = np.searchsorted(stream_of[heads], streams)
        return cls(
            order, tuple(graph.ops.stream.values[c] for c in codes),
            tuple(np.searchsorted(stream_of, streams).tolist()), heads, stream_of_item,
            np.cumsum(~joined, dtype=np.int32) - 1, tuple(first_item.tolist()), np.flatnonzero(of_host),
            src[crossing], dst[crossing], src[to_host], dst[to_host],
        )  # fmt: skip

    def latest(self, items: Sequence[int]) -> tuple[Completion, ...]:
        """The last of ``items`` on each stream."""
        if len(items) == 1:
            (item,) = items
            stream = self.stream_of_item[item]
            return ((stream, item - self.first_item[stream]),)
        last: dict[int, int] = {}
        for item in items:
            stream = self.stream_of_item[item]
            last[stream] = max(last.get(stream, -1), item - self.first_item[stream])
        return tuple(sorted(last.items()))

    def host_waits(self, graph: Graph, rows: Int32Array, launches: Launches) -> tuple[IntArray, IntArray]:
        """Host segments (ascending) and, beside each, a flat op that must have ended before it begins."""
        at_sync, for_room = np.flatnonzero(launches.sync >= 0), np.flatnonzero(launches.room >= 0)
        syncs = launches.sync[at_sync]
        is_sync = np.zeros(len(rows), dtype=np.bool_)
        is_sync[syncs] = True
        by_edge = is_sync[self.host_dst]
        segments: list[IntArray | Int32Array] = [for_room, launches.segment[self.host_dst[by_edge]]]
        ops: list[IntArray | Int32Array] = [launches.room[for_room], self.host_src[by_edge]]
        code, values = graph.ops.stream.codes[rows[syncs]], graph.ops.stream.values
        every = np.array([value == "" for value in values], dtype=np.bool_)[code]
        for (lo, hi), name in zip(pairwise(self.stream_start), self.stream_names, strict=True):
            of_stream = every | (code == values.index(name))
            before = lo + np.searchsorted(self.order[lo:hi], syncs[of_stream])
            segments.append(at_sync[of_stream][before > lo])
            ops.append(self.order[before[before > lo] - 1])
        segment: IntArray = np.concatenate(segments)
        order = np.argsort(segment, kind="stable")
        return segment[order], np.concatenate(ops)[order].astype(np.int64)


def _joined(
    graph: Graph,
    flat: FlatOps,
    order: Int32Array,
    is_comm: BoolArray,
    is_run: BoolArray,
    segment: Int32Array,
    waits: BoolArray,
    signals: BoolArray,
) -> BoolArray:
    """Mask over positions: the op belongs to the item of the op before it (if on the same stream)."""
    joined = np.zeros(len(order), dtype=np.bool_)
    place = order.astype(np.intp)  # looked up in many columns
    comm, run, begins = is_comm[place], is_run[place], segment[place]
    batch, instance = graph.ops.batch[flat.row[place]], flat.instance[place]
    fused = comm[:-1] & comm[1:] & (batch[1:] >= 0) & (batch[1:] == batch[:-1])
    undisturbed = (begins[1:] == begins[:-1]) & ~waits[place][1:] & ~signals[place][:-1]
    joined[1:] = (fused | (run[:-1] & run[1:] & undisturbed)) & (instance[1:] == instance[:-1])
    return joined
