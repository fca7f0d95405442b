"""Programs compiled for execution: per stream a list of items, each one event if nothing disturbs it.

An *item* is a run of compute kernels that nobody outside the stream waits for in its middle, or one
communication launch (a collective, a send or recv, or an NCCL group of them), or one copy.  Items never
cross a host segment, so one launch base time places all launches of an item.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simcore.cost.demand import Demands
from simcore.engine.launches import HostCosts, Launches, plan_launches
from simcore.engine.sequence import Demand, KernelSequence
from simcore.graph import FlatOps, Graph, OpKind, Program, resolve_waits
from simcore.graph.ops import IntArray

BoolArray = npt.NDArray[np.bool_]
Completion = tuple[int, int]  # (stream index, item number on that stream)
COMM_KINDS = (OpKind.COLLECTIVE, OpKind.SEND, OpKind.RECV)


class ItemKind(IntEnum):
    """How the stream executes an item."""

    RUN = 0
    COPY = 1
    COMM = 2


@dataclass(frozen=True, slots=True)
class Call:
    """A communication op: the ``sequence``-th of its kind on its group (for send/recv: with that peer)."""

    kind: OpKind
    group: str
    collective: str
    num_bytes: int
    peer_delta: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of a stream's tape.

    ``first`` .. ``first + num_ops`` are positions in :attr:`Tape.order`.  ``waits`` are items of other
    streams that must be complete, ``watched`` items are waited for.  The launch reaches the GPU
    ``launch_ps`` after the base of host ``segment``.  Runs and copies have ``kernels``; for communication
    ``calls[i]`` says what op ``i`` asks for.
    """

    kind: ItemKind
    first: int
    num_ops: int
    number: int
    segment: int
    launch_ps: int
    waits: tuple[Completion, ...]
    watched: bool
    kernels: KernelSequence | None
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """Launches between two points where the host may block.

    The host begins a segment when ``waits`` are complete, spends ``cost_ps`` launching, and goes on.
    ``sync`` is the flat op of the SYNC that the segment begins with, -1 for none.
    """

    waits: tuple[Completion, ...]
    cost_ps: int
    sync: int


@dataclass(frozen=True)
class Tape:
    """A program ready to run on any of its ranks.

    ``order[p]`` is the flat op at position ``p`` (streams one after the other, issue order inside);
    ``item_of[p]`` its item, counted over all streams; ``before``/``after`` its time alone from the start of
    its item.
    """

    program: Program
    flat: FlatOps
    streams: tuple[tuple[Item, ...], ...]
    stream_names: tuple[str, ...]
    first_item: tuple[int, ...]  # number of the stream's first item, over all streams
    segments: tuple[Segment, ...]
    order: IntArray
    item_of: IntArray
    before: IntArray
    after: IntArray
    host_ops: IntArray  # flat HOST and SYNC ops
    launches: Launches

    @property
    def num_items(self) -> int:
        """Items over all streams."""
        return self.first_item[-1]


