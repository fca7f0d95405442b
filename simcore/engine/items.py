"""What a stream plays: items, each one event if nothing disturbs it, made when they are first played."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import cached_property
from struct import Struct
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
#: What an item is made of: its first op's row and sequence number, its launch, the indices of its first and
#: last kernel, the item that it waits for.  Side by side, since whoever makes an item asks for all of it.
_FIELDS: Final = np.dtype([
    ("row", "=i4"), ("sequence", "=i4"), ("segment", "=i4"), ("launch", "=i8"), ("first_kernel", "=i4"),
    ("last_kernel", "=i4"), ("wait_stream", "=i4"), ("wait_item", "=i4"), ("watched", "?"),
    ("on_copy_engine", "?"),
])  # fmt: skip
_SIZE: Final = _FIELDS.itemsize
_unpack: Final = Struct("=iiiqiiii??").unpack_from
_NOBODY, _KERNELS, _SEVERAL = -1, -1, -2
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
        self._calls, self._kernels, self._index, self._sequences = calls, kernels, index, sequences
        self._sequence = sequence_numbers(graph, rows, np.flatnonzero(is_communication(graph.ops.kind[rows])))
        order = np.argsort(table.wait_to, kind="stable")
        self._wait_from = table.wait_from[order].astype(np.int32)
        self._first_wait = np.searchsorted(table.wait_to[order], np.arange(len(heads) + 1)).astype(np.int32)
        watched = np.zeros(len(heads), dtype=np.bool_)
        watched[table.wait_from] = watched[table.host_waits] = True
        fields = np.zeros(len(heads), dtype=_FIELDS)
        of_calls = np.where(np.diff(bounds) == 1, self._sequence[first], _SEVERAL)
        fields["sequence"] = np.where(table.communicates, of_calls, _KERNELS)
        fields["row"], fields["first_kernel"], fields["last_kernel"] = rows[first], index[first], index[last]
        fields["segment"], fields["launch"] = table.segment, launches.offset[first]
        num_waits = np.diff(self._first_wait)
        source = self._wait_from[self._first_wait[:-1][num_waits == 1]]
        stream = np.array(layout.stream_of_item, dtype=np.int32)[source]
        fields["wait_stream"] = np.where(num_waits == 0, _NOBODY, _SEVERAL)
        fields["wait_stream"][num_waits == 1] = stream
        fields["wait_item"][num_waits == 1] = source - np.array(layout.first_item)[stream]
        fields["watched"], fields["on_copy_engine"] = watched, table.on_copy_engine
        self._fields = fields.tobytes()

    def make(self, number: int) -> Item:
        """The item of that number."""
        fields = _unpack(self._fields, number * _SIZE)
        row, sequence, segment, launch, first, last, wait_stream, wait_item, watched, on_copy_engine = fields
        work: KernelSequence | Communication
        if sequence >= 0:
            work = _new(Communication, ((self._calls[row],), (sequence,)))
        elif sequence == _KERNELS:
            found = self._sequences.get((first, last))
            if found is None:
                ops = self._ops(number)
                offset = self._launches.offset[ops] - launch
                found = self._sequences[first, last] = self._kernels.sequence(self._index[ops], offset)
            work = found
        else:
            ops = self._ops(number)
            calls = [self._calls[row] for row in self._rows[ops].tolist()]
            work = Communication(tuple(calls), tuple(self._sequence[ops].tolist()))
        waits: tuple[Completion, ...] = ()
        if wait_stream >= 0:
            waits = ((wait_stream, wait_item),)
        elif wait_stream == _SEVERAL:
            first_wait, stop = self._first_wait[number : number + 2].tolist()
            waits = self._layout.latest(self._wait_from[first_wait:stop].tolist())
        return _new(Item, (segment, launch, waits, watched, work, on_copy_engine))

    def _ops(self, number: int) -> Int32Array:
        """Flat ops of an item."""
        lo, *hi = self._layout.heads[number : number + 2].tolist()
        return self._layout.order[lo : hi[0] if hi else None]


class _Made(dict[int, Item]):
    """Items of one stream that were made last: ranks that play them are near."""

    __slots__ = ("_first", "_maker")

    def __init__(self, maker: ItemMaker, first: int) -> None:
        self._maker = maker
        self._first = first

    def __missing__(self, number: int) -> Item:
        if len(self) >= _KEPT:
            self.clear()
        item = self[number] = self._maker.make(self._first + number)
        return item


class Items(Sequence[Item]):
    """Items of one stream, made when they are asked for.  ``made`` is where to ask many times."""

    __slots__ = ("_len", "made")

    def __init__(self, maker: ItemMaker, first: int, stop: int) -> None:
        self._len = stop - first
        self.made = _Made(maker, first)

    def forget(self) -> None:
        """Let go of what items are made of: nobody asks for any more."""
        del self.made

    def __len__(self) -> int:
        return self._len

    @overload
    def __getitem__(self, number: int) -> Item: ...
    @overload
    def __getitem__(self, number: slice) -> list[Item]: ...
    def __getitem__(self, number: int | slice) -> Item | list[Item]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(self._len))]
        return self.made[number]

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


def sequence_numbers(graph: Graph, rows: Int32Array, comm: IntArray) -> Int32Array:
    """By flat op, of ``comm``: the how-manieth collective of its group, or send/recv with its peer, each is.

    Of others 0.
    """
    ops = graph.ops
    number = np.zeros(len(rows), dtype=np.int32)
    if not len(comm):
        return number
    row = rows[comm]
    pairs = ops.kind[row] != OpKind.COLLECTIVE
    stems = np.where(pairs, 1 + ops.kind[row], 0) * len(ops.group.values) + ops.group.codes[row]
    stems = stems * (1 + int(ops.peer_delta[row].max())) + np.where(pairs, ops.peer_delta[row], 0)
    order = np.argsort(stems, kind="stable")
    first = np.searchsorted(stems[order], stems[order])
    number[comm[order]] = np.arange(len(comm)) - first
    return number
