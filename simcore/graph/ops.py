"""Ops as columns: one numpy array per attribute, strings dictionary-coded.

A graph holds some ten thousand *distinct* ops and plays them millions of times, so nothing here
is an object per op.  The schema below is the contract between ``workloads`` (writers) and
``simcore`` (readers), in memory and in Parquet alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from simcore.errors import GraphError
from simcore.records import dataclass

IntArray = npt.NDArray[np.int64]
_FEW: Final = 100_000  # values whose table is sooner made than they are sorted


def told_apart(values: IntArray) -> tuple[IntArray, IntArray]:
    """Different values, ascending, and which one each is: by a table where they lie close together."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, -1)
    if high - low > max(len(values), _FEW):
        distinct, number = np.unique(values, return_inverse=True)
        return distinct, number.reshape(-1)
    is_there = np.zeros(high - low + 1, dtype=np.bool_)
    is_there[values - low] = True
    return np.flatnonzero(is_there) + low, (np.cumsum(is_there) - 1)[values - low]


def first_rows(numbers: npt.NDArray[np.integer], count: int) -> IntArray:
    """Where each number below ``count`` stands first; behind the last row where it does not."""
    found = np.full(count, len(numbers), dtype=np.int64)
    found[numbers[::-1]] = np.arange(len(numbers))[::-1]  # the last one that is written stays
    return found


class OpKind(IntEnum):
    """What the engine does with an op."""

    COMPUTE = 0
    COLLECTIVE = 1
    SEND = 2
    RECV = 3
    MEMCPY = 4
    HOST = 5
    EVENT_RECORD = 6
    EVENT_WAIT = 7
    SYNC = 8


class EdgeKind(IntEnum):
    """Why an op may not start before another.

    Only ``DATA`` and ``WAIT`` are stored.  ``STREAM`` (issue order within a stream) and ``LAUNCH``
    (issue order on the host) follow from positions; :func:`simcore.graph.program_edges` materialises them.
    """

    DATA = 0
    WAIT = 1
    STREAM = 2
    LAUNCH = 3


@dataclass(frozen=True)
class Strings:
    """A dictionary-coded string column: ``values[codes[i]]`` is the string of row ``i``."""

    codes: npt.NDArray[np.int32]
    values: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.values[int(self.codes[row])]

    def tolist(self) -> list[str]:
        """All rows as Python strings."""
        return [self.values[code] for code in self.codes]

    def take(self, rows: npt.NDArray[np.integer]) -> Strings:
        """The column restricted to ``rows`` (same dictionary)."""
        return Strings(self.codes[rows], self.values)

    def equals(self, value: str) -> npt.NDArray[np.bool_]:
        """Mask of the rows whose string is ``value``."""
        if value not in self.values:
            return np.zeros(len(self.codes), dtype=np.bool_)
        mask: npt.NDArray[np.bool_] = self.codes == self.values.index(value)
        return mask

    def changed(self, values: Mapping[int, object]) -> Strings:
        """The column with these values, by row."""
        index = {value: code for code, value in enumerate(self.values)}
        codes = self.codes.copy()
        for row, value in values.items():
            codes[row] = index.setdefault(str(value), len(index))
        return Strings(codes, tuple(index))

    def canonical(self) -> Strings:
        """As :meth:`encode` has it: values in the order of their first rows, those of no row left out."""
        first = first_rows(self.codes, len(self.values))
        used = np.flatnonzero(first < len(self.codes))
        used = used[np.argsort(first[used])]
        code = np.zeros(len(self.values), dtype=np.int32)
        code[used] = np.arange(len(used))
        return Strings(code[self.codes], tuple([self.values[old] for old in used.tolist()]))

    @classmethod
    def encode(cls, strings: Sequence[str]) -> Strings:
        """Dictionary-encode ``strings``; values keep the order of first appearance."""
        index = {value: code for code, value in enumerate(dict.fromkeys(strings))}
        codes = np.fromiter(map(index.__getitem__, strings), dtype=np.int32, count=len(strings))
        return cls(codes, tuple(index))


#: Column name -> (kind, default).  "str" columns are :class:`Strings`, "int" columns int64.
OP_COLUMNS: dict[str, tuple[str, object]] = {
    "name": ("str", ""),  # as launched: "aten::mm.default", "flash_attention_fwd", "nccl::all_reduce"
    "op_class": ("str", ""),  # cost class: gemm, bgemm, softmax, ... (simcore/cost); "" for non-compute
    "kind": ("int", int(OpKind.COMPUTE)),
    "stream": ("str", "compute"),  # stream symbol, equal on every rank: compute, tp, pp, dp, ...
    "phase": ("str", "fwd"),  # fwd | bwd | recompute | optimizer | grad_sync
    "module": ("str", ""),  # "decoder.layers.3.mlp.linear_fc1"
    "layer": ("int", -1),  # index within the rank's model chunk; -1 outside layers
    "dtype": ("str", ""),  # of the op's main input: float32, bfloat16, ...
    "in_shapes": ("str", ""),  # "[[2048,1,12288],[12288,4608]]" (JSON), tensors in argument order
    "out_shapes": ("str", ""),
    "flops": ("int", 0),  # multiply-adds count 2
    "bytes_read": ("int", 0),
    "bytes_written": ("int", 0),
    "group": ("str", ""),  # process-group symbol for collective/send/recv
    "collective": ("str", ""),  # its kind's name: all_reduce, ... (simcore/collectives/kinds)
    "num_bytes": ("int", 0),  # a message's size, as nccl-tests counts it (see the kind)
    "reduce_op": ("str", ""),  # sum, avg, max, ...
    "peer_delta": ("int", 0),  # send/recv: (peer's index - own index) mod group size
    "batch": ("int", -1),  # ops of one stream with equal batch >= 0 are one fused launch (NCCL group)
    "forward_op": ("int", -1),  # backward op: its forward op, counted from the forward template's first op
    "recorded_ps": ("int", -1),  # duration in a recorded trace; -1: not recorded
    "alloc_bytes": ("int", 0),  # storage that first exists when this op runs
    "blocking": ("int", 0),  # 1: the host waits for this op (cudaStreamSynchronize, item())
}