class TapeCompiler:
    """Compiles the programs of a graph; equal kernel sequences are shared among all of them.

    ``demands`` and ``alone_ps`` are indexed by op-table row.
    """

    def __init__(self, graph: Graph, demands: Demands, alone_ps: IntArray, host: HostCosts) -> None:
        self._graph = graph
        self._alone_ps = alone_ps
        self._host = host
        d = demands
        columns = (d.sm_ps, d.blocks, d.blocks_per_sm, d.hbm_bytes, d.fixed_ps)
        uses_sms = (d.copy_engine == 0).tolist()
        self._demand: list[Demand] = list(zip(*(c.tolist() for c in columns), uses_sms, strict=True))
        self._sequences: dict[tuple[bytes, bytes], KernelSequence] = {}

    def compile(self, program: Program) -> Tape:
        """The program's tape."""
        graph = self._graph
        flat = graph.flat_ops(program)
        rows = flat.row
        launches = plan_launches(graph, rows, self._host)
        layout = _Layout.of(graph, flat, launches)
        position_of = np.full(len(rows), -1, dtype=np.int64)
        position_of[layout.order] = np.arange(len(layout.order))
        item_at = np.where(position_of >= 0, layout.item_of[position_of], -1)
        alone = np.where(np.isin(graph.ops.kind[rows], COMM_KINDS), 0, self._alone_ps[rows])[layout.order]
        ends = np.cumsum(alone)
        base = (ends - alone)[layout.heads][layout.item_of]

        waits, watched = self._waits(layout, item_at)
        segments = []
        for sync, room, cost in zip(launches.sync, launches.room, launches.cost_ps, strict=True):
            needed = item_at[layout.host_waits(graph, rows, sync, room)].tolist()
            segments.append(Segment(layout.latest(needed), cost, sync))
            watched.update(needed)
        calls = self._calls(rows)
        bounds = [*layout.heads.tolist(), len(layout.order)]
        items = [
            self._item(
                layout, launches, calls, rows, i, bounds[i], bounds[i + 1], waits.get(i, ()), i in watched
            )
            for i in range(len(layout.heads))
        ]
        first = layout.first_item
        return Tape(
            program, flat, tuple(tuple(items[lo:hi]) for lo, hi in pairwise(first)),
            layout.stream_names, first, tuple(segments), layout.order, layout.item_of,
            ends - alone - base, ends - base, layout.host_ops, launches,
        )  # fmt: skip

    def _waits(
        self, layout: _Layout, item_at: IntArray
    ) -> tuple[dict[int, tuple[Completion, ...]], set[int]]:
        """Per item what it waits for on other streams, and the items that are waited for."""
        sources: dict[int, list[int]] = {}
        for source, target in zip(
            item_at[layout.wait_src].tolist(), item_at[layout.wait_dst].tolist(), strict=True
        ):
            sources.setdefault(target, []).append(source)
        watched = {source for found in sources.values() for source in found}
        return {target: layout.latest(found) for target, found in sources.items()}, watched

    def _calls(self, rows: IntArray) -> dict[int, Call]:
        """What each communication op of the program asks for, by flat op."""
        ops = self._graph.ops
        counts: dict[tuple[object, ...], int] = {}
        calls: dict[int, Call] = {}
        for flat in np.flatnonzero(np.isin(ops.kind[rows], COMM_KINDS)).tolist():
            row = int(rows[flat])
            what, group, delta = OpKind(int(ops.kind[row])), ops.group[row], int(ops.peer_delta[row])
            stem = (group,) if what == OpKind.COLLECTIVE else (group, what, delta)
            sequence = counts[stem] = counts.get(stem, -1) + 1
            calls[flat] = Call(what, group, ops.collective[row], int(ops.comm_bytes[row]), delta, sequence)
        return calls

    def _item(
        self,
        layout: _Layout,
        launches: Launches,
        calls: dict[int, Call],
        rows: IntArray,
        number: int,
        lo: int,
        hi: int,
        waits: tuple[Completion, ...],
        watched: bool,
    ) -> Item:
        flat = layout.order[lo:hi]
        first = int(flat[0])
        kind = ItemKind(int(layout.item_kind[first]))
        launch = launches.offset[flat]
        stream = int(layout.stream_of[lo])
        return Item(
            kind, lo, hi - lo, number - layout.first_item[stream], int(launches.segment[first]),
            int(launch[0]), waits, watched,
            None if kind == ItemKind.COMM else self._sequence(rows[flat], launch - launch[0]),
            tuple(calls[op] for op in flat.tolist()) if kind == ItemKind.COMM else (),
        )  # fmt: skip

    def _sequence(self, rows: IntArray, launch: IntArray) -> KernelSequence:
        key = (rows.tobytes(), launch.tobytes())
        found = self._sequences.get(key)
        if found is None:
            demand = [self._demand[row] for row in rows.tolist()]
            found = self._sequences[key] = KernelSequence.of(demand, self._alone_ps[rows], launch)
        return found


