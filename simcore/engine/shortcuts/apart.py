"""Cells of a rank that are played by themselves, while others change its GPU as they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from simcore.clock import Clock
from simcore.collectives.plan import CollectivePlan
from simcore.engine.execution import Execution, Processor
from simcore.engine.gpu import DRAWN, ENDED, GIVEN_BACK, TAKEN, Gpu
from simcore.engine.rank import Rank
from simcore.engine.rendezvous import Communicator
from simcore.engine.sequence import KernelSequence
from simcore.engine.shortcuts.cells import num_ops
from simcore.engine.shortcuts.laid import CellTimes
from simcore.network.flow import OUTSIDE, Flow
from simcore.network.fluid import FluidNetwork

if TYPE_CHECKING:
    from simpy.events import Event

    from simcore.clock import Signal
    from simcore.engine.items import Call
    from simcore.engine.rendezvous import Communicators
    from simcore.engine.shortcuts.cells import Cell
    from simcore.engine.tape import Tape
    from simcore.network.flow import Endpoint

Signature = tuple[object, ...]  # a GPU, numbers of plans
Executed = Callable[[Processor, KernelSequence, int], Execution]
Bound = dict["Call", tuple[Communicator, CollectivePlan]]

#: What others have of a GPU: SMs held, and (actual, desired) HBM bytes/ps of each flow.
Share = tuple[int, tuple[tuple[float, float], ...]]


#: A watched item has ended: what follows at that instant is done before its stream goes on.
RELEASED: Final = -1


class Disturbance(NamedTuple):
    """What others do to a GPU: take or give back a ``number`` of SMs; draw on HBM, or no longer, with the
    flow of a ``number`` (actual and desired bytes/ps); or kernels are to be re-rated after that.  Or the
    watched item of a ``number`` ends.
    """

    kind: int
    number: int = 0
    actual: float = 0.0
    desired: float = 0.0


#: What others do, and when, ps after a cell began.
Changes = Sequence[tuple[int, Disturbance]]


class GpuKind(NamedTuple):
    """SMs, bytes/s of HBM, and what each kernel waits while data moves."""

    num_sms: int
    hbm_bytes_per_s: float
    fence_ps: int


LONG_AGO: Final = -(1 << 60)  # ps: when everything in a cell was launched


class DisturbedError(Exception):
    """Somebody outside would be held up: what happens then is no matter of the cell alone."""


class Apart(FluidNetwork):
    """The links of one rank's cells, where nobody else is."""

    def limit(self, flow: Flow, member: Endpoint, cap: float | None) -> None:
        """See :class:`simcore.network.flow.Network`.  DisturbedError for a flow of others."""
        if flow.plan is OUTSIDE:
            raise DisturbedError
        super().limit(flow, member, cap)


class _Soloist(Rank):
    """A rank that plays one cell."""

    def __init__(
        self,
        rank: Rank,
        tape: Tape,
        gpu: Gpu,
        clock: Clock,
        bound: Bound,
        base_ps: int,
    ) -> None:
        super().__init__(rank.number, tape, gpu, rank.communicators, clock)
        self._bound = bound
        self.host_base.append(base_ps)


class Lab:
    """A clock, and links where nobody else is, to play cells one after the other.

    ``tapes``: of cells that were played here or in another one.
    """

    def __init__(
        self,
        bytes_per_s: npt.NDArray[np.float64],
        communicators: Communicators,
        execution: Executed,
        tapes: dict[Cell, Tape],
    ) -> None:
        self.clock = Clock()
        self.network = Apart(self.clock, bytes_per_s)
        self.execution = execution
        self._communicators = communicators
        self._tapes = tapes
        self._gpus: dict[GpuKind, Gpu] = {}
        self._bound: dict[tuple[Cell, Signature], tuple[Bound, dict[int, int]]] = {}

    def gpu(self, like: Gpu) -> Gpu:
        """One like another, the same for each cell: a GPU and its SMs are a circle, which would be kept until
        somebody looks for garbage.
        """
        kind = kind_of(like)
        found = self._gpus.get(kind)
        if found is None:
            found = self._gpus[kind] = gpu_of(kind, self.clock, self.network, self.execution)
        assert not found.executions
        assert not found.sms.put_queue
        found.sms.held_for.clear()
        return found

    def bound(self, rank: Rank, signature: Signature, cell: Cell) -> tuple[Bound, dict[int, int]]:
        """How calls are carried out here, as ``rank`` or another one with its ``signature`` does; and by the
        number of a plan in the log the first place of its call in the cell.
        """
        found = self._bound.get((cell, signature))
        if found is None:
            calls: Bound = {}
            number_of: dict[int, int] = {}
            here: dict[Communicator, Communicator] = {}
            plans: dict[tuple[Communicator, CollectivePlan], CollectivePlan] = {}
            for number, call in enumerate(cell.calls):
                if call not in calls:
                    there, plan = rank.bound(call)
                    if there not in here:
                        here[there] = self._communicators.apart(rank.number, call, self.network, self.clock)
                    if (there, plan) not in plans:  # who sends and who receives have one in common
                        own = plans[there, plan] = replace(plan)  # the log tells calls apart
                        number_of[self.network.route(own).number] = number
                    calls[call] = here[there], plans[there, plan]
            found = self._bound[cell, signature] = calls, number_of
        return found

    def tape(self, rank: Rank, cell: Cell) -> Tape:
        """The items of a cell of ``rank``'s tape, or of another one's, as a tape of their own."""
        found = self._tapes.get(cell)
        if found is None:
            found = self._tapes[cell] = _tape_of(rank.tape, cell)
        return found


