"""Programs compiled for execution: per stream a list of items, each one event if nothing disturbs it.

An *item* is a run of compute kernels that nobody outside the stream waits for in its middle, or one
communication launch (a collective, a send or recv, or an NCCL group of them), or one copy.  Items cross
neither host segments nor template instances, so equal instances share what their items execute.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simcore.cost.demand import Demands
from simcore.engine.launches import HostCosts, Launches, plan_launches
from simcore.engine.layout import BoolArray, Completion, Layout, communicates
from simcore.engine.sequence import Demand, KernelSequence
from simcore.graph import FlatOps, Graph, OpKind, Program
from simcore.graph.ops import IntArray

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A communication op as the graph describes it; one object for equal rows, compared by identity.

    ``rows`` are those of the op table.  ``peer_delta`` is 0 for a collective; ``recorded_ps`` is its
    transfer's time in a recording, -1: none.
    """

    rows: IntArray
    kind: OpKind
    group: str
    collective: str
    num_bytes: int
    peer_delta: int
    recorded_ps: int = -1


class Communication(NamedTuple):
    """Calls of a communication item, each the n-th of its kind on its group (or with its peer)."""

    calls: tuple[Call, ...]
    sequence: tuple[int, ...]


class Item(NamedTuple):
    """One entry of a stream's tape.

    ``waits`` are items of other streams that must be complete, ``watched`` items are waited for.  The launch
    reaches the GPU ``launch_ps`` after the base of host ``segment``.  ``on_copy_engine``: a copy, or
    communication that holds no SMs.
    """

    segment: int
    launch_ps: int
    waits: tuple[Completion, ...]
    watched: bool
    work: KernelSequence | Communication
    on_copy_engine: bool


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
class ItemTable:
    """Items of a tape as columns, numbered over all streams, in the order of the streams.

    ``launched_ps``: when, after the base of its host ``segment``, an item's last launch has reached the GPU.
    ``is_copy``: a copy, which takes a copy engine.  Item ``wait_to[i]`` waits for ``wait_from[i]`` on another
    stream; ``host_waits`` are items that the host waits for.
    """

    segment: IntArray
    launched_ps: IntArray
    is_copy: BoolArray
    wait_from: IntArray
    wait_to: IntArray
    host_waits: IntArray


@dataclass(frozen=True)
class Tape:
    """A program ready to run on any of its ranks.

    ``order[p]`` is the flat op at position ``p`` (streams one after the other, issue order inside);
    ``item_of[p]`` its item, counted over all streams; ``before``/``after`` its time alone from the start of
    its item.  ``alone_ps`` is the time alone of each flat op (0 for communication).
    """

    program: Program
    flat: FlatOps
    streams: tuple[list[Item], ...]
    stream_names: tuple[str, ...]
    first_item: tuple[int, ...]  # number of the stream's first item, over all streams
    first_op: IntArray  # position of each item's first op
    segments: tuple[Segment, ...]
    order: IntArray
    item_of: IntArray
    before: IntArray
    after: IntArray
    alone_ps: IntArray
    host_ops: IntArray  # flat HOST and SYNC ops
    launches: Launches
    table: ItemTable

    @property
    def num_items(self) -> int:
        """Items over all streams."""
        return self.first_item[-1]


