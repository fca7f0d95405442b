"""A graph written op by op, as columns from the start: for formats that are read one op at a time.

Only values other than the default are kept, as row and value; a template per rank.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from simcore.graph import Graph, OpTable, Program
from simcore.graph.graph import MemoryProfile
from simcore.graph.ops import OP_COLUMNS, EdgeKind, EdgeTable, IntArray, OpKind, Strings
from workloads.imports.recording import Names

_TEXTS = frozenset(name for name, (what, _) in OP_COLUMNS.items() if what == "str")
_KIND = "kind"


class OpColumns:
    """Collects ops and edges; rows count over all templates."""

    def __init__(self) -> None:
        self.count = 0
        self._rows: dict[str, array[int]] = {name: array("q") for name in OP_COLUMNS}
        self._values: dict[str, array[int]] = {name: array("q") for name in OP_COLUMNS}
        self._names = {name: Names() for name in _TEXTS}
        self._edges: array[int] = array("q")
        self._copies: array[int] = array("q")  # row, and the row that it is like
        self._starts: list[int] = []
        self._templates: list[str] = []
        for name in _TEXTS:
            self._names[name].code(str(OP_COLUMNS[name][1]))

    def template(self, name: str) -> None:
        """Begin a template; each is one rank's program."""
        self._starts.append(self.count)
        self._templates.append(name)

    def op(self, kind: OpKind, columns: Mapping[str, object]) -> int:
        """An op; values are of the columns' types.  Returns its row."""
        row = self.count
        self.count += 1
        self._rows[_KIND].append(row)
        self._values[_KIND].append(kind)
        for name, value in columns.items():
            self._rows[name].append(row)
            self._values[name].append(self._names[name].code(value) if name in _TEXTS else value)  # type: ignore[arg-type]
        return row

    def again(self, row: int) -> int:
        """An op with all columns of the one at ``row``.  Returns its own row."""
        self._copies.extend((self.count, row))
        self.count += 1
        return self.count - 1

    def edges(self, row: int, kind: EdgeKind, sources: Iterable[int]) -> None:
        """Edges from rows of the same template."""
        for source in sources:
            self._edges.extend((row, source, kind))

    def graph(self, frame: Graph) -> Graph:
        """``frame`` (its workload and groups) with these ops, rank ``i`` playing template ``i``."""
        table: dict[str, Strings | IntArray] = {}
        copies, originals = np.frombuffer(self._copies, dtype=np.int64).reshape(-1, 2).T
        for name, (what, default) in OP_COLUMNS.items():
            rows = np.frombuffer(self._rows.pop(name), dtype=np.int64)
            values = np.frombuffer(self._values.pop(name), dtype=np.int64)
            if what == "str":
                codes = np.zeros(self.count, dtype=np.int32)
                codes[rows] = values
                codes[copies] = codes[originals]
                table[name] = Strings(codes, self._names[name].values())
            else:
                column = np.full(self.count, default, dtype=np.int64)
                column[rows] = values
                column[copies] = column[originals]
                table[name] = column
        dst, src, kind = np.frombuffer(self._edges, dtype=np.int64).reshape(-1, 3).T
        order = np.lexsort((kind, src, dst))
        zero = np.zeros(len(order), dtype=np.int64)
        edges = EdgeTable(dst[order], src[order], kind[order], Strings(zero.astype(np.int32), ("",)), zero)
        programs = tuple(
            Program(
                name, ((index, index + 1, 1),), 0, np.array([index], dtype=np.int32),
                np.array([-1], dtype=np.int32), np.array([0], dtype=np.int32), memory=MemoryProfile(),
            )
            for index, name in enumerate(self._templates)
        )  # fmt: skip
        return replace(
            frame, programs=programs, ops=OpTable(**table), edges=edges,  # type: ignore[arg-type]
            template_start=np.array([*self._starts, self.count], dtype=np.int64),
            template_names=tuple(self._templates),
        )  # fmt: skip
