"""Whether the ranks of a graph can run together: membership, collectives, sends and receives, waits.

Ranks are compared through their programs: the sequence that each program issues on a group gets a
number, and members of a group must have equal numbers.  131,072 ranks cost one table look-up each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from simcore.distinct import among, distinct
from simcore.errors import GraphError
from simcore.graph.flatten import play_edges
from simcore.graph.graph import FlatOps, Graph, Int32Array
from simcore.graph.groups import ProcessGroup
from simcore.graph.kinds import COMMUNICATION, is_communication, is_on_host, is_p2p
from simcore.graph.ops import IntArray, OpKind
from simcore.graph.races import missing_waits
from simcore.graph.size import refuse_too_large_graph
from simcore.graph.structure import check_structure
from simcore.records import dataclass


class DisagreementError(GraphError):
    """``ranks`` issue calls that cannot meet; ``calls``: which of its communication ops it is, for each of
    them, counted from 0 in the order in which they are issued.
    """

    def __init__(self, ranks: tuple[int, ...], calls: tuple[int, ...], message: str) -> None:
        super().__init__(message)
        self.ranks = ranks
        self.calls = calls

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ranks, self.calls, str(self))


def verify(graph: Graph) -> list[str]:
    """Check that ``graph`` can run; returns warnings (data that crosses streams without a wait).

    GraphError, naming ranks, op and position on both sides, when: columns or references are out of range;
    an op depends on a later one or on an op before the start; a rank has no program or two; a rank uses a
    group that it is not in; members of a group issue different collectives, or in another order; a send
    meets no recv of equal size; a rank leaves its GPU without any op.
    """
    check_structure(graph, f"graph {graph.workload.name!r}")
    refuse_too_large_graph(graph, f"workload {graph.workload.name!r}")
    owner = graph.program_of_rank.astype(np.int64)
    played = [_ProgramPlay.of(graph, index) for index in range(len(graph.programs))]
    outside = np.flatnonzero(graph.edges.src < 0)
    for one in played:
        play_edges(graph, one.flat, outside)
    for name in graph.groups:
        check = _GroupCheck.of(graph, name, owner, played)
        if check is not None:
            check.collectives()
            check.point_to_point()
    _check_has_work(graph)
    return missing_waits(graph, [one.flat for one in played])


def _check_has_work(graph: Graph) -> None:
    before = np.concatenate([[0], np.cumsum(~is_on_host(graph.ops.kind))])
    is_idle = np.diff(before[graph.template_start]) == 0
    for program in graph.programs:
        if is_idle[program.template].all():
            raise GraphError(
                f"program {program.name!r} (rank {program.rank_list()[0]} and {program.num_ranks - 1} more)"
                " runs nothing on its GPU"
            )


@dataclass(frozen=True)
class _ProgramPlay:
    """One program's communication ops, in issue order: ``place`` are flat indices, ``row`` op rows."""

    program: int
    flat: FlatOps
    place: IntArray
    row: Int32Array

    @classmethod
    def of(cls, graph: Graph, program: int) -> _ProgramPlay:
        flat = graph.flat_ops(graph.programs[program])
        place = np.flatnonzero(is_communication(graph.ops.kind)[flat.row])
        return cls(program, flat, place, flat.row[place])

    def number(self, place: int) -> int:
        """Which communication op stands at a flat place; one past the last for a place behind them."""
        return int(np.searchsorted(self.place, place))

    def select(self, mask: npt.NDArray[np.bool_]) -> IntArray:
        """Flat places of the communication ops whose row is marked in ``mask``."""
        return self.place[mask[self.row]]


def group_matrix(group: ProcessGroup) -> IntArray:
    """All groups of a family, one per row, members in group order.  GraphError for ragged or shared ranks."""
    if group.explicit:
        if len({len(members) for members in group.explicit}) > 1:
            raise GraphError(f"process group {group.name!r}: its groups differ in size")
        matrix = np.array(group.explicit, dtype=np.int64)
    else:
        members = _sums(group.dims)
        matrix = group.offset + _sums(group.base_dims)[:, None] + members[None, :]
    if len(distinct(matrix.ravel())) != matrix.size:
        ranks, counts = np.unique(matrix, return_counts=True)
        raise GraphError(f"process group {group.name!r}: rank {int(ranks[counts > 1][0])} is in it twice")
    return matrix


