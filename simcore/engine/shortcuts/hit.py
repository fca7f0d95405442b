"""Courses of which all but one item are known already.

Note [One item]
    Mostly one item of a cell is under way when others change the GPU.  What came before is as it was without
    the change, and what comes after the item, where nothing else is under way by then, goes as in a cell that
    had what is left of the GPU from its start on, later or earlier.  So nothing is played but that item, from
    its start, and where it is communication, which keeps its links and its SMs, not even that.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from simcore.clock import Clock
from simcore.engine.gpu import DRAWN, ENDED, GIVEN_BACK, TAKEN, Gpu
from simcore.engine.items import Item
from simcore.engine.sequence import KernelSequence
from simcore.engine.shortcuts.apart import (
    LONG_AGO,
    RELEASED,
    Apart,
    CellTimes,
    Disturbance,
    DisturbedError,
    Executed,
    GpuKind,
    Share,
    gpu_of,
    kind_of,
    make,
    outside,
    times_of,
)
from simcore.engine.shortcuts.cells import num_ops

if TYPE_CHECKING:
    from simcore.engine.execution import Execution
    from simcore.engine.rank import Rank
    from simcore.engine.shortcuts.cells import Cell
    from simcore.network.flow import Flow

Changes = Sequence[tuple[int, Disturbance]]


class _Laid(NamedTuple):
    """An item of a cell: on which stream, numbers of those that it follows, and of its first op and the
    one behind its last one.
    """

    item: Item
    stream: int
    after: tuple[int, ...]
    first: int
    stop: int
    is_run: bool  # of kernels


class Hits:
    """Finds times of courses from those without their last changes."""

    def __init__(self, bytes_per_s: npt.NDArray[np.float64], execution: Executed) -> None:
        self._network = Apart(Clock(), bytes_per_s)
        self._execution = execution
        self._places: dict[Cell, tuple[_Laid, ...]] = {}
        self._gpus: dict[GpuKind, Gpu] = {}
        self.num_events = 0

    def forget(self) -> None:
        """Nothing is played any more."""
        self._places.clear()

    def after(
        self,
        rank: Rank,
        cell: Cell,
        share: Share,
        changes: Changes,
        before: CellTimes,
        undisturbed: Callable[[Share], CellTimes | None],
    ) -> CellTimes | None:
        """Times of a cell with ``changes``, from those ``before`` the last ones, which come at one instant.

        ``undisturbed`` are those in a constant share of the GPU.  None where more has to be played.
        """
        at = changes[-1][0]
        if any(kind == RELEASED or (since == at and kind == TAKEN) for since, (kind, *_) in changes):
            return None
        places = self._places.get(cell)
        if places is None:
            places = self._places[cell] = _places(cell)
        begins, ends = spans = _spans(places, before)
        under_way = [n for n, (begin, end) in enumerate(zip(*spans, strict=True)) if begin <= at <= end]
        if any(begins[n] == at or ends[n] == at for n in under_way):
            return None
        runs = [n for n in under_way if places[n].is_run]
        to_come = [n for n, begin in enumerate(begins) if begin > at]
        if not runs:
            return before if under_way and not to_come else None
        hit, begin_ps = runs[0], begins[runs[0]]
        if len(runs) > 1 or places[hit].item.on_copy_engine or any(since == begin_ps for since, _ in changes):
            return None
        beside = [n for n, end in enumerate(ends) if n != hit and n not in to_come and end > begin_ps]
        last = _last(to_come, spans)
        if to_come and (last is None or cell.is_late):  # launches do not move with what they are for
            return None
        calls = _own_changes(rank, [(places[n].item, *_call_times(n, before)) for n in beside], before)
        if calls is None or {since for since, _ in calls} & {since for since, _ in changes}:
            return None
        try:
            gpu, execution = self._play(rank, cell, share, places[hit], begin_ps, (changes, calls))
        except DisturbedError:
            return None
        columns = tuple(array("q", column) for column in before.columns)
        ends[hit] = _record(columns, hit, places[hit], execution)
        moved = before.changes
        if last is not None:
            rest = undisturbed((gpu.sms.held, tuple(gpu.draws.values())))
            if rest is None:
                return None
            others = _spans(places, rest)
            over = [end for n, end in enumerate(ends) if n not in to_come and n != last]
            if _last(to_come, others) != last or any(end >= ends[last] for end in over):
                return None
            later_ps = ends[last] - others[1][last]
            for n in to_come:
                _take_over(columns, rest.columns, n, places[n], later_ps)
            until_ps, from_ps = min(begins[n] for n in to_come), others[1][last]
            joined = {time for time, _, by in (*moved, *rest.changes) if by > 0.0}
            if until_ps in joined or from_ps in joined:
                return None
            moved = (
                *(one for one in moved if one[0] <= until_ps),
                *((time + later_ps, call, by) for time, call, by in rest.changes if time > from_ps),
            )
        return times_of(columns, cell, moved)

    def _play(
        self,
        rank: Rank,
        cell: Cell,
        share: Share,
        place: _Laid,
        begin_ps: int,
        changes: tuple[Changes, Changes],
    ) -> tuple[Gpu, Execution]:
        """Play an item from its begin on, with ``changes`` of others and of the cell's own communication.

        Errors: DisturbedError where others are concerned.
        """
        kind = kind_of(rank.gpu)
        gpu = self._gpus.pop(kind, None) or gpu_of(kind, Clock(), self._network, self._execution)
        clock = gpu.clock
        of_others = outside(gpu, share)
        own: list[Flow] = []
        all_changes = [(since, change, of_others) for since, change in changes[0]]
        if changes[1]:
            all_changes += [(since, change, own) for since, change in changes[1]]
            all_changes.sort(key=itemgetter(0))
        execution: Execution | None = None
        work, launch_ps = place.item.work, place.item.launch_ps
        assert isinstance(work, KernelSequence)
        following = [*((since, change.kind) for since, change, _ in all_changes[1:]), (-1, -1)]
        for (since, change, flows), then in zip(all_changes, following, strict=True):
            if execution is None and since > begin_ps:
                clock.now = begin_ps
                execution = gpu.execute(
                    work, launch_ps if cell.is_late else launch_ps + LONG_AGO, place.stream
                )
            while gpu.executions and execution is not None and execution.due_ps < since:
                self._come(execution)
            clock.now = since
            make(change, gpu, flows, is_last=then != (since, DRAWN))
        assert execution is not None  # what hit it came later
        while gpu.executions:
            self._come(execution)
        if gpu.stale:
            raise DisturbedError
        clock.agenda.clear()
        self._gpus[kind] = gpu
        return gpu, execution

    def _come(self, execution: Execution) -> None:
        if not execution.come():
            raise DisturbedError
        self.num_events += 1


def _last(to_come: Sequence[int], spans: tuple[Sequence[int], Sequence[int]]) -> int | None:
    """The item with whose end those begin that are to come; None without any, or where they do not."""
    begins, ends = spans
    if not to_come:
        return None
    over = [n for n in range(len(begins)) if n not in to_come]
    last = max(over, key=ends.__getitem__)
    if any(ends[n] == ends[last] for n in over if n != last) or any(begins[n] < ends[last] for n in to_come):
        return None
    return last


def _call_times(number: int, times: CellTimes) -> tuple[int, int, int]:
    """When an item of one call asked for its SMs, had them, and ended."""
    ready, start, end, *_ = times.columns
    return ready[number], start[number], end[number]


def _own_changes(rank: Rank, items: Sequence[tuple[Item, int, int, int]], times: CellTimes) -> Changes | None:
    """What communication of the cell itself does to its GPU: items of one call each, when these asked for
    their SMs, had them and ended.

    None where that depends on what else happens.
    """
    found: list[tuple[int, Disturbance]] = []
    drawn = 0
    for item, ready_ps, start_ps, end_ps in sorted(items, key=itemgetter(1)):
        work = item.work
        if isinstance(work, KernelSequence) or len(work.calls) > 1 or start_ps != ready_ps:
            return None
        call = work.calls[0]
        rates = [(time, by) for time, _, by in times.changes if ready_ps < time <= end_ps]
        if call.peer_delta or len(rates) != 2 or rates[1] != (end_ps, -rates[0][1]):
            return None  # somebody else is under way, or it was held up
        plan = rank.bound(call)[1]
        num_sms = 0 if item.on_copy_engine else min(rank.gpu.num_sms, plan.channels)
        draw = rates[0][1] * plan.hbm_bytes_per_byte
        found.append((ready_ps, Disturbance(TAKEN, num_sms)))
        if draw > 0.0:
            found += [
                (rates[0][0], Disturbance(DRAWN, drawn, draw, draw)),
                (end_ps, Disturbance(ENDED, drawn)),
            ]
            drawn += 1
        found.append((end_ps, Disturbance(GIVEN_BACK, num_sms)))
    return found


def _places(cell: Cell) -> tuple[_Laid, ...]:
    """A cell's items, its streams in turn, as in columns of :class:`CellTimes`."""
    found = []
    first_of = np.cumsum([0, *(len(stream) for stream in cell.items)]).tolist()
    op = 0
    for s, stream in enumerate(cell.items):
        for k, item in enumerate(stream):
            after = [first_of[other] + awaited for other, awaited in item.waits]
            if k:
                after.append(first_of[s] + k - 1)
            stop = op + num_ops(item)
            is_run = isinstance(item.work, KernelSequence)
            found.append(_Laid(item, s, tuple(after), op, stop, is_run))
            op = stop
    return tuple(found)


