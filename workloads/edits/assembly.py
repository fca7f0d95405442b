"""New templates from ops of old ones: rows picked, columns changed, edges carried over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from simcore.graph import EdgeKind, EdgeTable, FreeTable, Graph, OpTable, Program, Strings, Workload
from simcore.graph.graph import MemoryProfile
from simcore.graph.groups import ProcessGroup
from simcore.graph.ops import IntArray

Patch = Mapping[str, str | int]


@dataclass(frozen=True)
class Piece:
    """An op of the old graph in a new template, some columns changed.

    ``waits`` are extra sources of WAIT edges: positions in the template, or stream names for the latest op
    there before the template.
    """

    row: int
    patch: tuple[tuple[str, str | int], ...] = ()
    waits: tuple[int | str, ...] = ()


@dataclass
class Assembly:
    """Templates and programs of a graph that is made from another's ops.

    Storage lifetimes do not survive: programs are given what they hold.
    """

    graph: Graph
    names: list[str] = field(default_factory=list)
    templates: list[tuple[Piece, ...]] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    _known: dict[tuple[str, tuple[Piece, ...]], int] = field(default_factory=dict)

    def template(self, name: str, pieces: Iterable[Piece]) -> int:
        """The number of a template; equal ones are one."""
        key = (name, tuple(pieces))
        if key not in self._known:
            self._known[key] = len(self.templates)
            self.templates.append(key[1])
            self.names.append(name)
        return self._known[key]

    def program(
        self, like: Program, ranks: Sequence[tuple[int, int, int]], stage: int,
        played: Sequence[tuple[int, int, int]], layer_offset: tuple[int, ...], memory: MemoryProfile,
    ) -> None:  # fmt: skip
        """``ranks`` play templates: (template, microbatch, chunk)."""
        columns = np.array(played, dtype=np.int32).reshape(-1, 3).T.copy()
        self.programs.append(
            replace(
                like, name=f"stage{stage}.{like.name.rpartition('.')[2]}", ranks=tuple(ranks), stage=stage,
                template=columns[0], microbatch=columns[1], chunk=columns[2], layer_offset=layer_offset,
                memory=memory,
            )
        )  # fmt: skip

    def build(self, workload: Workload, groups: dict[str, ProcessGroup]) -> Graph:
        """The new graph."""
        rows = np.array([piece.row for one in self.templates for piece in one], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum([len(one) for one in self.templates])]).astype(np.int64)
        pieces = [piece for one in self.templates for piece in one]
        patches: dict[str, dict[int, str | int]] = {}
        for at, piece in enumerate(pieces):
            for column, value in piece.patch:
                patches.setdefault(column, {})[at] = value
        ops = self.graph.ops.take(rows)
        columns = {name: _patched(getattr(ops, name), changes) for name, changes in patches.items()}
        columns["alloc_bytes"] = np.zeros(len(rows), dtype=np.int64)
        columns["forward_op"] = np.full(len(rows), -1, dtype=np.int64)
        ops = replace(ops, **columns)  # type: ignore[arg-type]
        none = np.zeros(0, dtype=np.int64)
        return Graph(
            workload, groups, tuple(self.programs), ops, self._edges(starts),
            FreeTable(none, none, none, none, none), starts, tuple(self.names),
        )  # fmt: skip

    def _edges(self, starts: IntArray) -> EdgeTable:
        """Old edges wherever both ends stand in one template, and the pieces' own waits."""
        edges = self.graph.edges
        into: dict[int, list[int]] = {}
        for number, row in enumerate(edges.dst.tolist()):
            into.setdefault(row, []).append(number)
        found: list[tuple[int, int, int, str, int]] = []
        for start, template in zip(starts.tolist(), self.templates, strict=False):
            # The latest piece of each old row, as the template is read: layers repeat.
            latest: dict[int, int] = {}
            for place, piece in enumerate(template):
                for number in into.get(piece.row, ()):
                    source = int(edges.src[number])
                    kind = int(edges.kind[number])
                    if source in latest:
                        found.append((start + place, start + latest[source], kind, "", 0))
                    elif source < 0 and kind == EdgeKind.WAIT:
                        stream = edges.ext_stream[number]
                        found.append((start + place, -1, kind, stream, int(edges.ext_back[number])))
                for wait in piece.waits:
                    inside = isinstance(wait, int)
                    found.append(
                        (start + place, start + wait if isinstance(wait, int) else -1, int(EdgeKind.WAIT),
                         "" if inside else str(wait), 0)
                    )  # fmt: skip
                latest[piece.row] = place
        found = sorted(set(found))
        ints = np.array([(d, s, k, b) for d, s, k, _, b in found], dtype=np.int64).reshape(-1, 4).T
        dst, src, kinds, back = (np.ascontiguousarray(column) for column in ints)
        return EdgeTable(dst, src, kinds, Strings.encode([one[3] for one in found]), back)


def _patched(column: Strings | IntArray, changes: Mapping[int, str | int]) -> Strings | IntArray:
    if isinstance(column, Strings):
        index = {value: code for code, value in enumerate(column.values)}
        codes = column.codes.copy()
        for row, value in changes.items():
            codes[row] = index.setdefault(str(value), len(index))
        return Strings(codes, tuple(index))
    changed = column.copy()
    changed[list(changes)] = [int(value) for value in changes.values()]
    return changed


def patched_ops(ops: OpTable, patches: Mapping[str, Mapping[int, str | int]]) -> OpTable:
    """``ops`` with single values changed: column -> row -> value."""
    assert set(patches) <= {spec.name for spec in fields(OpTable)}
    return replace(ops, **{n: _patched(getattr(ops, n), c) for n, c in patches.items()})  # type: ignore[arg-type]
