"""What ranks issue, changed: ops put in, given other columns, ordered by more waits or by fewer.

Note [Variants]
    Templates are shared by microbatches, stages and ranks; a change may be one of a few of them only.  An
    instance that is changed otherwise than another of its template gets a template of its own, and so do
    instances whose waits reach back over the border differently.  Sources outside an instance are found on
    the ranks' whole step before the change, and said anew after it: what an op waited for, it waits for
    still.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace

import numpy as np

from simcore.errors import InputError
from simcore.graph.flatten import play_edges
from simcore.graph.graph import FlatOps, Graph, Int32Array, Program
from simcore.graph.layout import rank_ranges
from simcore.graph.ops import (
    EdgeKind,
    EdgeTable,
    FreeTable,
    IntArray,
    OpTable,
    Strings,
)  # fmt: skip
from simcore.graph.passes.rewrite import NO_OWNER, RELATIVE_OWNER
from simcore.graph.passes.variants import ITSELF, NONE, BoolArray, Change, Layout, TemplateVariants
from simcore.records import dataclass


@dataclass(frozen=True)
class AddedWaits:
    """On ``ranks`` of a program, op ``dst[i]`` waits for ``src[i]``: flat ops, or what is put in there."""

    program: int
    ranks: frozenset[int] | None
    src_slot: int
    src: IntArray
    dst_slot: int
    dst: IntArray


def reissued(
    graph: Graph, changes: Sequence[Change], waits: Sequence[AddedWaits] = ()
) -> tuple[Graph, dict[int, BoolArray]]:
    """``graph`` after ``changes`` and with ``waits``, and by number of a "mark" the op rows that it is on.

    InputError for an op that would wait for one that is issued later.
    """
    variants = TemplateVariants(graph, changes)
    atoms = [
        atom
        for number in range(len(graph.programs))
        for atom in _atoms(graph, number, changes, waits, variants)
    ]
    ops = variants.op_table()
    finals = _Finals(variants)
    outside = np.flatnonzero(graph.edges.src < 0)
    programs = [
        replace(
            atom.program, ranks=atom.ranks, name=atom.name,
            template=finals.instances(atom, ops, _crossing(graph, atom, outside, changes)),
        )
        for atom in atoms
    ]  # fmt: skip
    return finals.graph(ops, tuple(programs)), {
        number: variants.marked(number)[finals.rows]
        for number, change in enumerate(changes) if change.how == "mark"
    }  # fmt: skip


@dataclass(frozen=True)
class _Atom:
    """Ranks of a program that all changes treat alike: ``variant`` of each instance."""

    number: int
    program: Program
    name: str
    ranks: tuple[tuple[int, int, int], ...]
    active: tuple[bool, ...]
    waits: tuple[AddedWaits, ...]
    flat: FlatOps
    variant: IntArray
    variants: TemplateVariants

    def place(self, slot: int, flat_ops: IntArray) -> IntArray:
        """New flat place of ops, or of what ``slot`` put in beside them."""
        instance = self.flat.instance[flat_ops]
        local = flat_ops - self.flat.first[instance]
        at = np.empty(len(flat_ops), dtype=np.int64)
        for one in np.unique(self.variant[instance]).tolist():
            mine = self.variant[instance] == one
            at[mine] = self.variants.layouts[one].position[slot][local[mine]]
        return self.first[instance] + at

    @property
    def first(self) -> IntArray:
        """New flat place of the first op of each instance, and the number of all."""
        lengths = np.array([len(one.row) for one in self.variants.layouts], dtype=np.int64)[self.variant]
        return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _atoms(
    graph: Graph,
    number: int,
    changes: Sequence[Change],
    waits: Sequence[AddedWaits],
    variants: TemplateVariants,
) -> Iterable[_Atom]:
    program = graph.programs[number]
    flat = graph.flat_ops(program)
    mine = [one for one in waits if one.program == number]
    said = [one.ranks for one in changes] + [one.ranks for one in mine]
    split = [ranks for ranks in said if ranks is not None]
    parts: dict[tuple[bool, ...], list[int]] = defaultdict(list)
    if split:
        for rank in program.rank_list():
            parts[tuple(rank in ranks for ranks in split)].append(rank)
    for part, ranks in enumerate(parts.values() if len(parts) > 1 else [[]]):
        example = ranks[0] if ranks else program.ranks[0][0]
        active = tuple(one.ranks is None or example in one.ranks for one in changes)
        yield _Atom(
            number, program, f"{program.name}.{part}" if ranks else program.name,
            rank_ranges(ranks) if ranks else program.ranks, active,
            tuple(one for one in mine if one.ranks is None or example in one.ranks), flat,
            variants.of_instances(number, flat, active), variants,
        )  # fmt: skip


def _crossing(
    graph: Graph, atom: _Atom, outside: IntArray, changes: Sequence[Change]
) -> tuple[IntArray, IntArray, IntArray]:
    """Edges into an instance from outside, and those that are added: (src, dst, kind), at new places."""
    src, dst, edge, _ = play_edges(graph, atom.flat, outside)
    kind = graph.edges.kind[edge]
    kept = np.ones(len(dst), dtype=np.bool_)
    for change, active in zip(changes, atom.active, strict=True):
        if change.how == "unwait" and active:
            kept &= ~(change.where[atom.number][dst] & (kind == EdgeKind.WAIT))
    sources, targets = [atom.place(ITSELF, src[kept])], [atom.place(ITSELF, dst[kept])]
    kinds = [kind[kept]]
    for one in atom.waits:
        sources.append(atom.place(one.src_slot, one.src))
        targets.append(atom.place(one.dst_slot, one.dst))
        kinds.append(np.full(len(one.src), int(EdgeKind.WAIT), dtype=np.int64))
    return np.concatenate(sources), np.concatenate(targets), np.concatenate(kinds)


class _Finals:
    """Templates as they are written: a variant with what its ops wait for outside of it."""

    def __init__(self, variants: TemplateVariants) -> None:
        self._variants = variants
        self._number: dict[tuple[int, bytes], int] = {}
        self._of: list[
            tuple[int, IntArray]
        ] = []  # variant; (dst, src or -1, kind, stream code, back) in rows
        self._forwards: dict[int, set[int]] = defaultdict(set)

    def instances(
        self, atom: _Atom, ops: OpTable, crossing: tuple[IntArray, IntArray, IntArray]
    ) -> Int32Array:
        """The template of each instance of an atom."""
        src, dst, kind = crossing
        first = atom.first
        into = np.searchsorted(first, dst, side="right") - 1
        inside = src >= first[into]
        if (src >= dst).any():
            worst = int(np.flatnonzero(src >= dst)[0])
            row = self._rows(atom, first, np.array([dst[worst], src[worst]]))
            raise InputError(
                f"op {ops.name[int(row[0])]!r} would wait for {ops.name[int(row[1])]!r},"
                " which is issued after it"
            )
        code, back = np.full(len(src), -1, dtype=np.int64), np.zeros(len(src), dtype=np.int64)
        if not inside.all():
            streams = ops.stream.codes[self._rows(atom, first, np.arange(first[-1]))]
            code[~inside] = streams[src[~inside]]
            for one in np.unique(code[~inside]).tolist():
                of_stream, mine = np.flatnonzero(streams == one), np.flatnonzero(~inside & (code == one))
                begun = np.searchsorted(of_stream, first[into[mine]])
                back[mine] = begun - 1 - np.searchsorted(of_stream, src[mine])
        table = np.stack([
            into, dst - first[into], np.where(inside, src - first[into], -1), kind, code, back
        ])  # fmt: skip
        table = np.unique(table, axis=1) if len(src) else table
        bounds = np.searchsorted(table[0], np.arange(len(atom.variant) + 1))
        found = np.empty(len(atom.variant), dtype=np.int32)
        forward: dict[tuple[int, int], int] = {}
        names = self._variants.graph.template_names
        played = zip(
            atom.variant.tolist(), atom.program.microbatch.tolist(), atom.program.chunk.tolist(), strict=True
        )
        for instance, (variant, *pass_of) in enumerate(played):
            edges = np.ascontiguousarray(table[1:, bounds[instance] : bounds[instance + 1]])
            key = (variant, edges.tobytes())
            if key not in self._number:
                self._number[key] = len(self._of)
                self._of.append((variant, edges))
            number = found[instance] = self._number[key]
            if names[self._variants.layouts[variant].template].startswith("fwd"):
                forward[tuple(pass_of)] = variant
            elif tuple(pass_of) in forward:
                self._forwards[int(number)].add(forward[tuple(pass_of)])
        return found

    def _rows(self, atom: _Atom, first: IntArray, places: IntArray) -> IntArray:
        """Rows of the variants' op table that stand at flat places."""
        instance = np.searchsorted(first, places, side="right") - 1
        return self._variants.starts[atom.variant[instance]] + places - first[instance]

    def graph(self, ops: OpTable, programs: tuple[Program, ...]) -> Graph:
        """All of it as a graph."""
        variants, old = self._variants, self._variants.graph
        layouts = [variants.layouts[variant] for variant, _ in self._of]
        start = np.concatenate([[0], np.cumsum([len(one.row) for one in layouts])]).astype(np.int64)
        table = ops.take(self.rows)
        return replace(
            old,
            programs=programs,
            ops=replace(table, forward_op=self._forward_ops(table.forward_op, start)),
            edges=self._edges(layouts, start, ops.stream.values),
            frees=self._frees(layouts, start),
            template_start=start,
            template_names=tuple(old.template_names[one.template] for one in layouts),
        )

    @property
    def rows(self) -> IntArray:
        """Rows of the variants' op table, as templates have them."""
        starts = self._variants.starts
        return np.concatenate([NONE, *(np.arange(starts[one], starts[one + 1]) for one, _ in self._of)])

    def _relative(self, number: int, position: int) -> int:
        """New place of an op of the forward template, by its old one; -1 where forwards differ in it."""
        found = set()
        for variant in self._forwards.get(number, ()):
            now = self._variants.layouts[variant].position[ITSELF]
            if position >= len(now):
                return -1
            found.add(int(now[position]))
        return found.pop() if len(found) == 1 else -1

    def _forward_ops(self, column: IntArray, start: IntArray) -> IntArray:
        column = column.copy()
        named = np.flatnonzero(column >= 0)
        memo: dict[tuple[int, int], int] = {}
        owner = np.searchsorted(start, named, side="right") - 1
        for row, number in zip(named.tolist(), owner.tolist(), strict=True):
            key = (number, int(column[row]))
            if key not in memo:
                memo[key] = self._relative(*key)
            column[row] = memo[key]
        return column

    def _edges(self, layouts: Sequence[Layout], start: IntArray, streams: tuple[str, ...]) -> EdgeTable:
        """Edges inside a template as they were, without dropped waits, and those from outside or added."""
        old, changes = self._variants.graph, self._variants.changes
        edges = old.edges
        inner = np.flatnonzero(edges.src >= 0)
        bounds = np.searchsorted(edges.dst[inner], old.template_start)
        parts = [np.zeros((5, 0), dtype=np.int64)]
        for number, one in enumerate(layouts):
            mine = inner[bounds[one.template] : bounds[one.template + 1]]
            dst = edges.dst[mine] - old.template_start[one.template]
            kept = np.ones(len(mine), dtype=np.bool_)
            for which, mask in one.masks.items():
                if changes[which].how == "unwait":
                    kept &= ~(mask[dst] & (edges.kind[mine] == EdgeKind.WAIT))
            mine, dst = mine[kept], dst[kept]
            src = edges.src[mine] - old.template_start[one.template]
            now, first = one.position[ITSELF], int(start[number])
            none = np.full(len(mine), -1, dtype=np.int64)
            kind = edges.kind[mine]
            parts.append(np.stack([first + now[dst], first + now[src], kind, none, np.zeros_like(none)]))
            reaching = self._of[number][1].copy()
            reaching[0] += first
            reaching[1] = np.where(reaching[1] >= 0, reaching[1] + first, -1)
            parts.append(reaching)
        table = np.unique(np.concatenate(parts, axis=1), axis=1)
        names = [streams[code] if code >= 0 else "" for code in table[3].tolist()]
        dst, src, kind, _, back = (np.ascontiguousarray(column) for column in table)
        return EdgeTable(dst, src, kind, Strings.encode(names), back)

    def _frees(self, layouts: Sequence[Layout], start: IntArray) -> FreeTable:
        old = self._variants.graph
        frees = old.frees
        of_template: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for row in zip(*(getattr(frees, one.name).tolist() for one in fields(frees)), strict=True):
            of_template[row[0]].append(row)
        rows: list[tuple[int, ...]] = []
        for number, one in enumerate(layouts):
            was, now, first = int(old.template_start[one.template]), one.position[ITSELF], int(start[number])
            for _, after, num_bytes, owner, scope in of_template[one.template]:
                after = first + int(now[after - was]) if after >= 0 else -1
                if owner >= 0 and scope == 0:
                    owner = first + int(now[owner - was])
                elif owner >= 0 and scope == RELATIVE_OWNER:
                    owner = self._relative(number, owner)
                    scope = RELATIVE_OWNER if owner >= 0 else NO_OWNER
                rows.append((number, after, num_bytes, owner, scope))
        columns = np.array(sorted(rows), dtype=np.int64).reshape(-1, 5).T
        return FreeTable(*(np.ascontiguousarray(column) for column in columns))
