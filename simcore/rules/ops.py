"""Ops that a rule is about: chosen from a graph, and what the rule says of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from simcore.collectives.kinds import collective_named
from simcore.errors import InputError, nearest
from simcore.graph import Graph, OpKind
from simcore.graph.kinds import KIND_NAMES
from simcore.graph.ops import OP_COLUMNS
from simcore.graph.passes.variants import ITSELF, Value
from simcore.records import dataclass
from simcore.units import PS_PER_US

if TYPE_CHECKING:
    from simcore.rules.view import RuleGraph

BoolArray = npt.NDArray[np.bool_]
Number = float | int
_LONGEST_US = 1e9
#: What an op is that takes no time and launches nothing: what ordered it orders still.
POINT: Mapping[str, Value] = {
    "kind": int(OpKind.EVENT_WAIT), "recorded_ps": 0, "flops": 0, "bytes_read": 0, "bytes_written": 0,
    "blocking": 0, "batch": -1, "collective": "", "group": "", "num_bytes": 0, "peer_delta": 0,
}  # fmt: skip
#: Columns that a rule may not set: what they say follows from the graph.
_FIXED = ("forward_op", "recorded_ps")


@dataclass(frozen=True)
class OpRow:
    """A row of the graph, as a rule's functions see it: every column by name, as ``op.num_bytes``."""

    graph: Graph
    row: int

    def __getattr__(self, name: str) -> Any:
        if name not in OP_COLUMNS:
            raise AttributeError(f"an op has no {name!r}{nearest(name, OP_COLUMNS)}")
        value = getattr(self.graph.ops, name)[self.row]
        return value if isinstance(value, str) else int(value)

    @property
    def inputs(self) -> list[list[int]]:
        """Shapes of what it reads, in the order of its arguments."""
        return json.loads(self.in_shapes) if self.in_shapes else []

    @property
    def outputs(self) -> list[list[int]]:
        """Shapes of what it writes."""
        return json.loads(self.out_shapes) if self.out_shapes else []


