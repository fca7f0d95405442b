"""Programs compiled for execution: per stream a list of items, each one event if nothing disturbs it.

An *item* is a run of compute kernels that nobody outside the stream waits for in its middle, or one
communication launch (a collective, a send or recv, or an NCCL group of them), or one copy.  Items cross
neither host segments nor template instances, so equal instances share what their items execute.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simcore.cost.demand import Demands
from simcore.engine.items import Call, Item, ItemMaker, Items, ItemTable, Kernels, calls_by_row
from simcore.engine.launches import HostCosts, Launches, plan_launches
from simcore.engine.layout import Completion, StreamLayout
from simcore.engine.sequence import Demand, KernelSequence
from simcore.graph import FlatOps, Graph, OpKind, Program
from simcore.graph.graph import Int32Array
from simcore.graph.kinds import is_communication
from simcore.graph.ops import IntArray
from simcore.records import dataclass

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HostSegment:
    """Launches between two points where the host may block.

    The host begins a segment when ``waits`` are complete, spends ``cost_ps`` launching, and goes on.
    ``sync`` is the flat op of the SYNC that the segment begins with, -1 for none.
    """

    waits: tuple[Completion, ...]
    cost_ps: int
    sync: int


@dataclass(frozen=True, eq=False)
class Tape:
    """A program ready to run on any of its ranks; told apart by identity.

    ``order[p]`` is the flat op at position ``p`` (streams one after the other, issue order inside),
    ``kernel[p]`` its index in ``kernels`` (any for communication), ``item_of[p]`` its item, counted over all
    streams.  ``alone_ps`` is the time alone (0 for communication) of each row of the op table, or, of a tape
    with noise (``is_noisy``), of each flat op.
    """

    program: Program
    flat: FlatOps
    streams: tuple[Sequence[Item], ...]
    stream_names: tuple[str, ...]
    first_item: tuple[int, ...]  # number of the stream's first item, over all streams
    first_op: IntArray  # position of each item's first op
    segments: tuple[HostSegment, ...]
    order: Int32Array
    kernels: Kernels
    kernel: Int32Array
    item_of: Int32Array
    alone_ps: IntArray
    is_noisy: bool
    host_ops: IntArray  # flat HOST and SYNC ops
    launches: Launches
    table: ItemTable
    calls: dict[int, Call]  # by op-table row

    @property
    def num_items(self) -> int:
        """Items over all streams."""
        return self.first_item[-1]

    def forget_items(self) -> None:
        """Nothing is played any more: let go of what items are made of, as large as what is recorded."""
        for items in self.streams:
            if isinstance(items, Items):
                items.forget()
        self.kernels.strung.clear()

    def alone_in_item(self) -> tuple[IntArray, IntArray]:
        """By position, when the op begins and ends after its item does, if nothing disturbs it."""
        alone = self.alone_ps[self.order if self.is_noisy else self.flat.row[self.order]]
        ends = np.cumsum(alone)
        starts = ends - alone
        base = starts[self.first_op][self.item_of]
        return starts - base, ends - base


class TapeCompiler:
    """Compiles the programs of a graph for one kind of GPU.

    ``demands`` is indexed by op-table row; ``numbers`` are those of the job's different kernels.
    """

    def __init__(
        self,
        graph: Graph,
        demands: Demands,
        hbm_bytes_per_s: float,
        host: HostCosts,
        numbers: dict[tuple[Demand, int], int],
    ) -> None:
        self._graph = graph
        self._host = host
        self._demands = demands
        self._hbm_bytes_per_s = hbm_bytes_per_s
        self._by_row = Kernels.of(demands, hbm_bytes_per_s, numbers)
        self._is_comm = is_communication(graph.ops.kind)
        self._alone_ps = np.where(self._is_comm, 0, self._by_row.alone_ps)
        self._calls = calls_by_row(graph, self._is_comm)
        self._sequences: dict[tuple[int, int], KernelSequence] = {}

    def compile(self, program: Program, factor: FloatArray | None = None) -> Tape:
        """The program's tape.  ``factor`` stretches each flat op's kernel: SM time, bytes, start cost."""
        graph = self._graph
        flat = graph.flat_ops(program)
        rows = flat.row
        launches = plan_launches(graph, flat, self._host)
        layout = StreamLayout.of(graph, flat, launches)
        item_at = np.full(len(rows), -1, dtype=np.int64)
        item_at[layout.order] = layout.item_of
        if factor is None:
            kernels, index, alone = self._by_row, rows, self._alone_ps
        else:
            stretched = self._demands.take(rows).scaled(factor)
            kernels = Kernels.of(stretched, self._hbm_bytes_per_s, self._by_row.numbers)
            index = np.arange(len(rows), dtype=np.int32)
            alone = np.where(self._is_comm[rows], 0, kernels.alone_ps)

        segment, ops = layout.host_waits(graph, rows, launches)
        host_waits = item_at[ops]
        needed = host_waits.tolist()
        bounds = np.searchsorted(segment, np.arange(len(launches.sync) + 1)).tolist()
        segments = [
            HostSegment(layout.latest(needed[lo:hi]), cost, sync)
            for (lo, hi), cost, sync in zip(
                pairwise(bounds), launches.cost_ps.tolist(), launches.sync.tolist(), strict=True
            )
        ]
        first = layout.first_item
        table = _item_table(graph, layout, launches, rows, item_at, host_waits)
        sequences = self._sequences if factor is None else {}
        maker = ItemMaker(graph, layout, launches, rows, table, self._calls, kernels, index, sequences)
        return Tape(
            program, flat, tuple(Items(maker, lo, hi) for lo, hi in pairwise(first)), layout.stream_names,
            first, layout.heads, tuple(segments), layout.order, kernels, index[layout.order], layout.item_of,
            alone, factor is not None, layout.host_ops, launches, table, self._calls,
        )  # fmt: skip


def _item_table(
    graph: Graph,
    layout: StreamLayout,
    launches: Launches,
    rows: Int32Array,
    item_at: IntArray,
    host_waits: IntArray,
) -> ItemTable:
    bounds = np.concatenate([layout.heads, [len(layout.order)]])
    first, last = layout.order[bounds[:-1]], layout.order[bounds[1:] - 1] if len(layout.heads) else bounds[:0]
    kind, is_copy = graph.ops.kind[rows[first]], graph.ops.kind[rows[first]] == OpKind.MEMCPY
    # User buffers (Transformer Engine) and symmetric memory move a collective's data by copy engines.
    on_copy_engine = is_copy | graph.ops.op_class.equals("copy_engine")[rows[first]]
    return ItemTable(
        launches.segment[first], launches.offset[last], is_copy, on_copy_engine, is_communication(kind),
        item_at[layout.wait_src], item_at[layout.wait_dst], host_waits,
    )  # fmt: skip
