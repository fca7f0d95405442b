"""A graph as a rule looks at it, and what the rule says of it, kept until the rule is through."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simcore.collectives.kinds import COLLECTIVES, collective_named
from simcore.cost import RooflineCost
from simcore.errors import InputError, nearest
from simcore.graph import Graph, OpKind, ProcessGroup
from simcore.graph.kinds import is_communication, is_priced
from simcore.graph.passes.reissue import AddedWaits
from simcore.graph.passes.variants import Change, Value
from simcore.records import dataclass
from simcore.rules.declared import point_to_point
from simcore.rules.ops import POINT, OpRow, Ops, checked_columns, picoseconds
from simcore.rules.steps import Narrowed, Pick, Steps, Words, picked, shown

if TYPE_CHECKING:
    from simcore.hardware import GpuSpec

IntArray = npt.NDArray[np.int64]
_SAME = ("microbatch", "chunk", "layer", "module")
#: A flag that one rank writes and another waits for: no SMs, a hop's latency.
_SIGNAL = "signal"
_WAYS = {OpKind.SEND: "out", OpKind.RECV: "in"}
_DOES = {OpKind.SEND: "send", OpKind.RECV: "receive"}


@dataclass(frozen=True)
class Matched:
    """What a rule did to which ops: as chosen, distinct ones, executions of a step, names."""

    chosen: str
    did: str
    ops: int
    executions: int
    names: tuple[str, ...]

    def __str__(self) -> str:
        more = ", ..." if len(self.names) > 3 else ""
        return (
            f"{self.chosen}: {self.ops:,} ops, {self.executions:,} executions"
            f" ({', '.join(self.names[:3])}{more}) {self.did}"
        )


class RuleGraph:
    """What a rule's function gets: ``graph`` (:class:`simcore.graph.Graph`) to see, :meth:`ops` to choose.

    Everything that is said is of the graph as the rule got it, and is done when its function returns.
    ``gpu``: what kernels are priced on, under the load of the job (None: not known).
    """

    def __init__(self, graph: Graph, gpu: GpuSpec | None = None, *, fp32_math: str = "ieee") -> None:
        self.graph = graph
        self.steps = Steps(graph)
        self.changes: list[Change] = []
        self.waits: list[AddedWaits] = []
        self.fused: dict[int, Mapping[str, Value]] = {}
        self.matched: list[Matched] = []
        self._gpu = gpu
        self._fp32_math = fp32_math

    # -- choosing ---------------------------------------------------------------------------------

    def ops(
        self,
        *,
        name: str | None = None,
        module: str | None = None,
        kind: Words | None = None,
        stream: Words | None = None,
        group: Words | None = None,
        phase: Words | None = None,
        op_class: Words | None = None,
        collective: Words | None = None,
        layer: Pick | None = None,
        microbatch: Pick | None = None,
        chunk: Pick | None = None,
        stage: Pick | None = None,
        ranks: Iterable[int] | None = None,
        where: Callable[[OpRow], bool] | None = None,
    ) -> Ops:
        """Ops of which everything said is true; of all ranks and microbatches where nothing is.

        ``name``, ``module``: regular expressions (RE2) that find something.  ``kind``: compute, collective,
        send, recv, memcpy, host, ...  ``layer``: of the whole model.  ``where``: a function of an op.
        InputError for a word that no op of the graph has.
        """
        found = Narrowed.all(self.graph)
        for column, pattern in (("name", name), ("module", module)):
            if pattern is not None:
                found.matching(column, pattern)
        for column, words in (
            ("kind", kind), ("stream", stream), ("group", group), ("phase", phase), ("op_class", op_class),
            ("collective", collective),
        ):  # fmt: skip
            if words is not None:
                found.worded(column, words)
        if where is not None:
            chosen = np.zeros(len(self.graph.ops), dtype=np.bool_)
            rows = np.flatnonzero(found.left).tolist()
            chosen[[row for row in rows if where(OpRow(self.graph, row))]] = True
            found.keep(chosen, f"where={getattr(where, '__name__', 'function')}")
        steps, work, said = self.steps, self.graph.workload, list(found.said)
        masks = [found.left[steps.flat(number).row] for number in range(len(self.graph.programs))]
        stages = [one.stage for one in self.graph.programs]
        for what, pick, values, count in (
            ("stage", stage, lambda number: np.array([stages[number]]), max(stages) + 1),
            ("microbatch", microbatch, lambda number: steps.flat(number).microbatch, work.num_microbatches),
            ("chunk", chunk, steps.chunk, max(len(one.layer_offset) for one in self.graph.programs)),
            ("layer", layer, steps.layer, steps.num_layers if layer is not None else 0),
        ):
            if pick is not None:
                said.append(f"{what} {shown(pick)}")
                masks = [mask & picked(pick, values(number), count) for number, mask in enumerate(masks)]
        on = None if ranks is None else self._ranks(ranks)
        if on is not None:
            said.append(f"{len(on)} of {self.graph.world_size} ranks")
            masks = [
                mask if on.intersection(program.rank_list()) else np.zeros_like(mask)
                for mask, program in zip(masks, self.graph.programs, strict=True)
            ]
        missing = found.missing or "none of those is there"
        return Ops(self, tuple(masks), ", ".join(said) or "all ops", missing, on)

    def _ranks(self, ranks: Iterable[int]) -> frozenset[int]:
        on = frozenset(ranks)
        if not on or min(on) < 0 or max(on) >= self.graph.world_size:
            raise InputError(f"ranks: the job has ranks 0 to {self.graph.world_size - 1}")
        return on

    # -- saying -----------------------------------------------------------------------------------

    def group(self, name: str, members: Iterable[Iterable[int]]) -> None:
        """A process group that the graph does not have yet: the ranks of each group of that name, in order.

        InputError for a name that it has, ranks in two of them, or groups of different sizes.
        """
        if name in self.graph.groups:
            raise InputError(f"the graph has a process group {name!r} already")
        explicit = tuple(tuple(one) for one in members)
        flat = [rank for one in explicit for rank in one]
        if not flat or len(set(flat)) < len(flat) or len({len(one) for one in explicit}) > 1:
            raise InputError(f"group {name!r}: ranks are in one group each, and groups are of one size")
        self._ranks(flat)
        self._add(ProcessGroup(name, ((len(explicit[0]), 1),), explicit=explicit))

    def pair(
        self,
        sends: Ops,
        receives: Ops,
        *,
        group: str,
        peer: int,
        by: str = "",
        num_bytes: int | Callable[[OpRow], int] | None = None,
        buffered: bool = False,
    ) -> None:
        """Ops of a library that this program does not know, as sends and receives: the n-th of ``sends`` on a
        rank goes to the n-th of ``receives`` on the rank ``peer`` further on in its ``group``.

        ``by``: how it is carried out, a name of :func:`point_to_point` ("": as NCCL's).  ``num_bytes``: of a
        message (default: what a send reads and a receive writes).  ``buffered``: it goes to a buffer as soon
        as it is sent, and what receives waits until it is there; else both ends wait for each other on
        their streams.  Whether sends and receives match is verified.
        """
        size = self._group(group).size
        if peer % size == 0:
            raise InputError(f"peer={peer!r} is no other member of {group!r}, of {size} ranks")
        if by and not collective_named(by).pair:
            raise InputError(f"by={by!r} is a collective of a group; point_to_point() defines one of a pair")
        for ops, kind, delta, column in (
            (sends, OpKind.SEND, peer, "bytes_read"), (receives, OpKind.RECV, -peer, "bytes_written"),
        ):  # fmt: skip
            ops.own("pair")
            moved: Any = attrgetter(column) if num_bytes is None else num_bytes
            columns = checked_columns(
                self.graph, {"group": group, "num_bytes": moved, "collective": by, "peer_delta": delta % size}
            )
            columns["kind"] = int(kind)
            if buffered:
                columns |= {"name": self.graph.ops.name.__getitem__, "stream": f"{group} {_WAYS[kind]}"}
                self._beside(ops, columns, f"{_DOES[kind]} over {group}, to a buffer")
                self.change(ops, "set", POINT, "take no time of their stream")
            else:
                taken: dict[str, Value] = {"flops": 0, "recorded_ps": -1, "op_class": ""}
                self.change(ops, "set", {**columns, **taken}, f"{_DOES[kind]} over {group}")

    def change(self, ops: Ops, how: Any, columns: Mapping[str, Value], did: str) -> int:
        """Note a change; gives the slot of what it puts in."""
        self.changes.append(Change(how, ops.where, ops.ranks, dict(columns)))
        self._note(ops, did)
        return len(self.changes)

    def _note(self, ops: Ops, did: str) -> None:
        rows, names = ops.rows(), self.graph.ops.name
        known = tuple(dict.fromkeys(names[row] for row in rows.tolist()))
        self.matched.append(Matched(ops.said, did, len(rows), len(ops), known))

    def fuse(self, ops: Ops, columns: Mapping[str, Value]) -> None:
        """See :meth:`Ops.fuse`."""
        if any(callable(value) for value in columns.values()):
            raise InputError("fuse: columns are values; what it reads and writes follows from its ops")
        slot = self.change(ops, "mark", {}, f"fused to {columns['name']!r}")
        self.fused[slot - 1] = columns

    def insert(self, ops: Ops, side: str, name: str, said: dict[str, Any]) -> Ops:
        """See :meth:`Ops.insert_after`."""
        ops.own(f"insert_{side}")
        said = dict(said)
        us, waits = said.pop("us", None), said.pop("waits", True)
        kind = said.pop("kind", "compute")
        stream = self.graph.ops.stream
        columns = checked_columns(self.graph, {"name": name, "kind": kind, **said})
        columns.setdefault("stream", lambda row: stream[row])
        number = columns["kind"]
        graph = self.graph
        if us is not None:
            columns["recorded_ps"] = lambda row: picoseconds(
                us(OpRow(graph, row)) if callable(us) else us, "us"
            )
        elif number in (OpKind.COMPUTE, OpKind.MEMCPY) and not columns.keys() & {
            "flops", "bytes_read", "bytes_written",
        }:  # fmt: skip
            raise InputError(f"{name!r}: nothing says what it costs; us=, or op_class= with flops= and bytes")
        slot = self.change(ops, side, columns, f"have {name!r} {side} them")
        made = replace(ops, slot=slot, said=f"{name!r} {side} {ops.said}")
        if side == "after" and waits:
            self._wait_beside(ops, made, ops)
        return made

    def wait(
        self, ops: Ops, other: Ops, same: Sequence[str], across: tuple[str, int] | None, us: float | None
    ) -> None:
        """See :meth:`Ops.wait_for`."""
        for key in same:
            if key not in _SAME:
                raise InputError(f"wait_for(same=...): unknown {key!r}{nearest(key, _SAME)}")
        ops.rows(), other.rows()
        if across is not None:
            self._wait_across(ops, other, across, us)
            return
        if us is not None:
            raise InputError(
                "wait_for(us=...) is the time of a flag between ranks: say across=(group, places)"
            )
        if other.ranks is not None and other.ranks != ops.ranks:
            raise InputError(
                f"{ops.said} and {other.said} are not on the same ranks; say ranks= of both alike"
            )
        found, alone = 0, 0
        for program in range(len(self.graph.programs)):
            dst, src, left = self._latest(program, ops, other, same)
            found, alone = found + len(dst), alone + left
            if len(dst):
                self.waits.append(AddedWaits(program, ops.ranks, other.slot, src, ops.slot, dst))
        if not found:
            raise InputError(f"wait_for: none of {other.said} is issued before any of {ops.said}")
        rest = f"; {alone:,} have none before them" if alone else ""
        self._note(ops, f"wait for {other.said}{rest}")

    def _latest(
        self, program: int, ops: Ops, other: Ops, same: Sequence[str]
    ) -> tuple[IntArray, IntArray, int]:
        """(dst, src) of one program: of each stream the latest source before each op; how many have none."""
        targets, sources = np.flatnonzero(ops.where[program]), np.flatnonzero(other.where[program])
        keys = self.steps.keys(program, np.concatenate([targets, sources]), same)
        key_of_target, key_of_source = keys[: len(targets)], keys[len(targets) :]
        # Places of both in the order of issue, within their key.
        scale = 3 * (len(ops.where[program]) + 1)
        until = key_of_target * scale + 3 * targets + self._side(ops)
        issued = key_of_source * scale + 3 * sources + self._side(other)
        served = np.zeros(len(targets), dtype=np.bool_)
        dst, src = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        stream = self._issued_on(program, sources, other)
        for code in np.unique(stream).tolist():
            mine = np.flatnonzero(stream == code)
            mine = mine[np.argsort(issued[mine])]
            latest = mine[np.maximum(np.searchsorted(issued[mine], until) - 1, 0)]
            fits = (issued[latest] < until) & (key_of_source[latest] == key_of_target)
            served |= fits
            dst.append(targets[fits])
            src.append(sources[latest[fits]])
        return np.concatenate(dst), np.concatenate(src), int((~served).sum())

    def _wait_beside(self, ops: Ops, waiting: Ops, awaited: Ops) -> None:
        """Each of ``ops`` or what is put in beside it, waits for the other of the two."""
        for program, mask in enumerate(ops.where):
            at = np.flatnonzero(mask)
            if len(at):
                self.waits.append(AddedWaits(program, ops.ranks, awaited.slot, at, waiting.slot, at))

    def _beside(self, ops: Ops, columns: Mapping[str, Value], did: str) -> None:
        """A message on a stream of its own: a send as soon as one of ``ops`` is done, a receive before it."""
        sends = columns["kind"] == OpKind.SEND
        slot = self.change(ops, "after" if sends else "before", columns, did)
        made = replace(ops, slot=slot)
        self._wait_beside(ops, *((made, ops) if sends else (ops, made)))

    def _wait_across(self, ops: Ops, other: Ops, across: tuple[str, int], us: float | None) -> None:
        """A flag from each of ``other`` to each of ``ops``: a message of no bytes in a group of its own."""
        name, places = across
        size = self._group(name).size
        if places % size == 0:
            raise InputError(f"across: {places!r} is no other member of {name!r}, of {size} ranks")
        if _SIGNAL not in COLLECTIVES:
            point_to_point(_SIGNAL, sms=0, start_s=0.0)
        own = f"{name} {_SIGNAL} {sum(_SIGNAL in one for one in self.graph.groups)}"
        self._add(replace(self._group(name), name=own))
        time: dict[str, Value] = {} if us is None else {"recorded_ps": picoseconds(us, "wait_for")}
        for kind, of, delta, did in (
            (OpKind.SEND, other, -places, f"signal the rank {-places:+d} in {name}"),
            (OpKind.RECV, ops, places, f"wait for the rank {places:+d} in {name}: {other.said}"),
        ):
            columns: dict[str, Value] = {
                "name": f"{_SIGNAL}::{kind.name.lower()}", "kind": int(kind),
                "stream": f"{own} {_WAYS[kind]}", "group": own, "collective": _SIGNAL, "num_bytes": 0,
                "peer_delta": delta % size, **time,
            }  # fmt: skip
            self._beside(of, columns, did)

    def _add(self, group: ProcessGroup) -> None:
        self.graph = replace(self.graph, groups={**self.graph.groups, group.name: group})

    # -- looking ----------------------------------------------------------------------------------

    def executions(self, ops: Ops) -> int:
        """Op executions of a step, over all ranks."""
        total = 0
        for mask, program in zip(ops.where, self.graph.programs, strict=True):
            count = int(mask.sum())
            if count:
                ranks = program.num_ranks
                if ops.ranks is not None:
                    ranks = len(ops.ranks.intersection(program.rank_list()))
                total += count * ranks
        return total

    def alone_ps(self, ops: Ops) -> IntArray:
        """By op row: what kernels and copies take alone, as recorded or priced.

        InputError for communication, whose time depends on its ranks, and where the GPU is not known.
        """
        rows = ops.rows()
        table = self.graph.ops
        if is_communication(table.kind[rows]).any():
            raise InputError(f"faster: {ops.said} is communication; takes(us) says how long it lasts")
        times = np.maximum(table.recorded_ps, 0)
        unknown = np.zeros(len(table), dtype=np.bool_)
        unknown[rows] = (table.recorded_ps[rows] < 0) & is_priced(table.kind[rows])
        if unknown.any():
            if self._gpu is None:
                raise InputError("faster: the hardware is not known")
            cost = RooflineCost(self._gpu, fp32_math=self._fp32_math)
            priced = cost.demands(table, unknown).alone_ps(self._gpu.hbm_bytes_per_s)
            times[unknown] = priced[unknown]
        return times

    def _group(self, name: str) -> ProcessGroup:
        if name not in self.graph.groups:
            raise InputError(f"unknown process group {name!r}{nearest(name, self.graph.groups)}")
        return self.graph.groups[name]

    def _side(self, ops: Ops) -> int:
        """Where ops stand beside those of their mask: before (0), themselves (1), after (2)."""
        return 1 if not ops.slot else 0 if self.changes[ops.slot - 1].how == "before" else 2

    def _issued_on(self, program: int, at: IntArray, ops: Ops) -> IntArray:
        """A number of the stream of each op, also where they are put in or moved."""
        streams = self.steps.streams(program)[at].astype(np.int64)
        if ops.slot:
            said = self.changes[ops.slot - 1].columns["stream"]
            return streams if callable(said) else np.zeros(len(at), dtype=np.int64)
        return streams
