"""Timeline columns: what the op table says, and what classes of ranks share that ran a program alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from simcore.engine.result import PlayedOut, SimulationResult, time_column
from simcore.graph.arrow import numbers, texts
from simcore.graph.graph import FlatOps, Graph, Program
from simcore.graph.kinds import KIND_NAMES, is_communication, is_on_host, is_p2p, is_priced
from simcore.graph.ops import IntArray, Strings
from simcore.timeline.schema import TIMELINE

#: ``stream`` of host ops and synchronisations.
HOST = "host"
_Column = npt.NDArray[np.integer]
_TIMES: Final = frozenset(("ready_ps", "start_ps", "end_ps"))


class GraphColumns:
    """Columns of the timeline that the op table's rows or plans say, by row or plan, each made when it is
    first asked for.
    """

    def __init__(self, graph: Graph, result: SimulationResult) -> None:
        self.graph, self.result = graph, result
        self._made: dict[str, tuple[npt.NDArray[np.integer], pa.Array | None]] = {}

    def __getitem__(self, name: str) -> tuple[npt.NDArray[np.integer], pa.Array | None]:
        """Numbers by row, and the texts that they stand for, if they do."""
        if name not in self._made:
            column = self._column(name)
            if isinstance(column, Strings):
                self._made[name] = column.codes.astype(np.int32, copy=False), texts(column.values)
            else:
                self._made[name] = column.astype(TIMELINE.field(name).type.to_pandas_dtype()), None
        return self._made[name]

    def _column(self, name: str) -> Strings | IntArray:
        ops = self.graph.ops
        if name == "stream":
            return _streams(ops.stream, ops.kind)
        if name == "kind":
            return Strings(ops.kind.astype(np.int32), KIND_NAMES)
        if name == "bytes":
            moved = ops.bytes_read + ops.bytes_written
            return np.where(is_communication(ops.kind), ops.num_bytes, moved)
        found: Strings | IntArray = getattr(ops, name)
        return found

    @cached_property
    def of_plans(self) -> dict[str, tuple[npt.NDArray[np.integer], pa.Array | None]]:
        """Numbers by plan, and the texts that they stand for; the last one is what -1 (no plan) picks."""
        plans = self.result.plans
        found: dict[str, tuple[npt.NDArray[np.integer], pa.Array | None]] = {
            "channels": (np.array([*(plan.channels for plan in plans), 0], dtype=np.int32), None),
            "alone_ps": (np.array([*(plan.alone_ps for plan in plans), 0], dtype=np.int64), None),
        }
        for name in ("algorithm", "protocol"):
            by_plan = Strings.encode([*(getattr(plan, name) for plan in plans), ""])
            found[name] = by_plan.codes, texts(by_plan.values)
        return found

    @cached_property
    def peers(self) -> tuple[npt.NDArray[np.int64], tuple[tuple[str, int], ...]]:
        """Distinct (group, peer delta) of the sends and recvs, and which one each row has; -1 elsewhere."""
        ops = self.graph.ops
        key = np.full(len(ops), -1, dtype=np.int64)
        p2p = np.flatnonzero(is_p2p(ops.kind))
        pairs = np.stack([ops.group.codes[p2p].astype(np.int64), ops.peer_delta[p2p]], axis=1)
        distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
        key[p2p] = inverse.reshape(-1)
        return key, tuple((ops.group.values[int(code)], int(delta)) for code, delta in distinct)


class ProgramColumns:
    """Arrow columns of a program: those that all classes share which ran it alike are made once, when they
    are asked for.
    """

    def __init__(self, ops: GraphColumns, rank_class: int) -> None:
        graph, result = ops.graph, ops.result
        self._ops, self._result, self._rank_class = ops, result, rank_class
        self._program = graph.programs[graph.program_of_rank[result.representatives[rank_class]]]
        self._flat = graph.flat_ops(self._program)
        self._row = self._flat.row.astype(np.intp)
        self._shared: dict[str, pa.Array] = {}

    def __len__(self) -> int:
        return len(self._flat)

    def table(self, rank: int, rank_class: int, names: Sequence[str]) -> pa.Table:
        """Columns of the timeline's rows of one rank, which stands for ``rank_class``, in issue order."""
        arrays = []
        for name in names:
            if name in _TIMES:
                arrays.append(numbers(time_column(self._result.times, rank_class, name)))
            elif name == "peer":
                arrays.append(numbers(self._peers(rank)))
            elif name in ("rank", "rank_class"):
                arrays.append(_constant(rank if name == "rank" else rank_class, len(self)))
            else:
                arrays.append(self._column(name))
        schema = pa.schema([TIMELINE.field(name) for name in names], metadata=TIMELINE.metadata)
        return pa.Table.from_arrays(arrays, schema=schema)

    def _column(self, name: str) -> pa.Array:
        if name not in self._shared:
            self._shared[name] = self._made(name)
        return self._shared[name]

    def _made(self, name: str) -> pa.Array:
        if name == "alone_ps":
            return numbers(self._alone_ps())
        if name == "layer":
            return numbers(_global_layer(self._flat, self._ops[name][0].take(self._row), self._program))
        if name == "op_id":
            return numbers(np.arange(len(self), dtype=np.int32))
        if name == "microbatch":
            return numbers(self._flat.microbatch.astype(np.int32, copy=False))
        if name in ("step", "stage"):
            return _constant(0 if name == "step" else self._program.stage, len(self))
        if name in ("algorithm", "protocol", "channels"):
            by_plan, words = self._ops.of_plans[name]
            plan, rows = self._told(self._result.plan_of)
            values = by_plan[plan][rows]
        else:
            by_row, words = self._ops[name]
            values = by_row.take(self._row)
        return numbers(values) if words is None else _text(values, words)

    def _told(self, columns: Sequence[_Column]) -> tuple[_Column, IntArray | slice]:
        """A column of this class by row of the op table, or by flat op, and where each op finds its value."""
        if isinstance(columns, PlayedOut):
            return columns.by_row[self._rank_class], self._row
        return columns[self._rank_class], slice(None)

    def _alone_ps(self) -> IntArray:
        """Time alone of each op: its plan's for communication, its own for kernels, else 0."""
        plan, planned = self._told(self._result.plan_of)
        alone, rows = self._told(self._result.alone_ps)
        of_plan = np.where(plan >= 0, self._ops.of_plans["alone_ps"][0][plan], 0)
        priced = is_priced(self._ops.graph.ops.kind)
        if rows is planned:  # both by row
            return np.where(priced, alone, of_plan)[rows]
        return np.where(priced[self._row], alone[rows], of_plan[planned])

    def _peers(self, rank: int) -> npt.NDArray[np.int32]:
        """Global rank at the other end of each send and recv of ``rank``, -1 elsewhere."""
        by_row, kinds = self._ops.peers
        key = by_row.take(self._row)
        has = np.zeros(len(kinds) + 1, dtype=np.bool_)  # the last one stands for none
        has[key] = True
        lookup = np.full(len(kinds) + 1, -1, dtype=np.int32)
        for number in np.flatnonzero(has[:-1]).tolist():
            group_name, delta = kinds[number]
            members = self._ops.graph.groups[group_name].ranks_of(rank)
            lookup[number] = members[(members.index(rank) + delta) % len(members)]
        return lookup[key]


def _text(codes: npt.NDArray[np.integer], words: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(numbers(codes), words)


def _streams(stream: Strings, kind: IntArray) -> Strings:
    """Where each op runs: what the host does, waiting for a stream included, is on no stream of the GPU."""
    values = stream.values if HOST in stream.values else (*stream.values, HOST)
    return Strings(np.where(is_on_host(kind), values.index(HOST), stream.codes).astype(np.int32), values)


def _constant(value: int, length: int) -> pa.Array:
    return numbers(np.full(length, value, dtype=np.int32))


def _global_layer(flat: FlatOps, layer: npt.NDArray[np.integer], program: Program) -> npt.NDArray[np.int32]:
    """Layer index in the whole model: the chunk's first layer plus the index within the chunk."""
    offset = np.array(program.layer_offset, dtype=np.int32)[program.chunk][flat.instance]
    return np.where(layer >= 0, layer + offset, np.int32(-1)).astype(np.int32, copy=False)
