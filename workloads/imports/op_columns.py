"""A graph written as columns from the start; op by op, for formats that are read one op at a time.

There only values other than the default are kept, as row and value; a template per rank.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar, cast

import numpy as np

from simcore.graph import Graph, OpTable, ProcessGroup, Program, Workload
from simcore.graph.graph import MemoryProfile
from simcore.graph.layout import rank_ranges
from simcore.graph.ops import OP_COLUMNS, EdgeKind, EdgeTable, FreeTable, IntArray, OpKind, Strings

_TEXTS = frozenset(name for name, (what, _) in OP_COLUMNS.items() if what == "str")
_KIND = "kind"
_Key = TypeVar("_Key")


def codes_of(keys: Sequence[_Key], known: dict[_Key, int]) -> list[int]:
    """The number of each of ``keys`` in ``known``, where those that it lacks are added in their order."""
    found = list(map(known.get, keys))
    if None in found:
        for key in keys:
            known.setdefault(key, len(known))
        return [known[key] for key in keys]
    return cast("list[int]", found)


class Names:
    """Strings numbered in order of appearance."""

    def __init__(self) -> None:
        self._code: dict[str, int] = {}

    def code(self, name: str) -> int:
        """The number of ``name``."""
        return self._code.setdefault(name, len(self._code))

    def codes(self, names: Sequence[str]) -> list[int]:
        """The number of each of ``names``."""
        return codes_of(names, self._code)

    def values(self) -> tuple[str, ...]:
        """All strings, by number."""
        return tuple(self._code)

    def joined(self, other: Names) -> IntArray:
        """By number in ``other``: the number here, where what is lacking is added."""
        return np.array(self.codes(other.values()), dtype=np.int64)


def columns_of(values: array[int], width: int) -> IntArray:
    """Numbers that were appended ``width`` at a time, as columns."""
    return np.ascontiguousarray(np.frombuffer(values, dtype=np.int64).reshape(-1, width).T)


def append_renumbered(
    values: array[int], more: array[int], width: int, numbers: Mapping[int, IntArray]
) -> None:
    """Append rows of ``more``, where what stands in some columns has other ``numbers`` here."""
    columns = columns_of(more, width)
    for column, number in numbers.items():
        columns[column] = number[columns[column]]
    values.frombytes(columns.T.tobytes())


class Columns:
    """Numbers in ``width`` columns, of which many rows are added at once."""

    def __init__(self, width: int) -> None:
        self._parts = [np.zeros((width, 0), dtype=np.int64)]

    def add(self, columns: Sequence[Sequence[int] | IntArray]) -> None:
        """Add rows that are given as columns."""
        self._parts.append(np.array(columns, dtype=np.int64))

    def append(self, other: Columns, numbers: Mapping[int, IntArray]) -> None:
        """Add all rows of ``other``, where what stands in some columns has other ``numbers`` here.  Uses it
        up.
        """
        for part in other._parts:
            for column, number in numbers.items():
                part[column] = number[part[column]]
        self._parts += other._parts

    def joined(self) -> IntArray:
        """The columns."""
        return np.concatenate(self._parts, axis=1)


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

    def graph(self, frame: Graph, ranks: Sequence[Sequence[int]] | None = None) -> Graph:
        """``frame`` (its workload and groups) with these ops; ``ranks`` play each template, by default that
        of its number.
        """
        table: dict[str, Strings | IntArray] = {}
        copies, originals = columns_of(self._copies, 2)
        for name, (what, default) in OP_COLUMNS.items():
            (rows,), (values,) = columns_of(self._rows.pop(name), 1), columns_of(self._values.pop(name), 1)
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
        return rank_templates(
            frame.workload, frame.groups, table, columns_of(self._edges, 3), [*self._starts, self.count],
            self._templates, self._templates, ranks,
        )  # fmt: skip


def rank_templates(
    workload: Workload,
    groups: Mapping[str, ProcessGroup],
    table: dict[str, Strings | IntArray],
    edges: IntArray,
    starts: Sequence[int],
    templates: Sequence[str],
    programs: Sequence[str],
    ranks: Sequence[Sequence[int]] | None = None,
) -> Graph:
    """The graph of a template and a program per rank, by their names; or per each of ``ranks``.

    ``table`` are all columns of :class:`OpTable`, ``edges`` has the rows target, source and kind; template
    ``i`` is the ops from ``starts[i]`` to ``starts[i + 1]``.
    """
    dst, src, kind = edges
    order = np.lexsort((kind, src, dst))
    zero, none = np.zeros(len(order), dtype=np.int64), np.zeros(0, dtype=np.int64)
    return Graph(
        workload,
        dict(groups),
        tuple(
            Program(
                name, rank_ranges([index] if ranks is None else ranks[index]), 0,
                np.array([index], dtype=np.int32), np.array([-1], dtype=np.int32),
                np.array([0], dtype=np.int32), memory=MemoryProfile(),
            )
            for index, name in enumerate(programs)
        ),
        OpTable(**table),  # type: ignore[arg-type]
        EdgeTable(dst[order], src[order], kind[order], Strings(zero.astype(np.int32), ("",)), zero),
        FreeTable(none, none, none, none, none),
        np.array(starts, dtype=np.int64),
        tuple(templates),
    )  # fmt: skip