class TapeCompiler:
    """Compiles the programs of a graph for one kind of GPU.

    ``demands`` is indexed by op-table row.
    """

    def __init__(self, graph: Graph, demands: Demands, hbm_bytes_per_s: float, host: HostCosts) -> None:
        self._graph = graph
        self._host = host
        self._demands = demands
        self._hbm_bytes_per_s = hbm_bytes_per_s
        self._by_row = _Kernels.of(demands, hbm_bytes_per_s)
        self._is_comm = communicates(graph.ops.kind)
        self._calls = _calls(graph, self._is_comm)
        self._sequences: dict[tuple[int, int], KernelSequence] = {}

    def compile(self, program: Program, factor: FloatArray | None = None) -> Tape:
        """The program's tape.  ``factor`` stretches each flat op's kernel: SM time, bytes, start cost."""
        graph = self._graph
        flat = graph.flat_ops(program)
        rows = flat.row
        launches = plan_launches(graph, rows, self._host)
        layout = Layout.of(graph, flat, launches, self._is_comm[rows])
        item_at = np.full(len(rows), -1, dtype=np.int64)
        item_at[layout.order] = layout.item_of
        if factor is None:
            kernels, index = self._by_row, rows
        else:
            stretched = self._demands.take(rows).scaled(factor)
            kernels, index = _Kernels.of(stretched, self._hbm_bytes_per_s), np.arange(len(rows))
        alone = np.where(self._is_comm[rows], 0, kernels.alone_ps[index])
        ends = np.cumsum(alone[layout.order])
        starts = ends - alone[layout.order]
        base = starts[layout.heads][layout.item_of]

        waits, watched = _waits(layout, item_at)
        segments, host_waits = [], []
        for sync, room, cost in zip(launches.sync, launches.room, launches.cost_ps, strict=True):
            needed = item_at[layout.host_waits(graph, rows, sync, room)].tolist()
            segments.append(Segment(layout.latest(needed), cost, sync))
            watched.update(needed)
            host_waits += needed
        sequences = self._sequences if factor is None else {}
        items = self._items(layout, launches, rows, waits, watched, kernels, index, sequences)
        first = layout.first_item
        table = _item_table(graph, layout, launches, rows, item_at, host_waits)
        return Tape(
            program, flat, tuple(items[lo:hi] for lo, hi in pairwise(first)), layout.stream_names, first,
            layout.heads, tuple(segments), layout.order, layout.item_of, starts - base, ends - base, alone,
            layout.host_ops, launches, table,
        )  # fmt: skip

    def _items(
        self,
        layout: Layout,
        launches: Launches,
        rows: IntArray,
        waits: dict[int, tuple[Completion, ...]],
        watched: set[int],
        kernels: _Kernels,
        index: IntArray,
        sequences: dict[tuple[int, int], KernelSequence],
    ) -> list[Item]:
        heads = layout.heads
        if not len(heads):  # a rank that only works on its host, or not at all
            return []
        tails = np.concatenate([heads[1:], [len(layout.order)]]) - 1
        first, last = layout.order[heads], layout.order[tails]
        segment = launches.segment[first].tolist()
        launch = launches.offset[first].tolist()
        key = list(zip(index[first].tolist(), index[last].tolist(), strict=True))
        is_comm = self._is_comm[rows[first]].tolist()
        ops = self._graph.ops
        is_copy = ops.kind[rows[first]] == OpKind.MEMCPY
        # User buffers (Transformer Engine) and symmetric memory move a collective's data by copy engines.
        is_copy = (is_copy | ops.op_class.equals("copy_engine")[rows[first]]).tolist()
        sequence = _sequence_numbers(self._graph, rows, self._is_comm)
        bounds = [*heads.tolist(), len(layout.order)]
        flags = np.zeros(len(heads), dtype=np.bool_)
        flags[list(watched)] = True
        items = []
        for i, is_watched in enumerate(flags.tolist()):
            work: KernelSequence | Communication
            if is_comm[i]:
                flat = layout.order[bounds[i] : bounds[i + 1]].tolist()
                work = Communication(
                    tuple([self._calls[int(rows[op])] for op in flat]), tuple([sequence[op] for op in flat])
                )
            else:
                known = sequences.get(key[i])
                if known is None:
                    ops_of_item = layout.order[bounds[i] : bounds[i + 1]]
                    known = sequences[key[i]] = kernels.sequence(
                        index[ops_of_item], launches.offset[ops_of_item] - launch[i]
                    )
                work = known
            items.append(Item(segment[i], launch[i], waits.get(i, ()), is_watched, work, is_copy[i]))
        return items


