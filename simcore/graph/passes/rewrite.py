"""Putting fused kernels in the place of their ops: columns, edges, releases and references follow.

Note [Positions]: a fused kernel takes the row of its anchor; other rows of the match disappear and
everything that named them names the kernel.  References that count ops change with them: ``forward_op`` and
releases by the backward (counted from the forward template's start), and external edges (counted back on
a stream).  A template that is played after different ones may need different counts afterwards; then the
latest op is taken, which waits for at least as much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from simcore.distinct import distinct, distinct_columns
from simcore.graph.flatten import play_edges
from simcore.graph.graph import Graph
from simcore.graph.ops import EdgeKind, EdgeTable, FreeTable, IntArray, OpTable, Strings
from simcore.records import dataclass

RELATIVE_OWNER = 1
NO_OWNER = 2


@dataclass(frozen=True)
class Replacement:
    """``members`` (op rows, ascending) become one kernel at ``anchor`` with these column values.

    ``dropped_frees`` are rows of the free table that vanish; ``saved`` is storage that the kernel keeps for
    the backward: (bytes, op row after which it is released, in the same or in a later template).
    """

    members: tuple[int, ...]
    anchor: int
    columns: Mapping[str, str | int]
    dropped_frees: frozenset[int] = frozenset()
    saved: tuple[tuple[int, int], ...] = ()


def forward_templates(graph: Graph) -> dict[int, set[int]]:
    """Forward templates of each template: the latest earlier instance of the same microbatch and chunk.

    A forward template is one whose name starts with "fwd".
    """
    is_forward = [name.startswith("fwd") for name in graph.template_names]
    found: dict[int, set[int]] = defaultdict(set)
    for program in graph.programs:
        latest: dict[tuple[int, int], int] = {}
        played = zip(
            program.template.tolist(), program.microbatch.tolist(), program.chunk.tolist(), strict=True
        )
        for template, microbatch, chunk in played:
            if is_forward[template]:
                latest[microbatch, chunk] = template
            elif (microbatch, chunk) in latest:
                found[template].add(latest[microbatch, chunk])
    return dict(found)


def rewrite(graph: Graph, replacements: Sequence[Replacement]) -> Graph:
    """``graph`` with every replacement made.  Replacements must not share ops."""
    if not replacements:
        return graph
    moves = _Moves.of(graph, replacements)
    return replace(
        graph,
        ops=_ops(graph, replacements, moves),
        edges=_edges(graph, moves),
        frees=_frees(graph, replacements, moves),
        template_start=moves.template_start,
    )


@dataclass(frozen=True)
class _Moves:
    """Where op rows go: old row ``r`` is stood for by old row ``anchor[r]``, now row ``row[r]``."""

    anchor: IntArray
    kept: npt.NDArray[np.bool_]
    row: IntArray
    template_start: IntArray
    old_start: IntArray
    forwards: Mapping[int, set[int]]

    @classmethod
    def of(cls, graph: Graph, replacements: Sequence[Replacement]) -> _Moves:
        anchor = np.arange(len(graph.ops), dtype=np.int64)
        for one in replacements:
            anchor[list(one.members)] = one.anchor
        kept = anchor == np.arange(len(anchor))
        before = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
        row = before[:-1][anchor]
        start = before[graph.template_start]
        return cls(anchor, kept, row, start, graph.template_start, forward_templates(graph))

    def relative(self, template: int, position: int) -> int:
        """New position of the forward op at ``position``, for a template; -1 when its forwards disagree."""
        found = set()
        for forward in self.forwards.get(template, ()):
            old = int(self.old_start[forward]) + position
            if old >= self.old_start[forward + 1]:
                return -1
            found.add(int(self.row[old] - self.template_start[forward]))
        return found.pop() if len(found) == 1 else -1


def _ops(graph: Graph, replacements: Sequence[Replacement], moves: _Moves) -> OpTable:
    kept = np.flatnonzero(moves.kept)
    forward_op = _forward_ops(graph, replacements, moves)
    columns: dict[str, Strings | IntArray] = {}
    for spec in fields(OpTable):
        column = getattr(graph.ops, spec.name)
        changes = {one.anchor: one.columns[spec.name] for one in replacements if spec.name in one.columns}
        if isinstance(column, Strings):
            columns[spec.name] = column.changed(changes).take(kept)
        else:
            changed = forward_op if spec.name == "forward_op" else column.copy()
            changed[list(changes)] = [int(value) for value in changes.values()]
            columns[spec.name] = changed[kept]
    return OpTable(**columns)  # type: ignore[arg-type]


def _forward_ops(graph: Graph, replacements: Sequence[Replacement], moves: _Moves) -> IntArray:
    """The forward_op column (old rows) with new positions; a kernel takes that of its latest member."""
    column = graph.ops.forward_op.copy()
    for one in replacements:
        named = [int(column[row]) for row in one.members if column[row] >= 0]
        column[one.anchor] = named[-1] if named else -1
    rows = np.flatnonzero(column >= 0)
    owner = np.searchsorted(graph.template_start, rows, side="right") - 1
    memo: dict[tuple[int, int], int] = {}
    for row, template in zip(rows.tolist(), owner.tolist(), strict=True):
        key = (template, int(column[row]))
        if key not in memo:
            memo[key] = moves.relative(*key)
        column[row] = memo[key]
    return column


def _edges(graph: Graph, moves: _Moves) -> EdgeTable:
    edges = graph.edges
    target = _wait_targets(graph, moves)
    dst = moves.row[target]
    src = np.where(edges.src >= 0, moves.row[np.maximum(edges.src, 0)], -1)
    back = _external_backs(graph, moves)
    keep = (src < 0) | (src != dst)
    # Strings.values are unique, so codes tell external streams apart.
    columns = np.stack([dst, src, edges.kind, edges.ext_stream.codes, back])[:, keep]
    unique = distinct_columns(columns)
    return EdgeTable(
        dst=unique[0],
        src=unique[1],
        kind=unique[2],
        ext_stream=Strings(unique[3].astype(np.int32), edges.ext_stream.values),
        ext_back=unique[4],
    )


def _wait_targets(graph: Graph, moves: _Moves) -> IntArray:
    """Old row that each edge ends at.

    A wait into an op that moved forward to its anchor goes to the next op of the stream instead: the kernel
    is issued before the wait.  Without a next op in the template the kernel itself waits.
    """
    edges, codes = graph.edges, graph.ops.stream.codes
    target = edges.dst.copy()
    moved = (edges.kind == EdgeKind.WAIT) & (moves.anchor[edges.dst] < edges.dst)
    for edge in np.flatnonzero(moved).tolist():
        row = int(edges.dst[edge])
        template = int(np.searchsorted(graph.template_start, row, side="right")) - 1
        later = np.arange(row + 1, int(graph.template_start[template + 1]))
        same = later[(codes[later] == codes[row]) & moves.kept[later]]
        if len(same):
            target[edge] = int(same[0])
    return target


def _external_backs(graph: Graph, moves: _Moves) -> IntArray:
    """``ext_back`` of each edge, recounted over the ops that remain.  See Note [Positions].

    Programs are not played out: of each instance of a template it is enough to know how many ops each stream
    has had before it, of all and of those that remain.
    """
    edges, codes = graph.edges, graph.ops.stream.codes
    outside = np.flatnonzero(edges.src < 0)
    back = edges.ext_back.copy()
    if not len(outside):
        return back
    assert (codes[moves.anchor] == codes).all(), "an op is fused with one of another stream"
    streams = [np.flatnonzero(codes == code) for code in range(len(graph.ops.stream.values))]
    code_of = {name: code for code, name in enumerate(graph.ops.stream.values)}
    stream_of = np.array([code_of.get(name, -1) for name in edges.ext_stream.values])[edges.ext_stream.codes]
    template_of = np.searchsorted(graph.template_start, edges.dst, side="right") - 1
    fewest = np.full(len(edges), np.iinfo(np.int64).max, dtype=np.int64)
    for code in distinct(stream_of[outside]).tolist():
        rows = streams[code] if code >= 0 else np.zeros(0, dtype=np.int64)
        first = np.searchsorted(rows, graph.template_start)  # of each template, among the stream's rows
        kept = np.concatenate([[0], np.cumsum(moves.kept[rows])])
        asking = outside[stream_of[outside] == code]
        by_template = [asking[template_of[asking] == number] for number in range(len(first) - 1)]
        for program in graph.programs:
            played = program.template
            before = np.concatenate([[0], np.cumsum(np.diff(first)[played])])
            remain = np.concatenate([[0], np.cumsum(np.diff(kept[first])[played])])
            for number in dict.fromkeys(played.tolist()):
                asks, instances = by_template[number], np.flatnonzero(played == number)
                if not len(asks):
                    continue
                place = (before[instances] - 1)[:, None] - edges.ext_back[asks]
                if (place < 0).any():
                    play_edges(graph, graph.flat_ops(program), outside)  # says which op is missing
                home = np.searchsorted(before, place, side="right") - 1
                row = rows[place - before[home] + first[played[home]]]
                stands_for = np.searchsorted(rows, moves.anchor[row])
                at = remain[home] + kept[stands_for] - kept[first[played[home]]]
                newer = remain[instances][:, None] - at - 1
                fewest[asks] = np.minimum(fewest[asks], newer.min(axis=0))
    used = fewest < np.iinfo(np.int64).max
    back[used] = np.maximum(fewest[used], 0)
    return back


def _frees(graph: Graph, replacements: Sequence[Replacement], moves: _Moves) -> FreeTable:
    frees = graph.frees
    dropped = {index for one in replacements for index in one.dropped_frees}
    rows: list[tuple[int, int, int, int, int]] = []
    for index, row in enumerate(zip(*(getattr(frees, f.name).tolist() for f in fields(frees)), strict=True)):
        template, after, num_bytes, owner, scope = row
        if index in dropped:
            continue
        if owner >= 0 and scope == 0:
            owner = int(moves.row[owner])
        elif owner >= 0 and scope == RELATIVE_OWNER:
            owner = moves.relative(template, owner)
            scope = RELATIVE_OWNER if owner >= 0 else NO_OWNER
        rows.append((template, int(moves.row[after]) if after >= 0 else -1, num_bytes, owner, scope))
    saved: set[tuple[int, int, int, int, int]] = set()  # several forwards of one backward release it once
    for one in replacements:
        home = _template_of(graph, one.anchor)
        for num_bytes, until in one.saved:
            there = _template_of(graph, until)
            if there == home:
                owner, scope = int(moves.row[one.anchor]), 0
            else:
                owner = moves.relative(there, one.anchor - int(graph.template_start[home]))
                scope = RELATIVE_OWNER if owner >= 0 else NO_OWNER
            saved.add((there, int(moves.row[until]), num_bytes, owner, scope))
    columns = np.array(sorted((*rows, *saved)), dtype=np.int64).reshape(-1, 5).T
    return FreeTable(*(np.ascontiguousarray(column) for column in columns))


def _template_of(graph: Graph, row: int) -> int:
    return int(np.searchsorted(graph.template_start, row, side="right")) - 1