@dataclass(frozen=True)
class Ops:
    """Ops of a graph: ``where``, a mask over the step of each program, on ``ranks`` (None: all that run it).

    ``slot``: 0 for ops of the graph, else what the rule has put in beside them.  ``said``: how they were
    chosen, ``missing``: why there are none.  ``a | b``, ``a & b`` and ``a - b`` are those of either, of both,
    and of the first alone.
    """

    graph: RuleGraph
    where: tuple[BoolArray, ...]
    said: str
    missing: str = ""
    ranks: frozenset[int] | None = None
    slot: int = ITSELF

    # -- choosing ---------------------------------------------------------------------------------

    def __or__(self, other: Ops) -> Ops:
        return self._with(other, np.logical_or, "or")

    def __and__(self, other: Ops) -> Ops:
        return self._with(other, np.logical_and, "and")

    def __sub__(self, other: Ops) -> Ops:
        return self._with(other, lambda a, b: a & ~b, "but not")

    def _with(self, other: Ops, joined: Callable[[BoolArray, BoolArray], BoolArray], word: str) -> Ops:
        if self.graph is not other.graph or self.ranks != other.ranks or self.slot or other.slot:
            raise InputError(f"{self.said} and {other.said} are not of the same ranks of one graph")
        where = tuple(joined(a, b) for a, b in zip(self.where, other.where, strict=True))
        said = f"{self.said} {word} {other.said}"
        return replace(self, where=where, said=said, missing=self.missing or other.missing or "none is left")

    def nth(self, *numbers: int, of: str = "step") -> Ops:
        """Those at a position, -1 for the last: counted in each "step" of a rank, "microbatch", "pass" (a
        template's instance) or "layer" of a pass.
        """
        steps, where = self.graph.steps, []
        if of not in _KEYS:
            raise InputError(f"nth(of={of!r}){nearest(of, _KEYS)}")
        for program, mask in enumerate(self.where):
            at = np.flatnonzero(mask)
            key = steps.keys(program, at, _KEYS[of])
            found = np.zeros(len(mask), dtype=np.bool_)
            order = np.lexsort((at, key))
            first = np.flatnonzero(np.diff(key[order], prepend=-1))
            counts = np.diff(np.append(first, len(order)))
            for number in numbers:
                place = number if number >= 0 else counts + number
                fits = (place >= 0) & (place < counts)
                found[at[order[(first + place)[fits]]]] = True
            where.append(found)
        shown = ", ".join(map(str, numbers))
        return replace(
            self, where=tuple(where), said=f"number {shown} of each {of} of {self.said}",
            missing=self.missing or f"there are not so many in a {of}",
        )  # fmt: skip

    def shifted(self, steps: int) -> Ops:
        """What is issued so many ops later on the same stream (earlier: negative), where there is any."""
        where = []
        for program, mask in enumerate(self.where):
            order = self.graph.steps.stream_order(program)
            place = order.position[np.flatnonzero(mask)]
            fits = (place + steps >= 0) & (place + steps < len(mask))
            target = order.flat[place[fits] + steps]
            source = order.flat[place[fits]]
            streams = self.graph.steps.streams(program)
            found = np.zeros(len(mask), dtype=np.bool_)
            found[target[streams[target] == streams[source]]] = True
            where.append(found)
        side = "after" if steps > 0 else "before"
        return replace(
            self, where=tuple(where), said=f"what is {abs(steps)} {side} {self.said}",
            missing=self.missing or f"nothing is issued {side} them",
        )  # fmt: skip

    # -- saying -----------------------------------------------------------------------------------

    def replace(self, **columns: Value | Callable[[OpRow], Any]) -> None:
        """Another kernel in their place: values of columns of the op table (``name``, ``op_class``,
        ``bytes_read``, ``collective``, ...), or functions of an :class:`OpRow`; it is priced by them.

        InputError for an unknown column, group or collective.
        """
        self.own("replace")
        self.graph.change(self, "set", self._columns(columns), f"replaced ({', '.join(columns)})")

    def takes(self, us: Number | Callable[[OpRow], Number]) -> None:
        """So many microseconds, whatever the price; communication from its last rank's arrival on."""
        self.own("takes")
        graph = self.graph.graph

        def ps(row: int) -> int:
            return picoseconds(us(OpRow(graph, row)) if callable(us) else us, "takes")

        ps(int(self.rows()[0]))
        shown = "times of a function" if callable(us) else f"{us:g} us each"
        self.graph.change(self, "set", {"recorded_ps": ps}, f"take {shown}")

    def faster(self, times: float) -> None:
        """Kernels and copies in so many times less than they are priced at (below 1: slower)."""
        self.own("faster")
        if not _is_number(times) or not 1e-4 <= times <= 1e6:
            raise InputError(f"faster({times!r}): times are 0.0001 to 1,000,000")
        alone = self.graph.alone_ps(self)
        values = {"recorded_ps": lambda row: round(int(alone[row]) / times)}
        self.graph.change(self, "set", values, f"{times:g} times as fast")

    def delay(self, us: Number, *, on: str = "stream") -> None:
        """Their stream stands idle for so long before each ("stream"), or the host before it launches it."""
        self.own("delay")
        if on not in ("stream", "host"):
            raise InputError(f"delay(on={on!r}){nearest(on, ('stream', 'host'))}")
        at_host = on == "host"
        stream = self.graph.graph.ops.stream
        columns: dict[str, Value] = {
            "name": "delay", "recorded_ps": picoseconds(us, "delay"),
            "kind": int(OpKind.HOST if at_host else OpKind.EVENT_WAIT),
            "stream": "host" if at_host else lambda row: stream[row],
        }  # fmt: skip
        self.graph.change(self, "before", columns, f"{us:g} us later on their {on}")

    def remove(self) -> None:
        """They take no time and launch nothing; what waited for them waits for what they waited for."""
        self.own("remove")
        self.graph.change(self, "set", POINT, "removed")

    def forget_waits(self) -> None:
        """They wait for nothing but what is before them on their stream."""
        self.own("forget_waits")
        self.graph.change(self, "unwait", {}, "wait for their stream alone")

    def fuse(self, name: str, **columns: Any) -> None:
        """Those that follow each other on a stream become one kernel that reads and writes what crosses its
        border, with the flops of all; ``columns`` as :meth:`replace` (not functions), such as ``op_class``.
        """
        self.own("fuse")
        self.graph.fuse(self, {"name": name, **self._columns(columns)})

    def insert_before(self, name: str, **said: Any) -> Ops:
        """As :meth:`insert_after`, in front of them; waits for nothing."""
        return self.graph.insert(self, "before", name, said)

    def insert_after(self, name: str, **said: Any) -> Ops:
        """An op of one's own issued after each of them, which waits for it; gives what was put in.

        ``stream``: its own (default: theirs).  ``kind``: "compute" unless said.  ``us``: what it takes;
        or ``op_class``, ``flops``, ``bytes_read``, ``bytes_written`` and other columns, which price it;
        each a value or a function of the :class:`OpRow` that it is put beside.  ``waits=False``: none.
        InputError where nothing says what it costs.
        """
        return self.graph.insert(self, "after", name, said)

    def wait_for(
        self,
        other: Ops,
        *,
        same: Sequence[str] = (),
        across: tuple[str, int] | None = None,
        us: float | None = None,
    ) -> None:
        """Each starts after the latest of ``other`` that was issued before it, on every stream that has one.

        ``same``: of those with the same "microbatch", "chunk", "layer" or "module".
        ``across``: ("pp", -1) for ops of the rank before it in its group: the n-th waits for the n-th there,
        for a flag that comes over the network; ``us``: in so long (None: a hop of the cluster).
        InputError where none has any to wait for.
        """
        self.graph.wait(self, other, tuple(same), across, us)

    # -- looking ----------------------------------------------------------------------------------

    def rows(self) -> npt.NDArray[np.int64]:
        """Rows of the op table, ascending.  InputError where there are none."""
        graph = self.graph
        found = [graph.steps.flat(program).row[mask] for program, mask in enumerate(self.where)]
        rows = np.unique(np.concatenate(found)).astype(np.int64)
        if not len(rows):
            raise InputError(f"matches nothing: {self.said}; {self.missing}")
        return rows

    def __iter__(self) -> Iterator[OpRow]:
        return iter([OpRow(self.graph.graph, row) for row in self.rows().tolist()])

    def __len__(self) -> int:
        """Op executions of a step, over all ranks."""
        return self.graph.executions(self)

    def __bool__(self) -> bool:
        return any(bool(mask.any()) for mask in self.where)

    def own(self, what: str) -> None:
        """InputError where they are not ops of the graph, or none."""
        if self.slot:
            raise InputError(f"{what}: {self.said} was put in by this rule; say so where it is put in")
        self.rows()

    def _columns(self, columns: dict[str, Any]) -> dict[str, Value]:
        return checked_columns(self.graph.graph, columns)


