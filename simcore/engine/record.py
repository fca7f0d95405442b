"""From what ranks recorded per item to times per op, and from flow rates to link counters: vectorised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from simcore.collectives.plan import CollectivePlan
from simcore.engine.launches import set_host_times
from simcore.engine.rank import Rank
from simcore.engine.result import Int32Array, LinkCounters, LinkLog, RankTimes
from simcore.engine.tape import Tape
from simcore.graph import OpKind
from simcore.graph.ops import IntArray
from simcore.network.fluid import FluidNetwork
from simcore.units import PS_PER_S

FloatArray = npt.NDArray[np.float64]
_T = TypeVar("_T", bound=np.generic)

_BLOCK_ROWS = 1 << 18  # rows of link counters that are worked out at a time


def all_times(ranks: Sequence[Rank], kind: IntArray) -> tuple[tuple[RankTimes, ...], int]:
    """Times of every flat op of each rank; ranks that did the same at the same time share them.  And how many
    op executions players answered for.

    ``kind`` is the op-table column.  The records of the ranks are used up.
    """
    outcomes: dict[tuple[Tape, object], tuple[RankTimes, int]] = {}
    known: dict[tuple[int, ...], list[RankTimes]] = {}  # by sums, few of which are equal by chance
    found = []
    num_answered = 0
    for rank in ranks:
        key = (rank.tape, rank.outcome())
        if key not in outcomes:
            rank.lay_out()
            answered = rank.player.record() if rank.player is not None else 0
            times = _rank_times(rank, kind)
            columns = _columns(times)
            alike = known.setdefault(tuple(int(column.sum()) for column in columns), [])
            same = (one for one in alike if all(map(np.array_equal, _columns(one), columns)))
            shared = next(same, times)
            if shared is times:
                alike.append(times)
            outcomes[key] = shared, answered
        rank.forget()
        times, answered = outcomes[key]
        found.append(times)
        num_answered += answered
    return tuple(found), num_answered


def _columns(times: RankTimes) -> tuple[IntArray, ...]:
    return times.ready_ps, times.start_ps, times.end_ps


def _rank_times(rank: Rank, kind: IntArray) -> RankTimes:
    tape = rank.tape
    item_start = np.array(rank.item_start, dtype=np.int64)
    start, end = tape.alone_in_item()
    start += item_start[tape.item_of]
    end += item_start[tape.item_of]
    item_end = np.array(rank.item_end, dtype=np.int64)
    met = item_end[tape.item_of] >= 0
    end[met] = item_end[tape.item_of][met]
    op_start = np.array(rank.op_start, dtype=np.int64)
    own = op_start >= 0
    start[own] = op_start[own]
    end[own] = np.array(rank.op_end, dtype=np.int64)[own]
    ready = start.copy()
    item_ready = np.array(rank.item_ready, dtype=np.int64)[tape.item_of]
    ready[item_ready >= 0] = item_ready[item_ready >= 0]
    size = len(tape.flat)
    flat = RankTimes(np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64))
    flat.ready_ps[tape.order], flat.start_ps[tape.order], flat.end_ps[tape.order] = ready, start, end
    is_sync = kind[tape.flat.row[tape.host_ops]] == OpKind.SYNC
    begin, base = np.array(rank.host_begin, dtype=np.int64), np.array(rank.host_base, dtype=np.int64)
    set_host_times(tape.launches, tape.host_ops, is_sync, begin, base, flat)
    return flat


def joined(parts: list[npt.NDArray[_T]]) -> npt.NDArray[_T]:
    """The parts of a column, one behind the other.  Uses them up: columns are long, and there are several."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole


def link_log(network: FluidNetwork, aside: tuple[IntArray, Int32Array, FloatArray] | None) -> LinkLog:
    """The network's log, with what happened ``aside`` of it: (time, number of the plan, change) columns."""
    log = network.log
    time, plan, change = [np.array(log.time_ps)], [np.array(log.plan)], [np.array(log.change)]
    log.clear()
    if aside is not None:
        time.append(aside[0])
        plan.append(aside[1])
        change.append(aside[2])
        del aside
    order = np.argsort(np.concatenate(time), kind="stable")
    return LinkLog(joined(time)[order], joined(plan)[order], joined(change)[order], network.plans)


