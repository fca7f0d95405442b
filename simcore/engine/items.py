"""What a stream plays: items, each one event if nothing disturbs it, made when they are first played."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, overload

import numpy as np

from simcore.engine.sequence import KernelSequence
from simcore.graph import OpKind
from simcore.graph.kinds import is_communication
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.cost.demand import Demands
    from simcore.engine.launches import Launches
    from simcore.engine.layout import Completion, StreamLayout
    from simcore.engine.sequence import Demand
    from simcore.graph import Graph
    from simcore.graph.graph import Int32Array
    from simcore.graph.kinds import BoolArray
    from simcore.graph.ops import IntArray

_KEPT: Final = 256  # items of a stream
_new: Final = tuple.__new__  # without the call that a named tuple's own one makes


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A communication op as the graph describes it; one object for equal rows, compared by identity.

    ``rows`` are those of the op table, ``number`` counts the calls of a graph.  ``peer_delta`` is 0 for a
    collective; ``recorded_ps`` is its transfer's time in a recording, -1: none.
    """

    number: int
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


@dataclass(frozen=True, eq=False)
class Kernels:
    """Kernels by some index, ready to be strung together; ``numbers``: of the different ones of a job."""

    demand: list[Demand]
    alone_ps: IntArray
    numbers: dict[tuple[Demand, int], int]
    strung: dict[tuple[bytes, bytes], KernelSequence] = field(default_factory=dict)

    @classmethod
    def of(cls, demands: Demands, hbm_bytes_per_s: float, numbers: dict[tuple[Demand, int], int]) -> Kernels:
        """From demands, on a GPU with so much bandwidth."""
        d = demands
        columns = (d.sm_ps, d.blocks, d.blocks_per_sm, d.hbm_bytes, d.fixed_ps)
        uses_sms = (d.copy_engine == 0).tolist()
        placed = d.lost.tolist(), d.waiting.tolist()
        demand = list(zip(*(c.tolist() for c in columns), uses_sms, *placed, strict=True))
        return cls(demand, d.alone_ps(hbm_bytes_per_s), numbers)

    @cached_property
    def number(self) -> IntArray:
        """By index: the same for kernels that ask for the same, on any rank of the job."""
        known = self.numbers
        kernels = zip(self.demand, self.alone_ps.tolist(), strict=True)
        return np.array([known.setdefault(kernel, len(known)) for kernel in kernels], dtype=np.int64)

    def sequence(self, index: Int32Array, launch: IntArray) -> KernelSequence:
        """Kernels one after the other, whose launches arrive at ``launch``, ps after the first one's.

        The same object for equal ones.
        """
        key = self.number[index].tobytes(), launch.tobytes()
        found = self.strung.get(key)
        if found is None:
            demand = [self.demand[i] for i in index.tolist()]
            found = KernelSequence.of(demand, self.alone_ps[index].tolist(), launch.tolist())
            self.strung[key] = found
        return found


@dataclass(frozen=True)
class ItemTable:
    """Items of a tape as columns, numbered over all streams, in the order of the streams.

    ``launched_ps``: when, after the base of its host ``segment``, an item's last launch has reached the GPU.
    ``is_copy``: a copy; ``on_copy_engine``: that, or communication that holds no SMs; ``communicates``: a
    launch of calls.  Item ``wait_to[i]`` waits for ``wait_from[i]`` on another stream; ``host_waits`` are
    items that the host waits for.
    """

    segment: IntArray
    launched_ps: IntArray
    is_copy: BoolArray
    on_copy_engine: BoolArray
    communicates: BoolArray
    wait_from: IntArray
    wait_to: IntArray
    host_waits: IntArray