def _spans(places: Sequence[_Laid], times: CellTimes) -> tuple[list[int], list[int]]:
    """When each item is with the GPU: kernels from when their stream has come to them, communication from
    when it asks for SMs.
    """
    ready, start, end, _, op_end = times.columns
    ends = []
    for n, place in enumerate(places):
        if end[n] >= 0:
            ends.append(end[n])
        elif op_end[place.stop - 1] >= 0:
            ends.append(max(op_end[place.first : place.stop]))
        else:
            work = place.item.work
            assert isinstance(work, KernelSequence)
            ends.append(start[n] + work.alone.after[-1])
    begins = [
        max([ends[other] for other in place.after], default=0) if place.is_run else ready[n]
        for n, place in enumerate(places)
    ]
    return begins, ends


def _record(columns: Sequence[array[int]], number: int, place: _Laid, execution: Execution) -> int:
    """Note an item's times; returns when it ended."""
    _, start, _, op_start, op_end = columns
    first, stop, origin = place.first, place.stop, execution.origin_ps
    if origin is None:
        start[number] = -1
        op_start[first:stop] = array("q", execution.starts)
        op_end[first:stop] = array("q", execution.ends)
        return execution.ends[-1]
    start[number] = origin
    op_start[first:stop] = op_end[first:stop] = array("q", [-1]) * (stop - first)
    work = place.item.work
    assert isinstance(work, KernelSequence)
    return origin + work.alone.after[-1]


def _take_over(
    columns: Sequence[array[int]], others: Sequence[array[int]], number: int, place: _Laid, later_ps: int
) -> None:
    """Note an item's times as they are in other columns, but later."""
    for column, (mine, theirs) in enumerate(zip(columns, others, strict=True)):
        part = slice(number, number + 1) if column < 3 else slice(place.first, place.stop)
        mine[part] = array("q", [time + later_ps if time >= 0 else -1 for time in theirs[part]])
