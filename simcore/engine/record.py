"""From what ranks recorded per item to times per op, and from flow rates to link counters: vectorised."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from simcore.collectives.plan import CollectivePlan
from simcore.engine.rank import Rank
from simcore.engine.result import RankTimes
from simcore.engine.tape import Tape
from simcore.graph import OpKind
from simcore.graph.ops import IntArray
from simcore.network.fluid import FluidNetwork
from simcore.units import PS_PER_S


def all_times(ranks: Sequence[Rank], kind: IntArray) -> tuple[RankTimes, ...]:
    """Times of every flat op of each rank; ranks that did the same at the same time share them.

    ``kind`` is the op-table column.  The records of the ranks are used up.
    """
    known: dict[bytes, RankTimes] = {}
    found = []
    for rank in ranks:
        times = _rank_times(rank, kind)
        digest = blake2b()
        for column in (times.ready_ps, times.start_ps, times.end_ps):
            digest.update(column.data)
        found.append(known.setdefault(digest.digest(), times))
    return tuple(found)


def _rank_times(rank: Rank, kind: IntArray) -> RankTimes:
    tape = rank.tape
    item_start = np.array(rank.item_start, dtype=np.int64)
    start = item_start[tape.item_of] + tape.before
    end = item_start[tape.item_of] + tape.after
    item_end = np.array(rank.item_end, dtype=np.int64)
    met = item_end[tape.item_of] >= 0
    end[met] = item_end[tape.item_of][met]
    op_start = np.array(rank.op_start, dtype=np.int64)
    own = op_start >= 0
    start[own] = op_start[own]
    end[own] = np.array(rank.op_end, dtype=np.int64)[own]
    rank.op_start = rank.op_end = array("q")  # most of the record
    ready = start.copy()
    item_ready = np.array(rank.item_ready, dtype=np.int64)[tape.item_of]
    ready[item_ready >= 0] = item_ready[item_ready >= 0]
    size = len(tape.flat)
    flat = RankTimes(np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64))
    flat.ready_ps[tape.order], flat.start_ps[tape.order], flat.end_ps[tape.order] = ready, start, end
    _host_times(rank, tape, kind, flat)
    return flat


def _host_times(rank: Rank, tape: Tape, kind: IntArray, times: RankTimes) -> None:
    """HOST ops last their host time; a SYNC lasts from when the host began to wait until it went on."""
    segment = tape.launches.segment[tape.host_ops]
    base = np.array(rank.host_base, dtype=np.int64)[segment]
    begin = base + tape.launches.offset[tape.host_ops]
    is_sync = kind[tape.flat.row[tape.host_ops]] == OpKind.SYNC
    waited_from = np.array(rank.host_begin, dtype=np.int64)[segment]
    times.ready_ps[tape.host_ops] = times.start_ps[tape.host_ops] = np.where(is_sync, waited_from, begin)
    worked = begin + tape.launches.host_ps[tape.host_ops]
    times.end_ps[tape.host_ops] = np.where(is_sync, base, worked)


@dataclass(frozen=True)
class LinkCounters:
    """Step functions of link use: ``value[i]`` bytes/s on ``resource[i]`` from ``time_ps[i]`` on."""

    time_ps: IntArray
    resource: npt.NDArray[np.int32]
    value: npt.NDArray[np.float64]


def link_counters(network: FluidNetwork) -> LinkCounters:
    """Rates of all links from the network's log of plan rates."""
    plans = list(network.plans.items())
    number = {key: i for i, (key, _) in enumerate(plans)}
    plan_of = np.array([number[key] for key in network.log_plan], dtype=np.int64)
    time = np.array(network.log_time, dtype=np.int64)
    change = np.array(network.log_change, dtype=np.float64)
    links = [np.array([use.link for use in plan.links], dtype=np.int64) for _, plan in plans]
    weights = [np.array([use.weight for use in plan.links]) for _, plan in plans]
    num_uses = np.array([len(link) for link in links], dtype=np.int64)
    if not len(time) or not num_uses.sum():
        return LinkCounters(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0))
    first_use = np.concatenate([[0], np.cumsum(num_uses)])
    repeats = num_uses[plan_of]
    entry = np.repeat(np.arange(len(time)), repeats)
    within = np.arange(len(entry)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    use = first_use[plan_of[entry]] + within
    link = np.concatenate(links)[use]
    delta = change[entry] * np.concatenate(weights)[use] * PS_PER_S
    order = np.lexsort((time[entry], link))
    link, when, delta = link[order], time[entry][order], delta[order]
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
    """Plans that ranks used, by flat op; equal choices share an array."""

    def __init__(self) -> None:
        self.plans: list[CollectivePlan] = []
        self._index: dict[tuple[object, ...], int] = {}
        self._columns: dict[tuple[object, ...], npt.NDArray[np.int32]] = {}

    def of_rank(self, rank: Rank, is_comm: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
        """Index into ``plans`` for each flat op of a rank, -1 where it does not communicate."""
        tape = rank.tape
        by_call = {call: self._number(plan) for call, plan in rank.calls.items()}
        choice = (id(tape), *sorted((call.row, number) for call, number in by_call.items()))
        found = self._columns.get(choice)
        if found is None:
            found = self._columns[choice] = np.full(len(tape.flat), -1, dtype=np.int32)
            by_row = np.full(len(is_comm), -1, dtype=np.int32)
            for call, number in by_call.items():
                by_row[call.row] = number
            found[:] = by_row[tape.flat.row]
        return found

    def _number(self, plan: CollectivePlan) -> int:
        """Plans that differ only in ranks and links are one."""
        key = (plan.collective, plan.num_bytes, plan.algorithm, plan.protocol, plan.channels, plan.alone_ps)
        if key not in self._index:
            self._index[key] = len(self.plans)
            self.plans.append(plan)
        return self._index[key]