@dataclass(frozen=True)
class _Layout:
    """Flat ops of a program sorted by stream and cut into items."""

    order: IntArray  # flat ops, streams one after the other
    stream_of: IntArray  # by position
    stream_codes: npt.NDArray[np.integer]
    stream_names: tuple[str, ...]
    item_kind: IntArray  # by flat op
    heads: IntArray  # position of each item's first op
    item_of: IntArray  # by position
    first_item: tuple[int, ...]
    host_ops: IntArray
    wait_src: IntArray  # flat ops on other streams ...
    wait_dst: IntArray  # ... that these wait for
    sync_waits: dict[int, list[int]]  # flat SYNC op -> ops that it waits for by an edge

    @classmethod
    def of(cls, graph: Graph, flat: FlatOps, launches: Launches) -> _Layout:
        rows, kind = flat.row, graph.ops.kind[flat.row]
        on_host = (kind == OpKind.HOST) | (kind == OpKind.SYNC)
        code = graph.ops.stream.codes[rows]
        on_gpu = np.flatnonzero(~on_host)
        order = on_gpu[np.argsort(code[on_gpu], kind="stable")]
        codes, stream_of = np.unique(code[order], return_inverse=True)
        src, dst = resolve_waits(graph, flat.program, flat)
        crossing = ~on_host[src] & ~on_host[dst] & (code[src] != code[dst])
        to_host = ~on_host[src] & on_host[dst]
        sync_waits: dict[int, list[int]] = {}
        for source, target in zip(src[to_host].tolist(), dst[to_host].tolist(), strict=True):
            sync_waits.setdefault(target, []).append(source)
        is_comm = np.isin(kind, COMM_KINDS)
        item_kind = np.where(
            is_comm, ItemKind.COMM, np.where(kind == OpKind.MEMCPY, ItemKind.COPY, ItemKind.RUN)
        )
        waits, signals = np.zeros((2, len(rows)), dtype=np.bool_)
        waits[dst[crossing]] = True
        signals[src[crossing | to_host]] = True
        joined = _joined(graph, flat, order, item_kind, launches.segment, waits, signals)
        joined[1:] &= stream_of[1:] == stream_of[:-1]
        heads = np.flatnonzero(~joined)
        first_item = np.searchsorted(stream_of[heads], np.arange(len(codes) + 1))
        return cls(
            order, stream_of.astype(np.int64), codes, tuple(graph.ops.stream.values[c] for c in codes),
            item_kind.astype(np.int64), heads, np.cumsum(~joined) - 1, tuple(first_item.tolist()),
            np.flatnonzero(on_host), src[crossing], dst[crossing], sync_waits,
        )  # fmt: skip

    def latest(self, items: list[int]) -> tuple[Completion, ...]:
        """The last of ``items`` on each stream."""
        last: dict[int, int] = {}
        for item in items:
            stream = int(self.stream_of[self.heads[item]])
            last[stream] = max(last.get(stream, -1), item - self.first_item[stream])
        return tuple(sorted(last.items()))

    def host_waits(self, graph: Graph, rows: IntArray, sync: int, room: int) -> IntArray:
        """Flat ops that must have ended before the host begins a segment."""
        if sync < 0:
            return np.array([room] if room >= 0 else [], dtype=np.int64)
        name = graph.ops.stream[int(rows[sync])]
        found = list(self.sync_waits.get(sync, ()))
        bounds = np.searchsorted(self.stream_of, np.arange(len(self.stream_codes) + 1))
        for stream, stream_name in enumerate(self.stream_names):
            if name in ("", stream_name):
                lo, hi = int(bounds[stream]), int(bounds[stream + 1])
                before = lo + int(np.searchsorted(self.order[lo:hi], sync))
                if before > lo:
                    found.append(int(self.order[before - 1]))
        return np.array(found, dtype=np.int64)


def _joined(
    graph: Graph,
    flat: FlatOps,
    order: IntArray,
    item_kind: IntArray,
    segment: IntArray,
    waits: BoolArray,
    signals: BoolArray,
) -> BoolArray:
    """Mask over positions: the op belongs to the item of the op before it (if on the same stream)."""
    joined = np.zeros(len(order), dtype=np.bool_)
    previous, here = order[:-1], order[1:]
    batch = graph.ops.batch[flat.row]
    comm = (item_kind[previous] == ItemKind.COMM) & (item_kind[here] == ItemKind.COMM)
    same_instance = flat.instance[here] == flat.instance[previous]
    fused = comm & (batch[here] >= 0) & (batch[here] == batch[previous]) & same_instance
    runs = (item_kind[previous] == ItemKind.RUN) & (item_kind[here] == ItemKind.RUN)
    undisturbed = (segment[here] == segment[previous]) & ~waits[here] & ~signals[previous]
    joined[1:] = fused | (runs & undisturbed)
    return joined