def link_counters(log: LinkLog) -> LinkCounters:
    """Rates of all links from the rates of plans, some links at a time."""
    time, plan_of, change = log.time_ps, log.plan, log.change
    entries = np.argsort(plan_of, kind="stable").astype(np.int32)  # log entries plan by plan
    num_entries = np.bincount(plan_of, minlength=len(log.plans))
    first_entry = np.cumsum(num_entries) - num_entries
    num_links = [len(plan.links) for plan in log.plans]
    size = sum(num_links)
    link = np.fromiter((use.link for plan in log.plans for use in plan.links), np.int64, size)
    weight = np.fromiter((use.weight for plan in log.plans for use in plan.links), np.float64, size)
    by_link = np.argsort(link, kind="stable")
    link, weight = link[by_link], weight[by_link]
    plan = np.repeat(np.arange(len(num_links)), num_links)[by_link]
    repeats = num_entries[plan]
    # No step has more rows than the log has changes; pages that nothing is written to take no memory.
    most = int(repeats.sum())
    found = LinkCounters(np.empty(most, np.int64), np.empty(most, np.int32), np.empty(most))
    filled = 0
    for block in _blocks(link, repeats):
        count = repeats[block]
        if not count.sum():
            continue
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        entry = entries[np.repeat(first_entry[plan[block]], count) + within]
        delta = change[entry] * np.repeat(weight[block], count) * PS_PER_S
        part = _steps(np.repeat(link[block], count), entry, time, delta)
        rows = slice(filled, filled + len(part.time_ps))
        found.time_ps[rows], found.resource[rows], found.value[rows] = part.time_ps, part.resource, part.value
        filled = rows.stop
    return LinkCounters(found.time_ps[:filled], found.resource[:filled], found.value[:filled])


def _blocks(link: IntArray, repeats: IntArray) -> Iterator[slice]:
    """Consecutive uses, all those of a link together, of about :data:`_BLOCK_ROWS` rows."""
    if not len(link):
        return
    starts = np.flatnonzero(np.concatenate([[True], link[1:] != link[:-1]]))
    rows_before = (np.cumsum(repeats) - repeats)[starts]
    heads = starts[np.unique(rows_before // _BLOCK_ROWS, return_index=True)[1]]
    yield from (slice(lo, hi) for lo, hi in pairwise([*heads.tolist(), len(link)]))


def _steps(link: IntArray, entry: IntArray, time: IntArray, delta: FloatArray) -> LinkCounters:
    """Step functions of some links from changes of their use; ``time`` by log entry."""
    order = np.lexsort((entry, link))
    link, when, delta = link[order], time[entry[order]], delta[order]
    total = np.cumsum(delta)
    heads = np.flatnonzero(np.concatenate([[True], link[1:] != link[:-1]]))
    before = np.concatenate([[0.0], total[:-1]])[heads]
    value = total - np.repeat(before, np.diff(np.concatenate([heads, [len(link)]])))
    last = np.concatenate(
        [(link[1:] != link[:-1]) | (when[1:] != when[:-1]), [True]]
    )  # final value per instant
    value = np.where(np.abs(value) < 1.0, 0.0, value)  # below 1 byte/s is rounding
    return LinkCounters(when[last], link[last].astype(np.int32), value[last])


class PlanTable:
    """Plans that ranks used, by row of an op table of ``num_rows``; equal choices share an array."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self.plans: list[CollectivePlan] = []
        self._index: dict[tuple[object, ...], int] = {}
        self._columns: dict[tuple[object, ...], npt.NDArray[np.int32]] = {}

    def of_rank(self, rank: Rank) -> npt.NDArray[np.int32]:
        """Index into ``plans`` for each row that a rank played, -1 where it does not communicate."""
        by_call = {call: self._number(plan) for call, plan in rank.calls.items()}
        choice = tuple(sorted((int(call.rows[0]), number) for call, number in by_call.items()))
        found = self._columns.get(choice)
        if found is None:
            found = self._columns[choice] = np.full(self._num_rows, -1, dtype=np.int32)
            for call, number in by_call.items():
                found[call.rows] = number
        return found

    def _number(self, plan: CollectivePlan) -> int:
        """Plans that differ only in ranks and links are one."""
        key = (plan.collective, plan.num_bytes, plan.algorithm, plan.protocol, plan.channels, plan.alone_ps)
        if key not in self._index:
            self._index[key] = len(self.plans)
            self.plans.append(plan)
        return self._index[key]