class Playing:
    """A cell that is played by itself."""

    def __init__(self, lab: Lab, rank: Rank, signature: Signature, cell: Cell, share: Share) -> None:
        self.lab = lab
        clock = self.clock = lab.clock
        clock.now, self._before = 0, clock.num_events
        self._cell = cell
        self._sizes = [len(stream) for stream in cell.items]
        gpu = self.gpu = lab.gpu(rank.gpu)
        self.flows = outside(gpu, share)
        bound, self._number_of = lab.bound(rank, signature, cell)
        self._rank = _Soloist(rank, lab.tape(rank, cell), gpu, clock, bound, 0 if cell.is_late else LONG_AGO)
        for coroutine in self._rank.coroutines()[1:]:
            clock.start(coroutine)
        for _ in cell.items:
            clock.step()  # the streams begin

    @property
    def num_events(self) -> int:
        """What has happened since its begin."""
        return self.clock.num_events - self._before

    @property
    def next_ps(self) -> int:
        """When something happens next, after the cell's begin.  Errors: DisturbedError where nothing does."""
        if not self.clock.agenda:
            raise DisturbedError
        return self.clock.agenda[0][0]

    @property
    def is_over(self) -> bool:
        """Whether all items are done."""
        return self._rank.done == self._sizes

    def make(self, changes: Changes) -> None:
        """What others do, and when after the cell's begin.  Errors: DisturbedError."""
        replay(self.clock, [(since_ps, self, change) for since_ps, change in changes])

    def to_come(self, number: int) -> Signal | None:
        """See :class:`Actor`."""
        return self._rank.to_come(*self._cell.watched[number])

    def times(self) -> CellTimes:
        """After all has been played, which it does.  Errors: DisturbedError where something does not end."""
        self.clock.drain()
        if not self.is_over:
            raise DisturbedError
        log = self.lab.network.log
        plans = [self._number_of[plan] for plan in log.plan]
        changes = tuple(zip(log.time_ps, plans, log.change, strict=True))
        rank = self._rank
        rank.lay_out()
        columns = rank.item_ready, rank.item_start, rank.item_end, rank.op_start, rank.op_end
        return CellTimes.of(self._cell, columns, changes)


class Actor(Protocol):
    """A rank that plays a cell, whose GPU others change, with ``flows``, by their number in changes."""

    gpu: Gpu
    flows: list[Flow]

    def to_come(self, number: int) -> Signal | None:
        """Fires when the watched item of a number ends; None: it has."""
        ...


def replay(clock: Clock, changes: Sequence[tuple[int, Actor, Disturbance]]) -> None:
    """What others do to ranks, in the order of times, while what these do is played.

    Errors: DisturbedError where SMs are not free.
    """
    place = 0
    while place < len(changes):
        time_ps, actor, change = changes[place]
        place += 1
        clock.play_until(time_ps)
        if change.kind != RELEASED:
            make(change, actor.gpu, actor.flows)
            continue
        following = []
        while place < len(changes) and changes[place][:2] == (time_ps, actor):
            following.append(changes[place][2])
            place += 1
        failed: list[DisturbedError] = []
        then = partial(_make_all, following, actor, failed)
        end = actor.to_come(change.number)
        if end is None:
            then(None)
        else:
            end.callbacks.append(then)
            while end.callbacks is not None:
                clock.step()
        if failed:
            raise failed[0]


def _make_all(
    changes: Sequence[Disturbance], actor: Actor, failed: list[DisturbedError], _: Event | None
) -> None:
    try:
        for change in changes:
            make(change, actor.gpu, actor.flows)
    except DisturbedError as error:  # not through the coroutine that goes on next
        failed.append(error)


def make(change: Disturbance, gpu: Gpu, flows: list[Flow]) -> None:
    """Have a GPU changed by others, whose flows on it are ``flows``.

    Errors: DisturbedError where SMs are not free.
    """
    kind, number, actual, desired = change
    if kind in (DRAWN, ENDED) and number == len(flows):
        flows.append(Flow(gpu.clock, OUTSIDE, ()))
    if kind == TAKEN:
        if gpu.sms.put_queue or not gpu.sms.take(number, ""):
            raise DisturbedError
    elif kind == GIVEN_BACK:
        gpu.sms.release(number)
    elif kind == DRAWN:
        gpu.draw_changed(flows[number], actual, desired)
    elif kind == ENDED:
        gpu.draw_ended(flows[number])
    else:
        gpu.refresh()


def _tape_of(tape: Tape, cell: Cell) -> Tape:
    """The cell's items as a tape of their own."""
    sizes = [num_ops(item) for stream in cell.items for item in stream]
    ends = np.cumsum([len(stream) for stream in cell.items]).tolist()
    return replace(
        tape,
        streams=tuple(list(stream) for stream in cell.items),
        stream_names=tuple(str(number) for number in range(len(cell.items))),
        first_item=(0, *ends),
        first_op=np.cumsum([0, *sizes])[:-1],
        segments=(),
        order=np.zeros(sum(sizes), dtype=np.int64),
    )


def kind_of(gpu: Gpu) -> GpuKind:
    """What cells that are played apart ask of a GPU."""
    return GpuKind(gpu.num_sms, gpu.hbm_bytes_per_s, gpu.fence_ps)


def gpu_of(kind: GpuKind, clock: Clock, network: Apart, execution: Executed) -> Gpu:
    """One that nobody uses."""
    return Gpu(clock, network, execution=execution, **kind._asdict())


def outside(gpu: Gpu, share: Share) -> list[Flow]:
    """Have others hold their share of a GPU; returns the flows that draw on it."""
    gpu.sms.held, draws = share
    flows = [Flow(gpu.clock, OUTSIDE, ()) for _ in draws]
    gpu.draws = dict(zip(flows, draws, strict=True))
    return flows