def _sums(dims: tuple[tuple[int, int], ...]) -> IntArray:
    total = np.zeros(1, dtype=np.int64)
    for size, stride in dims:
        total = (np.arange(size, dtype=np.int64)[:, None] * stride + total[None, :]).ravel()
    return total


@dataclass(frozen=True)
class _GroupCheck:
    """One family of groups: ``matrix[g, i]`` is the i-th rank of group g, ``program[g, i]`` its program."""

    graph: Graph
    name: str
    matrix: IntArray
    program: IntArray
    played: list[_ProgramPlay]

    @classmethod
    def of(cls, graph: Graph, name: str, owner: IntArray, played: list[_ProgramPlay]) -> _GroupCheck | None:
        """The check of group ``name``, or None when nobody uses it.  GraphError for a foreign rank."""
        uses = graph.ops.group.equals(name)
        users = [one.program for one in played if uses[one.row].any()]
        if not users:
            return None
        matrix = group_matrix(graph.groups[name])
        if matrix.min() < 0 or matrix.max() >= graph.world_size:
            raise GraphError(
                f"process group {name!r} names rank {int(matrix.max())}, the world has {graph.world_size}"
            )
        is_member = np.zeros(graph.world_size, dtype=np.bool_)
        is_member[matrix] = True
        foreign = np.flatnonzero(among(owner, np.array(users)) & ~is_member)
        if len(foreign):
            rank = int(foreign[0])
            one = played[int(owner[rank])]
            place = int(one.select(uses)[0])
            raise DisagreementError(
                (rank,),
                (one.number(place),),
                f"rank {rank} issues {describe_op(graph, one.flat, place)} on process group {name!r}, "
                f"but is not a member of it",
            )
        return cls(graph, name, matrix, owner[matrix], played)

    def _places(self, kind: OpKind, peer_delta: int | None = None) -> list[IntArray]:
        """Flat places, per program, of this group's ops of one kind (and one peer)."""
        ops = self.graph.ops
        mask = ops.group.equals(self.name) & (ops.kind == kind)
        if peer_delta is not None:
            mask &= ops.peer_delta == peer_delta
        return [one.select(mask) for one in self.played]

    def collectives(self) -> None:
        """Every member issues the same collectives in the same order."""
        ops = self.graph.ops
        content = np.stack([ops.collective.codes.astype(np.int64), ops.num_bytes, ops.reduce_op.codes])
        places = self._places(OpKind.COLLECTIVE)
        numbers = _number([content[:, one.flat.row[at]] for one, at in zip(self.played, places, strict=True)])
        mine = numbers[self.program]
        for row, column in _disagreements(mine, mine[:, :1]):
            left, right = (int(self.program[row, at]) for at in (0, column))
            text, calls = self._first_difference(left, places[left], right, places[right], content)
            ranks = int(self.matrix[row, 0]), int(self.matrix[row, column])
            raise DisagreementError(
                ranks,
                calls,
                f"process group {self.name!r} (ranks {_shown(self.matrix[row])}): its members issue "
                f"different collectives; {text.format(*ranks)}",
            )

    def point_to_point(self) -> None:
        """Every send meets a recv of equal size, in order, for each pair of ranks."""
        ops, size = self.graph.ops, self.matrix.shape[1]
        pairs = ops.group.equals(self.name) & is_p2p(ops.kind)
        if (ops.peer_delta[pairs] >= size).any() or (ops.peer_delta[pairs] == 0).any():
            row = int(np.flatnonzero(pairs & ((ops.peer_delta >= size) | (ops.peer_delta == 0)))[0])
            raise GraphError(
                f"op {ops.name[row]!r} (row {row}): peer_delta {int(ops.peer_delta[row])} names no other "
                f"member of process group {self.name!r} of {size}"
            )
        deltas = np.where(ops.kind == OpKind.SEND, ops.peer_delta, size - ops.peer_delta)
        content = np.stack([ops.num_bytes, ops.collective.codes.astype(np.int64)])
        for delta in distinct(deltas[pairs]).tolist():
            sends, recvs = self._places(OpKind.SEND, delta), self._places(OpKind.RECV, size - delta)
            parts = [
                content[:, one.flat.row[at]]
                for at_all in (sends, recvs)
                for one, at in zip(self.played, at_all, strict=True)
            ]
            numbers = _number(parts)
            sent = numbers[: len(sends)][self.program]
            received = np.roll(numbers[len(sends) :][self.program], -delta, axis=1)
            for row, column in _disagreements(sent, received):
                peer = (column + delta) % size
                left, right = int(self.program[row, column]), int(self.program[row, peer])
                text, calls = self._first_difference(left, sends[left], right, recvs[right], content)
                ranks = int(self.matrix[row, column]), int(self.matrix[row, peer])
                raise DisagreementError(
                    ranks,
                    calls,
                    f"process group {self.name!r}: sends of rank {ranks[0]} to rank {ranks[1]} do not match "
                    f"its receives; {text.format(*ranks)}",
                )

    def _first_difference(
        self, left: int, left_at: IntArray, right: int, right_at: IntArray, content: IntArray
    ) -> tuple[str, tuple[int, ...]]:
        """Text (with {0} and {1} for the ranks) about the first position where two programs differ, and the
        numbers of the communication ops that stand there.
        """
        one, other = self.played[left].flat, self.played[right].flat
        shared = min(len(left_at), len(right_at))
        mine, theirs = content[:, one.row[left_at[:shared]]], content[:, other.row[right_at[:shared]]]
        differs = (mine != theirs).any(axis=0)
        position = int(np.flatnonzero(differs)[0]) if differs.any() else shared
        sides = [
            describe_op(self.graph, flat, int(at[position])) if position < len(at) else "nothing more"
            for flat, at in ((one, left_at), (other, right_at))
        ]
        calls = tuple(
            self.played[program].number(int(at[position]) if position < len(at) else len(flat.row))
            for program, flat, at in ((left, one, left_at), (right, other, right_at))
        )
        return f"number {position}: rank {{0}} issues {sides[0]}, rank {{1}} {sides[1]}", calls