#: Columns that files call by another name (ops.parquet, what is hashed of a graph, messages about either).
_STORED_NAMES = {"num_bytes": "comm_bytes"}


def stored_name(column: str) -> str:
    """What files call a column of :data:`OP_COLUMNS`."""
    return _STORED_NAMES.get(column, column)


def shapes_text(shapes: Iterable[Iterable[int]]) -> str:
    """Shapes of tensors as ``in_shapes`` and ``out_shapes`` hold them."""
    return json.dumps([list(shape) for shape in shapes], separators=(",", ":"))


@dataclass(frozen=True)
class OpTable:
    """Ops, columnar.  All columns have equal length; see :data:`OP_COLUMNS` for meaning and unit."""

    name: Strings
    op_class: Strings
    kind: IntArray
    stream: Strings
    phase: Strings
    module: Strings
    layer: IntArray
    dtype: Strings
    in_shapes: Strings
    out_shapes: Strings
    flops: IntArray
    bytes_read: IntArray
    bytes_written: IntArray
    group: Strings
    collective: Strings
    num_bytes: IntArray
    reduce_op: Strings
    peer_delta: IntArray
    batch: IntArray
    forward_op: IntArray
    recorded_ps: IntArray
    alloc_bytes: IntArray
    blocking: IntArray

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: npt.NDArray[np.integer]) -> OpTable:
        """The table restricted to ``rows``, in that order."""
        picked: dict[str, Strings | IntArray] = {}
        for spec in fields(self):
            column = getattr(self, spec.name)
            picked[spec.name] = column.take(rows) if isinstance(column, Strings) else column[rows]
        return OpTable(**picked)  # type: ignore[arg-type]


@dataclass
class OpRows:
    """Append-only writer of an :class:`OpTable`; unnamed columns take their default.

    Equal rows may be one object, which is looked at once.  ``layers``: by row, where rows do not name them.
    """

    rows: list[dict[str, object]] = field(default_factory=list)
    layers: list[int] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def append(self, **values: object) -> int:
        """Add one op and return its row."""
        if not values.keys() <= OP_COLUMNS.keys():
            raise TypeError(f"unknown op column(s) {sorted(values.keys() - OP_COLUMNS.keys())}")
        self.rows.append(values)
        return len(self.rows) - 1

    def table(self) -> OpTable:
        """The rows written so far as a columnar table."""
        built: dict[str, Strings | IntArray] = {}
        number: dict[int, int] = {}
        which = np.array([number.setdefault(id(row), len(number)) for row in self.rows], dtype=np.intp)
        different = list({id(row): row for row in self.rows}.values())
        for name, (kind, default) in OP_COLUMNS.items():
            if name == "layer" and self.layers is not None:
                built[name] = np.array(self.layers, dtype=np.int64)
                continue
            column = [row.get(name, default) for row in different]
            if kind == "str":
                built[name] = Strings.encode([str(value) for value in column]).take(which)
            else:
                built[name] = _numbers(name, column, different)[which]
        return OpTable(**built)  # type: ignore[arg-type]


def _numbers(name: str, column: list[object], rows: list[dict[str, object]]) -> IntArray:
    try:
        return np.array(column, dtype=np.int64)
    except OverflowError:
        row, value = next((row, v) for row, v in enumerate(column) if isinstance(v, int) and abs(v) >> 63)
        raise GraphError(
            f"op {rows[row].get('name', '')!r}: {stored_name(name)} = {value} is more than 64 bits"
            " hold: no hardware does so much"
        ) from None


@dataclass(frozen=True)
class EdgeTable:
    """Stored edges of all templates, columnar and sorted by ``dst``.

    ``dst`` is a row of the op table.  ``src`` is a row of the same template, or -1 for an edge from
    outside the template instance; then the source is the ``ext_back``-th latest op (0 = the latest)
    issued on stream ``ext_stream`` before the instance began; ops count for the stream in their own column
    only (a SYNC of all streams for ""), whatever their kind.  Such a reference does not depend on where the
    instance stands, so equal microbatches have equal templates.
    """

    dst: IntArray
    src: IntArray
    kind: IntArray
    ext_stream: Strings
    ext_back: IntArray

    def __len__(self) -> int:
        return len(self.dst)


@dataclass(frozen=True)
class FreeTable:
    """Storage releases, columnar: after op ``after`` (row; -1 within ``template``: at its start).

    ``owner`` is the op that allocated the storage: with ``owner_scope`` 0 its row, in the same template;
    with scope 1 its position counted from the first op of the forward template of the same microbatch
    and chunk (several forward templates may share one backward template); otherwise -1 with scope 2.
    """

    template: IntArray
    after: IntArray
    num_bytes: IntArray
    owner: IntArray
    owner_scope: IntArray

    def __len__(self) -> int:
        return len(self.after)