#: What is counted apart, by the word for it.
_KEYS = {
    "step": (), "pass": ("instance",), "layer": ("instance", "layer"), "microbatch": ("microbatch",),
}  # fmt: skip


def checked_columns(graph: Graph, columns: dict[str, Any]) -> dict[str, Value]:
    """Columns as they are written.  InputError for one that is unknown or of a wrong type."""
    done: dict[str, Value] = {}
    for name, value in columns.items():
        if name not in OP_COLUMNS or name in _FIXED:
            known = [one for one in OP_COLUMNS if one not in _FIXED]
            hint = (
                "; how long they take is said by takes()" if name == "recorded_ps" else nearest(name, known)
            )
            raise InputError(f"ops have no column {name!r}{hint}")
        if callable(value):
            done[name] = _of_op(graph, name, value)
        else:
            done[name] = _one(graph, name, value)
    return done


def _of_op(graph: Graph, name: str, function: Callable[[OpRow], Any]) -> Callable[[int], str | int]:
    return lambda row: _one(graph, name, function(OpRow(graph, row)))


def _one(graph: Graph, name: str, value: Any) -> str | int:
    if name == "kind":
        if value not in KIND_NAMES:
            raise InputError(f"kind: unknown {value!r}{nearest(str(value), KIND_NAMES)}")
        return KIND_NAMES.index(value)
    if OP_COLUMNS[name][0] == "str":
        if not isinstance(value, str):
            raise InputError(f"{name} is text, not {value!r}")
        if name == "group" and value and value not in graph.groups:
            raise InputError(f"group: unknown {value!r}{nearest(value, graph.groups)}")
        if name == "collective" and value:
            collective_named(value)
        return value
    if not _is_number(value) or not math.isfinite(value):
        raise InputError(f"{name} is a number, not {value!r}")
    if abs(value) >= 1 << 62:
        raise InputError(f"{name}: {value:g} is more than any hardware does")
    return round(value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def picoseconds(us: Any, what: str) -> int:
    """A time in microseconds as a rule gives it.  InputError for one that cannot be."""
    if not _is_number(us) or not 0 <= us <= _LONGEST_US:
        raise InputError(f"{what}: {us!r} is no time of 0 to {_LONGEST_US:,.0f} us")
    return round(us * PS_PER_US)