@dataclass(frozen=True)
class _Kernels:
    """Kernels by some index, ready to be strung together."""

    demand: list[Demand]
    alone_ps: IntArray

    @classmethod
    def of(cls, demands: Demands, hbm_bytes_per_s: float) -> _Kernels:
        d = demands
        columns = (d.sm_ps, d.blocks, d.blocks_per_sm, d.hbm_bytes, d.fixed_ps)
        uses_sms = (d.copy_engine == 0).tolist()
        demand = list(zip(*(c.tolist() for c in columns), uses_sms, strict=True))
        return cls(demand, d.alone_ps(hbm_bytes_per_s))

    def sequence(self, index: IntArray, launch: IntArray) -> KernelSequence:
        return KernelSequence.of([self.demand[i] for i in index.tolist()], self.alone_ps[index], launch)


def _calls(graph: Graph, is_comm: BoolArray) -> dict[int, Call]:
    """The call of each row that communicates."""
    ops, rows = graph.ops, np.flatnonzero(is_comm)
    if not len(rows):
        return {}
    delta = np.where(ops.kind[rows] == OpKind.COLLECTIVE, 0, ops.peer_delta[rows])
    columns = (ops.kind[rows], ops.group.codes[rows], ops.collective.codes[rows], ops.comm_bytes[rows], delta)
    _, first, which = np.unique(
        np.stack([*columns, ops.recorded_ps[rows]]), axis=1, return_index=True, return_inverse=True
    )
    calls = [
        Call(
            rows[which == number], OpKind(int(ops.kind[row])), ops.group[row], ops.collective[row],
            int(ops.comm_bytes[row]), int(delta[at]), int(ops.recorded_ps[row]),
        )
        for number, (at, row) in enumerate(zip(first.tolist(), rows[first].tolist(), strict=True))
    ]  # fmt: skip
    return dict(zip(rows.tolist(), [calls[number] for number in which.tolist()], strict=True))


def _sequence_numbers(graph: Graph, rows: IntArray, is_comm: BoolArray) -> dict[int, int]:
    """Per communication op: the how-manieth collective of its group, or send/recv with its peer, it is."""
    ops = graph.ops
    comm = np.flatnonzero(is_comm[rows])
    if not len(comm):
        return {}
    row = rows[comm]
    pairs = ops.kind[row] != OpKind.COLLECTIVE
    stem = np.stack(
        [ops.group.codes[row], np.where(pairs, ops.kind[row], -1), np.where(pairs, ops.peer_delta[row], -1)]
    )
    _, stems = np.unique(stem, axis=1, return_inverse=True)
    order = np.argsort(stems, kind="stable")
    first = np.searchsorted(stems[order], stems[order])
    number = np.empty(len(comm), dtype=np.int64)
    number[order] = np.arange(len(comm)) - first
    return dict(zip(comm.tolist(), number.tolist(), strict=True))


def _waits(layout: Layout, item_at: IntArray) -> tuple[dict[int, tuple[Completion, ...]], set[int]]:
    """Per item what it waits for on other streams, and the items that are waited for."""
    sources: dict[int, list[int]] = {}
    pairs = zip(item_at[layout.wait_src].tolist(), item_at[layout.wait_dst].tolist(), strict=True)
    for source, target in pairs:
        sources.setdefault(target, []).append(source)
    watched = {source for found in sources.values() for source in found}
    return {target: layout.latest(found) for target, found in sources.items()}, watched


def _item_table(
    graph: Graph, layout: Layout, launches: Launches, rows: IntArray, item_at: IntArray, host_waits: list[int]
) -> ItemTable:
    bounds = np.concatenate([layout.heads, [len(layout.order)]])
    first, last = layout.order[bounds[:-1]], layout.order[bounds[1:] - 1] if len(layout.heads) else bounds[:0]
    return ItemTable(
        launches.segment[first], launches.offset[last], graph.ops.kind[rows[first]] == OpKind.MEMCPY,
        item_at[layout.wait_src], item_at[layout.wait_dst], np.array(host_waits, dtype=np.int64),
    )  # fmt: skip
