"""Flat ops of a program sorted by stream and cut into items."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from simcore.engine.launches import Launches
from simcore.graph import FlatOps, Graph, OpKind, resolve_waits
from simcore.graph.flatten import by_code, narrow
from simcore.graph.graph import Int32Array
from simcore.graph.kinds import BoolArray, is_communication, is_on_host
from simcore.graph.ops import IntArray
from simcore.records import dataclass

Completion = tuple[int, int]  # (stream index, item number on that stream)

_GOES_ON, _GONE_ON_BEHIND, _COMMUNICATES, _FUSED = 1, 2, 4, 8


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
    def of(cls, graph: Graph, flat: FlatOps, launches: Launches) -> StreamLayout:
        """The layout of a program."""
        rows, kind = flat.row.astype(np.intp), graph.ops.kind  # looked up in several columns
        is_on, code_of = is_on_host(kind), narrow(graph.ops.stream.codes)
        of_host, code = is_on[rows], code_of[rows]
        on_gpu = np.flatnonzero(~of_host)
        order = on_gpu[by_code(code[on_gpu])]
        ordered = code[order]
        begins = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        stream_start = [0, *begins.tolist(), len(order)] if len(order) else [0]
        src, dst = resolve_waits(graph, flat.program, flat)
        crossing = ~of_host[src] & ~of_host[dst] & (code[src] != code[dst])
        to_host = ~of_host[src] & of_host[dst]
        wait_src, wait_dst, host_src = src[crossing], dst[crossing], src[to_host]
        joined = _joined(graph, flat, order, launches, wait_dst, wait_src, host_src)
        joined[begins] = False
        heads = np.flatnonzero(~joined)
        first_item = np.searchsorted(heads, stream_start)
        stream_of_item = np.repeat(np.arange(len(first_item) - 1, dtype=np.int32), np.diff(first_item))
        return cls(
            order.astype(np.int32), tuple(graph.ops.stream.values[c] for c in ordered[stream_start[:-1]]),
            tuple(stream_start), heads, array("i", stream_of_item.tobytes()),
            np.cumsum(~joined, dtype=np.int32) - 1, tuple(first_item.tolist()), np.flatnonzero(of_host),
            wait_src, wait_dst, host_src, dst[to_host],
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
    order: IntArray,
    launches: Launches,
    waits: IntArray,
    *signals: IntArray,
) -> BoolArray:
    """Mask over positions: the op belongs to the item of the op before it (if on the same stream).

    ``waits`` and ``signals``: flat ops that wait for other streams, and such that are waited for.
    """
    ops, rows = graph.ops, flat.row
    is_comm = is_communication(ops.kind)
    is_run = ~is_comm & (ops.kind != OpKind.MEMCPY)
    # Whether an op may go on with a run, may be gone on behind, communicates, and does so with others.
    flags = np.where(is_run, _GOES_ON | _GONE_ON_BEHIND, np.where(is_comm, _COMMUNICATES, 0))
    flags[is_comm & (ops.batch >= 0)] |= _FUSED
    flag = flags.astype(np.uint8)[rows]
    flag[waits] &= ~np.uint8(_GOES_ON)
    for ops_waited_for in signals:
        flag[ops_waited_for] &= ~np.uint8(_GONE_ON_BEHIND)
    # Runs cross neither instances nor segments; both begin at ever later flat ops.
    segments = np.flatnonzero(launches.segment[1:] != launches.segment[:-1]) + 1
    bounds = np.sort(np.concatenate([flat.first, segments]))
    stretch = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
    flag, stretch = flag[order], stretch[order]
    joined = np.zeros(len(order), dtype=np.bool_)
    joined[1:] = ((flag[1:] & _GOES_ON) > 0) & ((flag[:-1] & _GONE_ON_BEHIND) > 0)
    joined[1:] &= stretch[1:] == stretch[:-1]
    fused = np.flatnonzero(((flag[1:] & _FUSED) > 0) & ((flag[:-1] & _COMMUNICATES) > 0))
    before, behind = order[fused], order[fused + 1]
    same = ops.batch[rows[before]] == ops.batch[rows[behind]]
    joined[fused[same & (flat.instance[before] == flat.instance[behind])] + 1] = True
    return joined
