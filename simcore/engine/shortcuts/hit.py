"""Courses of which all but one item are known already.

Note [One item]
    Mostly one item of a cell is under way when others change the GPU.  What came before is as it was without
    the change, and what comes after the item, where nothing else is under way by then, goes as in a cell that
    had what is left of the GPU from its start on, later or earlier.  So nothing is played but that item, from
    the last change on (:mod:`.under_way`), and where it is communication, which keeps its links and its SMs,
    not even that.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from simcore.engine.gpu import DRAWN, ENDED, GIVEN_BACK, TAKEN
from simcore.engine.sequence import KernelSequence
from simcore.engine.shortcuts.apart import (
    LONG_AGO,
    RELEASED,
    Changes,
    Disturbance,
    DisturbedError,
    GpuKind,
    Share,
    kind_of,
)
from simcore.engine.shortcuts.laid import CellTimes, Laid
from simcore.engine.shortcuts.under_way import Bench, UnderWay

if TYPE_CHECKING:
    from simcore.engine.items import Item
    from simcore.engine.rank import Rank
    from simcore.engine.shortcuts.cells import Cell
    from simcore.engine.shortcuts.laid import Columns, LinkChanges


class _Hit(CellTimes):
    """Times of a cell as ``before``, but for the item that was hit, ``under_way`` as long as nobody has asked
    for its columns, and for those ``to_come``, which come ``later_ps`` later than in the ``rest``.

    ``over``: the item where nothing of the cell is still to change the GPU.
    """

    __slots__ = ("_before", "_laid", "_later_ps", "_over", "_rest", "_to_come", "under_way")

    def __init__(
        self, laid: Laid, begins: Sequence[int], ends: Sequence[int], changes: LinkChanges, before: CellTimes,
        under_way: UnderWay, over: UnderWay, rest: CellTimes, to_come: Sequence[int], later_ps: int,
    ) -> None:  # fmt: skip
        super().__init__(laid, begins, ends, changes)
        known = before.under_way if isinstance(before, _Hit) else None
        if isinstance(before, _Hit) and known is not None and known.number == under_way.number:
            before = before._before  # what is to come after the item is the same
        self._laid = laid
        self.under_way: UnderWay | None = under_way
        self._before: CellTimes = before
        self._over, self._rest = over, rest
        self._to_come, self._later_ps = to_come, later_ps

    @property
    def columns(self) -> Columns:
        """See the class; written when somebody first asks, which few do."""
        if self._columns is None:
            self._columns = self._written()
        return self._columns

    def _written(self) -> Columns:
        laid = self._laid
        columns = tuple([column[:] for column in self._before.columns])
        _, start, _, op_start, op_end = columns
        hit, execution = self._over.number, self._over.play()
        _, _, first, stop, _ = laid.items[hit]
        if execution.origin_ps is None:
            start[hit] = -1
            op_start[first:stop] = array("q", execution.starts)
            op_end[first:stop] = array("q", execution.ends)
        else:
            start[hit] = execution.origin_ps
            op_start[first:stop] = op_end[first:stop] = array("q", [-1]) * (stop - first)
        for n in self._to_come:
            _, _, first, stop, _ = laid.items[n]
            for column, (mine, theirs) in enumerate(zip(columns, self._rest.columns, strict=True)):
                part = slice(n, n + 1) if column < 3 else slice(first, stop)
                mine[part] = array("q", [time + self._later_ps if time >= 0 else -1 for time in theirs[part]])
        self.under_way = None
        del self._before, self._over, self._rest
        return columns


class Hits:
    """Finds times of courses from those without their last changes.  ``num_found`` counts them."""

    def __init__(self) -> None:
        self._laid: dict[Cell, Laid] = {}
        self._benches: dict[GpuKind, Bench] = {}
        self.num_found = 0

    def forget(self) -> None:
        """Nothing is played any more."""
        self._laid.clear()

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
        for since, change in changes:
            if change.kind == RELEASED or (since == at and change.kind == TAKEN):
                return None
        laid = self._laid.get(cell)
        if laid is None:
            laid = self._laid[cell] = Laid.of(cell)
        items, begins, ends = laid.items, before.begins, before.ends
        hit, is_under_way, to_come = -1, False, []
        for n, begin in enumerate(begins):
            if begin > at:
                to_come.append(n)
            elif ends[n] >= at:
                if begin == at or ends[n] == at:
                    return None
                is_under_way = True
                if items[n].is_run:
                    if hit >= 0:
                        return None
                    hit = n
        if hit < 0:
            return before if is_under_way and not to_come else None
        if items[hit].item.on_copy_engine:
            return None
        last = _last(to_come, begins, ends) if to_come else -1
        if last is None or (to_come and cell.is_late):  # launches do not move with what they are for
            return None
        try:
            under_way = self._under_way(rank, cell, share, changes, before, hit, laid)
            if under_way is None:
                return None
            over = under_way.undisturbed()
            end_ps = over.end_ps()
        except DisturbedError:
            return None
        self.num_found += 1
        ends = list(ends)
        ends[hit] = end_ps
        if last < 0:
            return _Hit(laid, begins, ends, before.changes, before, under_way, over, before, (), 0)
        rest = undisturbed(over.share)
        if rest is None or _last(to_come, rest.begins, rest.ends) != last:
            return None
        end_ps, from_ps, until_ps = ends[last], rest.ends[last], min([begins[n] for n in to_come])
        for n, end in enumerate(ends):
            if end >= end_ps and n != last and n not in to_come:
                return None
        for time, _, by in (*before.changes, *rest.changes):
            if by > 0.0 and time in (from_ps, until_ps):
                return None
        later_ps, begins = end_ps - from_ps, list(begins)
        for n in to_come:
            begins[n], ends[n] = rest.begins[n] + later_ps, rest.ends[n] + later_ps
        moved = (
            *(one for one in before.changes if one[0] <= until_ps),
            *((time + later_ps, call, by) for time, call, by in rest.changes if time > from_ps),
        )
        return _Hit(laid, begins, ends, moved, before, under_way, over, rest, to_come, later_ps)

    def _under_way(
        self, rank: Rank, cell: Cell, share: Share, changes: Changes, before: CellTimes, hit: int, laid: Laid
    ) -> UnderWay | None:
        """The item that is hit, with ``changes``; None where what the cell itself does to its GPU depends on
        them.

        Errors: DisturbedError where others are concerned.
        """
        at, place, begin_ps = changes[-1][0], laid.items[hit], before.begins[hit]
        known = before.under_way if isinstance(before, _Hit) else None
        if known is not None and known.number == hit:
            if known.calls_at(at):
                return None
            under_way = known.copy()
            under_way.make([one for one in changes if one[0] == at])
            return under_way
        beside = [
            (laid.items[n].item, *_call_times(n, before))
            for n, end in enumerate(before.ends)
            if n != hit and before.begins[n] <= at and end > begin_ps
        ]
        calls = _own_changes(rank, beside, before)
        if calls is None:
            return None
        work, launch_ps = place.item.work, place.item.launch_ps
        assert isinstance(work, KernelSequence)
        kind = kind_of(rank.gpu)
        bench = self._benches.get(kind)
        if bench is None:
            bench = self._benches[kind] = Bench(kind)
        if not cell.is_late:
            launch_ps += LONG_AGO
        under_way = UnderWay(bench, hit, work, launch_ps, begin_ps, share, calls)
        if any(since == begin_ps or under_way.calls_at(since) for since, _ in changes):
            return None
        under_way.make(changes)
        return under_way


def _last(to_come: Sequence[int], begins: Sequence[int], ends: Sequence[int]) -> int | None:
    """The item with whose end those begin that are to come; None where they do not."""
    last, end_ps, is_only = -1, -1, True
    for n, end in enumerate(ends):
        if end >= end_ps and n not in to_come:
            last, end_ps, is_only = n, end, end > end_ps
    if not is_only or min([begins[n] for n in to_come]) < end_ps:
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
