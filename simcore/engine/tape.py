"""Programs compiled for execution: per stream a list of items, each one event if nothing disturbs it.

An *item* is a run of compute kernels that nobody outside the stream waits for in its middle, or one communication
launch (a collective, a send or recv, or an NCCL group of them), or one copy.  Items never cross a host
segment, so one launch base time places all launches of an item.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from simcore.cost.demand import Demands
from simcore.graph import FlatOps, Graph, OpKind, Program, resolve_waits
from simcore.graph.ops import IntArray

BoolArray = npt.NDArray[np.bool_]
Completion = tuple[int, int]  # (stream index, item number on that stream)
Demand = tuple[int, int, int, int, int, bool]  # arguments of Kernel after num_sms

LAUNCH_QUEUE_DEPTH = 1024  # launches that may be outstanding; CUDA blocks at about 650-1024
_LAUNCH_WINDOW = 256  # the bound is checked once per this many launches


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


@dataclass(slots=True)
class Item:
    """One entry of a stream's tape.

    ``first`` .. ``first + num_ops`` are positions in :attr:`Tape.order`.  ``waits`` are items of other streams that
    must be complete; ``segment`` is the host segment that launches it.  For runs: kernel ``i`` alone lasts from
    ``before[i]`` to ``after[i]`` after the run's start, its launch reaches the GPU ``launch[i]`` after the segment's
    base, ``lag[i]`` is how long after the base kernels from ``i`` on are no longer held up by launches, and
    ``demand[i]`` are the kernel's arguments.  For communication: ``calls[i]`` says what op ``i`` asks for.
    """

    kind: ItemKind
    first: int
    num_ops: int
    number: int
    segment: int
    waits: tuple[Completion, ...]
    watched: bool
    launch: list[int]
    before: list[int]
    after: list[int]
    lag: list[int]
    demand: list[Demand]
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

    ``order[p]`` is the flat op at position ``p`` (streams one after the other, issue order inside); ``item_of[p]``
    its item, counted over all streams; ``before``/``after`` its time alone from the start of its item.
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
    host_segment: IntArray  # the segment each of them belongs to
    host_offset: IntArray  # host time from the segment's base to each of them

    @property
    def num_items(self) -> int:
        """Items over all streams."""
        return self.first_item[-1]


@dataclass(frozen=True)
class HostCosts:
    """Host times of the launching thread, ps: one launch call, and launch call to start on an idle stream."""

    launch_ps: int = 0
    latency_ps: int = 0


def compile_tape(graph: Graph, program: Program, demands: Demands, alone_ps: IntArray, host: HostCosts) -> Tape:
    """Compile ``program``.  ``demands`` and ``alone_ps`` are indexed by op-table row."""
    flat = graph.flat_ops(program)
    rows = flat.row
    kind = graph.ops.kind[rows]
    on_host = (kind == OpKind.HOST) | (kind == OpKind.SYNC)
    stream_code = graph.ops.stream.codes[rows]
    segment, offset, syncs, costs = _host_segments(graph, rows, kind, host)

    codes = np.unique(stream_code[~on_host])
    order = np.concatenate([np.flatnonzero((stream_code == code) & ~on_host) for code in codes] or [np.zeros(0, np.int64)])
    stream_of = np.concatenate([np.full(int(((stream_code == c) & ~on_host).sum()), s) for s, c in enumerate(codes)] or [order])
    src, dst = resolve_waits(graph, program, flat)
    crossing = ~on_host[src] & ~on_host[dst] & (stream_code[src] != stream_code[dst])
    to_host = ~on_host[src] & on_host[dst]

    is_comm = np.isin(kind, (OpKind.COLLECTIVE, OpKind.SEND, OpKind.RECV))
    item_kind = np.where(is_comm, ItemKind.COMM, np.where(kind == OpKind.MEMCPY, ItemKind.COPY, ItemKind.RUN))
    waited = np.zeros(len(rows), dtype=np.bool_)
    waited[dst[crossing]] = True
    signals = np.zeros(len(rows), dtype=np.bool_)
    signals[src[crossing | to_host]] = True
    starts_item = _item_starts(graph, flat, order, stream_of, item_kind, segment, waited, signals)
    item_of = np.cumsum(starts_item) - 1
    first_item = np.searchsorted(stream_of, np.arange(len(codes) + 1))
    heads = np.flatnonzero(starts_item)
    first_numbers = [int(np.searchsorted(heads, position)) for position in first_item]

    position = np.full(len(rows), -1, dtype=np.int64)
    position[order] = np.arange(len(order))
    alone = np.where(is_comm[order], 0, alone_ps[rows[order]])
    ends = np.cumsum(alone)
    base = (ends - alone)[heads][item_of] if len(order) else ends
    after, before = ends - base, ends - alone - base

    def completion(flat_op: int) -> Completion:
        item = int(item_of[position[flat_op]])
        stream = int(stream_of[position[flat_op]])
        return stream, item - first_numbers[stream]

    waits_of: dict[int, dict[int, int]] = {}
    watched: set[int] = set()
    for source, target in zip(src[crossing].tolist(), dst[crossing].tolist(), strict=True):
        stream, number = completion(source)
        latest = waits_of.setdefault(int(item_of[position[target]]), {})
        latest[stream] = max(latest.get(stream, -1), number)
        watched.add(first_numbers[stream] + number)
    segments = []
    host_waits = _waits_of_syncs(src[to_host], dst[to_host])
    for sync, cost, must_be_done in zip(syncs.flat, costs, syncs.window, strict=True):
        needed: dict[int, int] = {}
        for flat_op in _sync_sources(graph, rows, sync, order, stream_of, codes, must_be_done, host_waits):
            stream, number = completion(flat_op)
            needed[stream] = max(needed.get(stream, -1), number)
            watched.add(first_numbers[stream] + number)
        segments.append(Segment(tuple(sorted(needed.items())), cost, sync))

    arrays = _Columns(order, before, after, offset, rows, demands, _calls(graph, rows, kind))
    bounds = [*heads.tolist(), len(order)]
    streams: list[tuple[Item, ...]] = []
    for s in range(len(codes)):
        items = [
            arrays.item(
                ItemKind(int(item_kind[order[bounds[i]]])), bounds[i], bounds[i + 1], i - first_numbers[s],
                int(segment[order[bounds[i]]]), tuple(sorted(waits_of.get(i, {}).items())), i in watched,
            )
            for i in range(first_numbers[s], first_numbers[s + 1])
        ]  # fmt: skip
        streams.append(tuple(items))
    host_ops = np.flatnonzero(on_host)
    return Tape(
        program, flat, tuple(streams), tuple(graph.ops.stream.values[code] for code in codes), tuple(first_numbers),
        tuple(segments), order, item_of, before, after, host_ops, segment[host_ops], offset[host_ops],
    )  # fmt: skip


@dataclass
class _Columns:
    """Per-position arrays that items slice."""

    order: IntArray
    before: IntArray
    after: IntArray
    offset: IntArray
    rows: IntArray
    demands: Demands
    calls: dict[int, Call]

    def __post_init__(self) -> None:
        d = self.demands
        uses_sms = (d.copy_engine == 0).tolist()
        columns = (d.sm_ps, d.blocks, d.blocks_per_sm, d.hbm_bytes, d.fixed_ps)
        self._demand: list[Demand] = list(zip(*(c.tolist() for c in columns), uses_sms, strict=True))
        self._row_of = self.rows[self.order].tolist()
        self._launch = self.offset[self.order]

    def item(
        self, kind: ItemKind, lo: int, hi: int, number: int, segment: int, waits: tuple[Completion, ...], watched: bool
    ) -> Item:
        launch = self._launch[lo:hi]
        if kind == ItemKind.COMM:
            calls = tuple(self.calls[flat] for flat in self.order[lo:hi].tolist())
            return Item(kind, lo, hi - lo, number, segment, waits, watched, launch.tolist(), [], [], [], [], calls)
        before, after = self.before[lo:hi], self.after[lo:hi]
        lag = np.maximum.accumulate((launch - before)[::-1])[::-1] + before
        demand = [self._demand[row] for row in self._row_of[lo:hi]]
        return Item(
            kind, lo, hi - lo, number, segment, waits, watched,
            launch.tolist(), before.tolist(), after.tolist(), lag.tolist(), demand, (),
        )  # fmt: skip


def _item_starts(
    graph: Graph,
    flat: FlatOps,
    order: IntArray,
    stream_of: IntArray,
    item_kind: IntArray,
    segment: IntArray,
    waited: BoolArray,
    signals: BoolArray,
) -> BoolArray:
    """Mask over positions: where a new item begins."""
    if not len(order):
        return np.zeros(0, dtype=np.bool_)
    previous, here = order[:-1], order[1:]
    batch = graph.ops.batch[flat.row]
    same_batch = (
        (batch[here] >= 0) & (batch[here] == batch[previous]) & (flat.instance[here] == flat.instance[previous])
        & (item_kind[previous] == ItemKind.COMM) & (item_kind[here] == ItemKind.COMM)
    )  # fmt: skip
    both_run = (item_kind[here] == ItemKind.RUN) & (item_kind[previous] == ItemKind.RUN)
    same_place = (stream_of[1:] == stream_of[:-1]) & (segment[here] == segment[previous])
    joined = same_place & (same_batch | (both_run & ~waited[here] & ~signals[previous]))
    # A fused launch is one item even where a launch window ends inside it.
    joined |= same_batch & (stream_of[1:] == stream_of[:-1])
    return np.concatenate([[True], ~joined])


def _calls(graph: Graph, rows: IntArray, kind: IntArray) -> dict[int, Call]:
    """What each communication op of the program asks for, by flat op."""
    ops = graph.ops
    counts: dict[tuple[object, ...], int] = {}
    calls: dict[int, Call] = {}
    for flat in np.flatnonzero(np.isin(kind, (OpKind.COLLECTIVE, OpKind.SEND, OpKind.RECV))).tolist():
        row = int(rows[flat])
        what, group, delta = OpKind(int(kind[flat])), ops.group[row], int(ops.peer_delta[row])
        stem = (group,) if what == OpKind.COLLECTIVE else (group, what, delta)
        sequence = counts[stem] = counts.get(stem, -1) + 1
        calls[flat] = Call(what, group, ops.collective[row], int(ops.comm_bytes[row]), delta, sequence)
    return calls


@dataclass(frozen=True)
class _Boundaries:
    """How each segment begins: its SYNC op (-1: none) and the flat op that must have ended (-1: none)."""

    flat: list[int]
    window: list[int]


def _host_segments(
    graph: Graph, rows: IntArray, kind: IntArray, host: HostCosts
) -> tuple[IntArray, IntArray, _Boundaries, list[int]]:
    """Segment and launch offset of each flat op; how segments begin; host cost of each."""
    recorded = np.maximum(graph.ops.recorded_ps[rows], 0)
    on_host = (kind == OpKind.HOST) | (kind == OpKind.SYNC)
    batch = graph.ops.batch[rows]
    fused = np.zeros(len(rows), dtype=np.bool_)  # further members of a fused launch cost nothing
    fused[1:] = (batch[1:] >= 0) & (batch[1:] == batch[:-1])
    free = (kind == OpKind.SYNC) | (kind == OpKind.EVENT_RECORD) | (kind == OpKind.EVENT_WAIT) | fused
    cost = np.where(kind == OpKind.HOST, recorded, np.where(free, 0, host.launch_ps))
    is_sync = kind == OpKind.SYNC
    launched = np.cumsum(~on_host)
    window = np.zeros(len(rows), dtype=np.bool_)
    sync_starts = np.flatnonzero(is_sync)
    since_sync = launched - np.concatenate([[0], launched[sync_starts]])[np.searchsorted(sync_starts, np.arange(len(rows)), "right")]
    over = since_sync > LAUNCH_QUEUE_DEPTH - _LAUNCH_WINDOW
    window[over & (since_sync % _LAUNCH_WINDOW == 1) & ~on_host & ~fused] = True
    begins = is_sync | window
    segment = np.cumsum(begins)
    spent = np.cumsum(cost) - cost
    starts = np.concatenate([[0], np.flatnonzero(begins)])
    origin = np.concatenate([spent, [int(cost.sum())]])[starts] if len(rows) else np.zeros(1, np.int64)
    offset = spent - origin[segment] + np.where(on_host, 0, host.latency_ps) if len(rows) else spent
    costs = np.diff(np.concatenate([origin, [int(cost.sum())]])).tolist()
    gpu_ops = np.flatnonzero(~on_host)
    flat_sync, must_end = [-1], [-1]
    for at in starts[1:].tolist():
        flat_sync.append(at if is_sync[at] else -1)
        behind = int(launched[at]) - 1 + _LAUNCH_WINDOW - LAUNCH_QUEUE_DEPTH
        must_end.append(int(gpu_ops[behind]) if window[at] and not is_sync[at] and behind >= 0 else -1)
    return segment, offset, _Boundaries(flat_sync, must_end), costs


def _waits_of_syncs(src: IntArray, dst: IntArray) -> dict[int, list[int]]:
    waits: dict[int, list[int]] = {}
    for source, target in zip(src.tolist(), dst.tolist(), strict=True):
        waits.setdefault(target, []).append(source)
    return waits


def _sync_sources(
    graph: Graph,
    rows: IntArray,
    sync: int,
    order: IntArray,
    stream_of: IntArray,
    codes: npt.NDArray[np.integer],
    must_end: int,
    host_waits: dict[int, list[int]],
) -> list[int]:
    """Flat ops that must have ended before the host goes on."""
    if sync < 0:
        return [must_end] if must_end >= 0 else []
    name = graph.ops.stream[int(rows[sync])]
    sources = list(host_waits.get(sync, ()))
    for stream, code in enumerate(codes):
        if name in ("", graph.ops.stream.values[code]):
            lo, hi = np.searchsorted(stream_of, [stream, stream + 1])
            before = int(np.searchsorted(order[lo:hi], sync))
            if before > 0:
                sources.append(int(order[lo + before - 1]))
    return sources
