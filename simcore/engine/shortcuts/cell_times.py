"""How long cells last in a share of a GPU: each kind is simulated once, by itself, and remembered."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from simcore.clock import Clock
from simcore.collectives.plan import CollectivePlan
from simcore.engine.execution import Execution, Processor
from simcore.engine.gpu import Gpu
from simcore.engine.rank import Rank
from simcore.engine.rendezvous import Communicator
from simcore.engine.sequence import KernelSequence
from simcore.engine.shortcuts.cells import calls_of, num_ops
from simcore.graph.ops import IntArray
from simcore.network.flow import Flow
from simcore.network.fluid import FluidNetwork

if TYPE_CHECKING:
    from simcore.engine.items import Call, Item
    from simcore.engine.rendezvous import Communicators
    from simcore.engine.shortcuts.cells import Cell, Pattern
    from simcore.engine.tape import Tape
    from simcore.network.flow import Endpoint

Signature = tuple[object, ...]  # a GPU, numbers of plans
Executed = Callable[[Processor, KernelSequence, int], Execution]

#: What others have of a GPU: SMs held, and (actual, desired) HBM bytes/ps of each flow.
Share = tuple[int, tuple[tuple[float, float], ...]]
_LONG_AGO = -(1 << 60)  # ps: when everything in a cell was launched


@dataclass(frozen=True, eq=False, slots=True)
class StreamTimes:
    """Records of one stream's items (ready, start, end) and ops (start, end), ps from the cell's start; -1
    where a rank keeps none.  ``has_some``, ``has_all``: columns of which anything, everything is set.
    """

    columns: tuple[IntArray, IntArray, IntArray, IntArray, IntArray]
    has_some: tuple[bool, ...]
    has_all: tuple[bool, ...]

    @classmethod
    def of(cls, *columns: IntArray) -> StreamTimes:
        """From the columns."""
        ready, start, end, op_start, op_end = columns
        marks = [column >= 0 for column in columns]
        some, every = tuple(bool(m.any()) for m in marks), tuple(bool(m.all()) for m in marks)
        return cls((ready, start, end, op_start, op_end), some, every)


@dataclass(frozen=True, eq=False, slots=True)
class CellTimes:
    """What happens in a cell: how long it lasts, its streams' records, and what its flows did to links.

    ``changes`` are (time, call, change of the call's rate in bytes/ps).  ``last[s]``: when the last item of
    stream ``s`` has ended, ps.
    """

    lasts_ps: int
    streams: tuple[StreamTimes, ...]
    changes: tuple[tuple[int, int, float], ...]
    last: tuple[int, ...]


class _DisturbedError(Exception):
    """Somebody outside would be slowed down: what happens then is no matter of the cell alone."""


#: Stands for a flow that has nothing to do with the cell but draws HBM.
_OUTSIDE: Final = CollectivePlan(
    "outside", 0, (), "none", "Simple", 0, 0, 0, 0, 0, 0.0, math.inf, 1.0, (), 0
)  # fmt: skip


class _Apart(FluidNetwork):
    """The links of one rank's cells, where nobody else is."""

    def limit(self, flow: Flow, member: Endpoint, cap: float | None) -> None:
        if flow.plan is _OUTSIDE:
            raise _DisturbedError
        super().limit(flow, member, cap)


class _Soloist(Rank):
    """A rank that plays one cell."""

    def __init__(
        self,
        rank: Rank,
        tape: Tape,
        gpu: Gpu,
        clock: Clock,
        bound: dict[Call, tuple[Communicator, CollectivePlan]],
    ) -> None:
        super().__init__(rank.number, tape, gpu, rank.communicators, clock)
        self._bound = bound
        self.host_base.append(_LONG_AGO)


class OwnCalls:
    """How a rank carries out the calls of its cells, but for where it stands."""

    def __init__(self, book: CellBook, rank: Rank) -> None:
        self.rank = rank
        self._book = book
        self._ports = rank.communicators.ports(rank.number)
        self._signatures: dict[Pattern | Cell, Signature] = {}
        self._numbers: dict[Call, int] = {}

    def signature(self, part: Pattern | Cell) -> Signature:
        """How the calls of a part of the rank's tape are carried out, and on what GPU."""
        found = self._signatures.get(part)
        if found is None:
            plans = [self.number_of_plan(call) for call in part.distinct]
            found = self._signatures[part] = (self.rank.gpu.alone, *plans)
        return found

    def number_of_plan(self, call: Call) -> int:
        """Number of how a call is carried out, the same for all ranks that do so."""
        found = self._numbers.get(call)
        if found is None:
            plan = self.rank.bound(call)[1]
            links = tuple([(self._ports[use.link], use.weight, use.inputs) for use in plan.links])
            found = self._numbers[call] = self._book.number_of_plan((
                call.group, call.kind, call.peer_delta, plan.collective, plan.channels, plan.latency_ps,
                plan.between_ps, plan.volume_bytes, plan.rate_cap_bytes_per_s, plan.hbm_bytes_per_byte,
                plan.alone_ps, links,
            ), plan)  # fmt: skip
        return found


class CellBook:
    """Times of cells by what is in them and by the share of the GPU that they get."""

    def __init__(
        self, bytes_per_s: npt.NDArray[np.float64], communicators: Communicators, execution: Executed
    ) -> None:
        self._execution = execution
        self._clock = Clock()
        self._network = _Apart(self._clock, bytes_per_s)
        self._communicators = communicators
        self._cells: dict[tuple[Cell, Signature, Share], CellTimes | None] = {}
        self._plans: dict[object, int] = {}
        self.num_events = 0

    def cells(self, own: OwnCalls, pattern: Pattern, share: Share) -> list[CellTimes | None]:
        """Times of the cells of ``pattern`` on a rank's GPU with ``share`` taken by others.

        None for a cell that would slow the others down.
        """
        return [self._cell(own, cell, share) for cell in pattern.cells]

    def number_of_plan(self, content: tuple[object, ...], plan: CollectivePlan) -> int:
        """Number of a plan with that content on the links of the cells."""
        key = (*content, self._network.route(plan).alone)
        return self._plans.setdefault(key, len(self._plans))

    def _cell(self, own: OwnCalls, cell: Cell, share: Share) -> CellTimes | None:
        key = (cell, own.signature(cell), share)
        if key not in self._cells:
            try:
                self._cells[key] = self._played(own.rank, cell.items, share)
            except _DisturbedError:
                self._cells[key] = None
                self._clock = Clock()
                self._network = _Apart(self._clock, self._network.bytes_per_s)
        return self._cells[key]

    def _played(self, rank: Rank, items: Sequence[Sequence[Item]], share: Share) -> CellTimes:
        """Simulate a cell by itself."""
        clock, network = self._clock, self._network
        begin, before = clock.now, clock.num_events
        gpu = Gpu(
            clock, network, num_sms=rank.gpu.num_sms, hbm_bytes_per_s=rank.gpu.hbm_bytes_per_s,
            execution=self._execution,
        )  # fmt: skip
        held, draws = share
        gpu.sms.held = held
        gpu.draws.update({Flow(clock, _OUTSIDE, ()): draw for draw in draws})
        bound: dict[Call, tuple[Communicator, CollectivePlan]] = {}
        number_of: dict[int, int] = {}
        for number, call in enumerate(calls_of(items)):
            plan = replace(rank.bound(call)[1])  # an object of its own: the log tells calls apart
            if call not in bound:
                bound[call] = self._communicators.apart(rank.number, call, network, clock), plan
            number_of.setdefault(network.route(bound[call][1]).number, number)
        soloist = _Soloist(rank, _tape_of(rank.tape, items), gpu, clock, bound)
        log = network.log
        logged = len(log.time_ps)
        for coroutine in soloist.coroutines()[1:]:
            clock.process(coroutine)
        clock.drain()
        self.num_events += clock.num_events - before
        if soloist.done != [len(stream) for stream in items]:
            raise _DisturbedError
        return _times(soloist, items, begin, [
            (time - begin, number_of[plan], change)
            for time, plan, change in zip(
                log.time_ps[logged:], log.plan[logged:], log.change[logged:], strict=True
            )
        ])  # fmt: skip


def _tape_of(tape: Tape, items: Sequence[Sequence[Item]]) -> Tape:
    """The items as a tape of their own."""
    sizes = [num_ops(item) for stream in items for item in stream]
    ends = np.cumsum([len(stream) for stream in items]).tolist()
    return replace(
        tape,
        streams=tuple(list(stream) for stream in items),
        stream_names=tuple(str(number) for number in range(len(items))),
        first_item=(0, *ends),
        first_op=np.cumsum([0, *sizes])[:-1],
        segments=(),
        order=np.zeros(sum(sizes), dtype=np.int64),
    )


def _times(
    rank: Rank,
    items: Sequence[Sequence[Item]],
    begin: int,
    changes: list[tuple[int, int, float]],
) -> CellTimes:
    """A soloist's records, from ``begin`` on."""

    def since(column: array[int]) -> IntArray:
        values = np.array(column, dtype=np.int64)
        return np.where(values >= 0, values - begin, -1)

    rank.lay_out()
    ready, start, end = since(rank.item_ready), since(rank.item_start), since(rank.item_end)
    op_start, op_end = since(rank.op_start), since(rank.op_end)
    streams, last = [], []
    item, op = 0, 0
    for stream in items:
        ended = 0
        first_item, first_op = item, op
        for one in stream:
            ops = num_ops(one)
            if end[item] >= 0:
                ended = int(end[item])
            elif op_end[op + ops - 1] >= 0:
                ended = int(op_end[op : op + ops].max())
            else:
                assert isinstance(one.work, KernelSequence)
                ended = int(start[item]) + one.work.alone.after[-1]
            item, op = item + 1, op + ops
        last.append(ended)
        its_items, its_ops = slice(first_item, item), slice(first_op, op)
        streams.append(
            StreamTimes.of(
                ready[its_items], start[its_items], end[its_items], op_start[its_ops], op_end[its_ops]
            )
        )
    return CellTimes(max(last), tuple(streams), tuple(changes), tuple(last))