class ItemMaker:
    """Makes items of a tape by number, from columns.

    ``rows`` are the op-table rows of flat ops, ``index`` where their kernels are found in ``kernels``;
    ``calls`` by row; ``sequences`` are kernels that have been strung together before.
    """

    def __init__(
        self,
        graph: Graph,
        layout: StreamLayout,
        launches: Launches,
        rows: Int32Array,
        table: ItemTable,
        calls: dict[int, Call],
        kernels: Kernels,
        index: Int32Array,
        sequences: dict[tuple[int, int], KernelSequence],
    ) -> None:
        heads = layout.heads
        bounds = np.append(heads, len(layout.order))
        first, last = layout.order[heads], layout.order[bounds[1:] - 1]
        self._layout, self._launches, self._rows = layout, launches, rows
        self._stream_of, self._first_item = layout.stream_of_item, layout.first_item
        self._calls, self._kernels, self._index, self._sequences = calls, kernels, index, sequences
        self._bounds, self._first, self._row = packed(bounds), packed(first), packed(rows[first])
        self._segment, self._launch = packed(table.segment), packed(launches.offset[first])
        self._first_kernel, self._last_kernel = packed(index[first]), packed(index[last])
        self._communicates, self._on_copy_engine = flags(table.communicates), flags(table.on_copy_engine)
        self._sequence = sequence_numbers(graph, rows, np.flatnonzero(is_communication(graph.ops.kind[rows])))
        watched = np.zeros(len(heads), dtype=np.bool_)
        watched[table.wait_from] = watched[table.host_waits] = True
        self._watched = flags(watched)
        order = np.argsort(table.wait_to, kind="stable")
        self._wait_from = packed(table.wait_from[order])
        self._first_wait = packed(np.searchsorted(table.wait_to[order], np.arange(len(heads) + 1)))

    def make(self, number: int) -> Item:
        """The item of that number."""
        lo, hi = self._bounds[number], self._bounds[number + 1]
        work: KernelSequence | Communication
        if self._communicates[number]:
            if hi == lo + 1:
                op = self._first[number]
                work = _new(Communication, ((self._calls[self._row[number]],), (self._sequence[op],)))
            else:
                ops = self._layout.order[lo:hi]
                calls = [self._calls[row] for row in self._rows[ops].tolist()]
                work = Communication(tuple(calls), tuple([self._sequence[op] for op in ops.tolist()]))
        else:
            key = self._first_kernel[number], self._last_kernel[number]
            found = self._sequences.get(key)
            if found is None:
                ops = self._layout.order[lo:hi]
                launch = self._launches.offset[ops] - self._launch[number]
                found = self._sequences[key] = self._kernels.sequence(self._index[ops], launch)
            work = found
        first_wait, stop = self._first_wait[number], self._first_wait[number + 1]
        waits: tuple[Completion, ...] = ()
        if stop == first_wait + 1:
            source = self._wait_from[first_wait]
            stream = self._stream_of[source]
            waits = ((stream, source - self._first_item[stream]),)
        elif stop > first_wait:
            waits = self._layout.latest(self._wait_from[first_wait:stop])
        return _new(Item, (
            self._segment[number], self._launch[number], waits, self._watched[number], work,
            self._on_copy_engine[number],
        ))  # fmt: skip


class Items(Sequence[Item]):
    """Items of one stream; only those that were made last are kept: ranks that play them are near."""

    __slots__ = ("_first", "_len", "_made", "_maker")

    def __init__(self, maker: ItemMaker, first: int, stop: int) -> None:
        self._maker = maker
        self._first = first
        self._len = stop - first
        self._made: dict[int, Item] = {}

    def forget(self) -> None:
        """Let go of what items are made of: nobody asks for any more."""
        del self._maker, self._made

    def __len__(self) -> int:
        return self._len

    @overload
    def __getitem__(self, number: int) -> Item: ...
    @overload
    def __getitem__(self, number: slice) -> list[Item]: ...
    def __getitem__(self, number: int | slice) -> Item | list[Item]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(self._len))]
        made = self._made
        item = made.get(number)
        if item is None:
            if len(made) >= _KEPT:
                made.clear()
            item = made[number] = self._maker.make(self._first + number)
        return item

    def __iter__(self) -> Iterator[Item]:
        return (self[number] for number in range(self._len))


def calls_by_row(graph: Graph, is_comm: BoolArray) -> dict[int, Call]:
    """The call of each row that communicates."""
    ops, rows = graph.ops, np.flatnonzero(is_comm)
    if not len(rows):
        return {}
    delta = np.where(ops.kind[rows] == OpKind.COLLECTIVE, 0, ops.peer_delta[rows])
    columns = (ops.kind[rows], ops.group.codes[rows], ops.collective.codes[rows], ops.num_bytes[rows], delta)
    whats = list(zip(*(column.tolist() for column in (*columns, ops.recorded_ps[rows])), strict=True))
    rows_of: dict[tuple[int, ...], list[int]] = {what: [] for what in sorted(set(whats))}
    for row, what in zip(rows.tolist(), whats, strict=True):
        rows_of[what].append(row)
    calls: dict[int, Call] = {}
    for number, ((kind, _, _, num_bytes, peer, recorded), mine) in enumerate(rows_of.items()):
        group, collective = ops.group[mine[0]], ops.collective[mine[0]]
        call = Call(
            number, np.array(mine, dtype=np.int64), OpKind(kind), group, collective, num_bytes, peer, recorded
        )
        calls |= dict.fromkeys(mine, call)
    return calls


def packed(column: IntArray | Int32Array) -> array[int]:
    """Numbers that are asked for one by one, without an object for each."""
    code = "i" if not len(column) or column.max() < 1 << 31 else "q"
    return array(code, column.astype(np.dtype(code)).tobytes())


def flags(column: BoolArray) -> memoryview[bool]:
    """Truth values that are asked for one by one, in a byte each."""
    return memoryview(column.tobytes()).cast("?")


def sequence_numbers(graph: Graph, rows: Int32Array, comm: IntArray) -> array[int]:
    """By flat op, of ``comm``: the how-manieth collective of its group, or send/recv with its peer, each is.

    Of others 0.
    """
    ops = graph.ops
    if not len(comm):
        return array("i")
    row = rows[comm]
    pairs = ops.kind[row] != OpKind.COLLECTIVE
    stems = np.where(pairs, 1 + ops.kind[row], 0) * len(ops.group.values) + ops.group.codes[row]
    stems = stems * (1 + int(ops.peer_delta[row].max())) + np.where(pairs, ops.peer_delta[row], 0)
    order = np.argsort(stems, kind="stable")
    first = np.searchsorted(stems[order], stems[order])
    number = np.zeros(len(rows), dtype=np.int64)
    number[comm[order]] = np.arange(len(comm)) - first
    return packed(number)