def _number(sequences: list[IntArray]) -> IntArray:
    """A number per sequence; equal sequences get equal numbers."""
    seen: dict[bytes, int] = {}
    keys = [np.ascontiguousarray(sequence).tobytes() for sequence in sequences]
    return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)


def _disagreements(left: IntArray, right: IntArray) -> Iterator[tuple[int, int]]:
    """(row, column) of the first place where two tables differ, if any."""
    for row, column in np.argwhere(left != right)[:1]:
        yield int(row), int(column)


def _shown(ranks: IntArray) -> str:
    text = ", ".join(str(int(rank)) for rank in ranks[:4])
    return text if len(ranks) <= 4 else f"{text}, ... {len(ranks)} in all"


def describe_op(graph: Graph, flat: FlatOps, place: int) -> str:
    """An op of a program for a message: name, size and peer, position, template, microbatch."""
    ops, row = graph.ops, int(flat.row[place])
    instance = int(flat.instance[place])
    template = graph.template_names[int(flat.program.template[instance])]
    microbatch = int(flat.program.microbatch[instance])
    what = repr(ops.name[row])
    if ops.kind[row] in COMMUNICATION:
        reduce_op = f" {ops.reduce_op[row]}" if ops.reduce_op[row] else ""
        what += f" of {int(ops.num_bytes[row])} bytes{reduce_op}"
    where = f"op {place}, {template!r}" + (f" of microbatch {microbatch}" if microbatch >= 0 else "")
    return f"{what} ({where})"
