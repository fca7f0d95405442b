"""Templates as changes leave them: ops in order, with what is put in between, and their columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from simcore.graph.graph import FlatOps, Graph
from simcore.graph.ops import OP_COLUMNS, IntArray, OpTable, Strings
from simcore.records import dataclass

BoolArray = npt.NDArray[np.bool_]
#: A column's value, or what it is of an op, by its row.
Value = str | int | Callable[[int], str | int]
#: What an op that is put in has of the one that it is put beside.
_INHERITED: Final = ("phase", "layer", "module", "dtype")
#: Slot of an op that was there; what change number ``k`` puts in has slot ``k + 1``.
ITSELF: Final = 0
NONE: Final = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Change:
    """Of the ops ``where`` (a mask over the flat ops of each program) on ``ranks`` (None: all of them).

    ``how``: "set": other ``columns``; "before", "after": an op of these columns is put in there;
    "unwait": they no longer wait for others; "mark": nothing, but it is told which they are afterwards.
    """

    how: Literal["set", "before", "after", "unwait", "mark"]
    where: tuple[BoolArray, ...]
    ranks: frozenset[int] | None = None
    columns: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Ops of a variant in order: ``row`` of the op, or of that beside which it was put in by ``slot`` - 1.

    ``position[slot]`` is where the template's ops are now, or what was put in beside them (-1: nothing).
    """

    template: int
    masks: Mapping[int, BoolArray]
    row: IntArray
    slot: IntArray
    position: Mapping[int, IntArray]


class TemplateVariants:
    """Templates as changed, a layout each, numbered in the order in which they are found."""

    def __init__(self, graph: Graph, changes: Sequence[Change]) -> None:
        self.graph = graph
        self.changes = changes
        self.layouts: list[Layout] = []
        self._number: dict[tuple[int, tuple[tuple[int, bytes], ...]], int] = {}

    def of_instances(self, program: int, flat: FlatOps, active: tuple[bool, ...]) -> IntArray:
        """The variant of each instance of a program."""
        touched: dict[int, list[int]] = defaultdict(list)
        for number, change in enumerate(self.changes):
            if active[number] and change.where[program].any():
                for instance in np.unique(flat.instance[change.where[program]]).tolist():
                    touched[instance].append(number)
        found = np.empty(len(flat.program.template), dtype=np.int64)
        for instance, template in enumerate(flat.program.template.tolist()):
            span = slice(int(flat.first[instance]), int(flat.first[instance + 1]))
            masks = {
                number: self.changes[number].where[program][span] for number in touched.get(instance, ())
            }
            key = (template, tuple((number, mask.tobytes()) for number, mask in masks.items()))
            if key not in self._number:
                self._number[key] = len(self.layouts)
                self.layouts.append(self._laid_out(template, masks))
            found[instance] = self._number[key]
        return found

    def _laid_out(self, template: int, masks: Mapping[int, BoolArray]) -> Layout:
        start, stop = self.graph.template_start[template : template + 2].tolist()
        own = np.arange(stop - start)
        parts = [np.stack([own, np.ones_like(own), np.zeros_like(own)])]
        for number, mask in masks.items():
            if (how := self.changes[number].how) in ("before", "after"):
                at = np.flatnonzero(mask)
                side = 0 if how == "before" else 2
                parts.append(np.stack([at, np.full_like(at, side), np.full_like(at, number + 1)]))
        local, side, slot = np.concatenate(parts, axis=1)
        order = np.lexsort((slot, side, local))
        local, slot = local[order], slot[order]
        position = {}
        for one in np.unique(slot).tolist():
            position[one] = np.full(len(own), -1, dtype=np.int64)
            position[one][local[slot == one]] = np.flatnonzero(slot == one)
        return Layout(template, masks, start + local, slot, {ITSELF: own, **position})

    @property
    def starts(self) -> IntArray:
        """First op of each variant where they follow each other."""
        return np.concatenate([[0], np.cumsum([len(one.row) for one in self.layouts])]).astype(np.int64)

    def op_table(self) -> OpTable:
        """Ops of all variants, one after the other, with what changes set."""
        row = np.concatenate([NONE, *(one.row for one in self.layouts)])
        slot = np.concatenate([NONE, *(one.slot for one in self.layouts)])
        table = self.graph.ops.take(row)
        columns = {spec.name: _Column.of(getattr(table, spec.name)) for spec in fields(OpTable)}
        fresh = np.flatnonzero(slot != ITSELF)
        for name, column in columns.items():
            if name not in _INHERITED:
                column.fill(fresh, OP_COLUMNS[name][1])
        for number, change in enumerate(self.changes):
            if change.how in ("before", "after"):
                at = np.flatnonzero(slot == number + 1)
            elif change.how == "set":
                at = np.flatnonzero(self.marked(number))
            else:
                continue
            for name, value in change.columns.items():
                columns[name].put(at, row[at], value)
        return OpTable(**{name: column.done() for name, column in columns.items()})  # type: ignore[arg-type]

    def marked(self, number: int) -> BoolArray:
        """By row of :meth:`op_table`, whether a change is about that op."""
        starts = self.starts
        found = np.zeros(int(starts[-1]), dtype=np.bool_)
        for which, one in enumerate(self.layouts):
            if number in one.masks:
                found[starts[which] + one.position[ITSELF][one.masks[number]]] = True
        return found


class _Column:
    """A column that can be written."""

    def __init__(self, values: IntArray, index: dict[str, int] | None) -> None:
        self._values, self._index = values, index

    @classmethod
    def of(cls, column: Strings | IntArray) -> _Column:
        if isinstance(column, Strings):
            return cls(column.codes.copy(), {value: code for code, value in enumerate(column.values)})  # type: ignore[arg-type]
        return cls(column.copy(), None)

    def fill(self, at: IntArray, value: object) -> None:
        """One value everywhere."""
        if len(at):
            self._values[at] = self._coded(value)

    def put(self, at: IntArray, rows: IntArray, value: Value) -> None:
        """A value, or what it is of each of ``rows``."""
        if not callable(value):
            self.fill(at, value)
            return
        distinct, which = np.unique(rows, return_inverse=True)
        coded = np.array([self._coded(value(row)) for row in distinct.tolist()], dtype=np.int64)
        self._values[at] = coded[which]

    def _coded(self, value: object) -> int:
        if self._index is None:
            return int(value)  # type: ignore[call-overload,no-any-return]
        return self._index.setdefault(str(value), len(self._index))

    def done(self) -> Strings | IntArray:
        """As a table has it."""
        return (
            self._values
            if self._index is None
            else Strings(self._values.astype(np.int32), tuple(self._index))
        )
