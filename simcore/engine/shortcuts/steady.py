"""Steady states: what repeats to the picosecond is simulated a few times and then said, not simulated.

Note [Steady state]
    A pipeline repeats the same instances of templates from microbatch to microbatch.  The job is simulated
    with most of these repetitions left out (:mod:`.repeats`).  If at some instant ``until``, on all ranks,
    everything under way is what was under way one period before and has been so since it began, then what
    follows next is what followed then: the whole job repeats that period as often as repetitions were left
    out, and goes on as the shortened one did.

    Ranks that have nothing to do with each other before that (:mod:`.ties`; the replicas of a pipeline, say,
    until they reduce gradients) each have a steady state of their own, at an instant of its own.  Where their
    periods differ, because one replica's messages have further to go, all that is left out makes some of them
    later than the others, and what they do together later is another thing than in the shortened job.  It is
    then simulated once more, with these ranks beginning by so much later: what they do alone is the same,
    later, and they meet as in the whole job.  The first time is given up as soon as it has told their paces
    (:mod:`.pace`).

    The host runs ahead by a bounded number of launches, whatever a microbatch is.  When it launches in the
    whole job is worked out afterwards; where that is not when it did, shifted, the launch must have
    held up nothing, neither in the shortened job nor in the whole one.

    What has repeated is told op by op, not by whole repetitions: a pipeline of chunks whose stages settle
    while it fills needs two of its long repetitions.  ``until`` is no later than what the shortened job does
    first that the whole one would not, nor than a period after what stood there one repetition before: a rank
    that has nothing left to repeat, and waits, would not wait in the whole job.

    Ranks that settle one after the other may all be steady, but not yet for a period in common when the
    repetitions end.  How many more that takes is known then, and the job is shortened once more, by less.

    Without a steady state, or with launches that matter, there is no result, and the whole job has to be
    simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from simcore.distinct import distinct
from simcore.engine.record import joined
from simcore.engine.result import Answered, LinkLog, PlayedOut, RankTimes
from simcore.engine.shortcuts.host_times import HostSchedule
from simcore.engine.shortcuts.repeated_times import PlayedRank, RepeatedRank, RepeatedTimes
from simcore.engine.shortcuts.repeats import FEW, Repeating
from simcore.engine.shortcuts.settling import OutOfStepError, Settling, StuckError
from simcore.engine.shortcuts.ties import parts_of
from simcore.errors import SimcoreError
from simcore.graph.kinds import is_on_host
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.engine.launches import HostCosts
    from simcore.engine.result import SimulationResult
    from simcore.engine.shortcuts.repeats import Shortened
    from simcore.engine.shortcuts.ties import Parts, Tie
    from simcore.graph import Graph
    from simcore.graph.graph import Int32Array
    from simcore.graph.kinds import BoolArray
    from simcore.graph.ops import IntArray

_T = TypeVar("_T", bound=np.generic)
_NEVER = np.iinfo(np.int64).max

#: Simulates a graph whose classes of ranks begin at these times, ps (None: 0), their pace
#: being watched: the result, and their ties.
Play = Callable[
    ["Graph", "IntArray | None", "Settling | None"], "tuple[SimulationResult, Sequence[Sequence[Tie]]]"
]


@dataclass(frozen=True, slots=True)
class SteadyState:
    """From ``until_ps - period_ps`` to ``until_ps`` (by class of ranks) is one period, which the whole job
    goes through ``times`` more.  ``cut[c]`` is the flat op of class ``c`` behind the steady part.
    """

    period_ps: IntArray
    until_ps: IntArray
    times: int
    cut: tuple[int, ...]
    parts: Parts

    @property
    def begin_ps(self) -> IntArray:
        """When classes have to begin so that what joins them comes as in the whole job."""
        late: IntArray = self.times * (self.period_ps - self.period_ps.min(initial=_NEVER))
        return late

    def is_in_step(self, begin_ps: IntArray | None) -> bool:
        """Whether classes that began at ``begin_ps`` come together as in the whole job."""
        late = self.begin_ps if begin_ps is None else self.begin_ps - begin_ps
        return not any(self.parts.joining) or len(distinct(late)) <= 1

    def repeated(self, c: int, time_ps: IntArray) -> tuple[Int32Array, Int32Array]:
        """What happens in the part of class ``c`` at ``time_ps`` (ascending), played through the periods:
        which of it, and how many of them later.
        """
        until, period = int(self.until_ps[c]), int(self.period_ps[c])
        begin, end = np.searchsorted(time_ps, [until - period, until]).tolist()
        number = np.arange(len(time_ps), dtype=np.int32)
        entry = np.concatenate([number[:end], np.tile(number[begin:end], self.times), number[end:]])
        counts = [end, *[end - begin] * self.times, len(time_ps) - end]
        later = np.repeat(np.arange(self.times + 2, dtype=np.int32), counts)
        return entry, np.minimum(later, self.times)


@dataclass(frozen=True, slots=True)
class _Steady:
    """Part of one rank's step: flat ops up to ``cut`` that are each ``period_ps`` after those one repetition
    before; nothing else has been under way since ``since_ps``, nor is before ``until_ps``, nor was a period
    before.
    """

    period_ps: int
    cut: int
    since_ps: int
    until_ps: int


def repeated(
    graph: Graph, play: Play, host_costs_of: Callable[[IntArray], Sequence[HostCosts]]
) -> SimulationResult | None:
    """The result of ``graph`` from that of a shorter job, as ``play`` finds it; None without a steady state.

    ``host_costs_of``: what launches cost the hosts of some ranks.
    """
    repeating = Repeating.of(graph)
    if repeating is None or repeating.kept(FEW) is None:
        return None
    settling = Settling(repeating)
    begin: IntArray | None = None
    events = 0
    try:
        try:
            result, ties = play(settling.graph, None, settling)
        except OutOfStepError as out:
            begin, events = out.begin_ps, out.events
            result, ties = play(settling.graph, begin, None)
    except (SimcoreError, StuckError):  # the whole job says it in its own words
        return None
    short = settling.found
    if short is None:
        return result
    result = replace(result, engine_events=events + result.engine_events)
    found = steady_state(short, result, ties, settling.period_ps)
    if found is None or not found.is_in_step(begin):
        return None
    return whole_result(short, result, found, host_costs_of(result.representatives), begin, ties)


def steady_state(
    short: Shortened, result: SimulationResult, ties: Sequence[Sequence[Tie]], period_ps: IntArray
) -> SteadyState | None:
    """The steady state of a shortened job whose classes have ``ties`` and repeat themselves each
    ``period_ps``, None where they do not.
    """
    graph = short.graph
    program_of = graph.program_of_rank[result.representatives].tolist()
    known: dict[tuple[int, RankTimes, int], _Steady | None] = {}
    steady: list[_Steady] = []
    for key in zip(program_of, result.times, period_ps.tolist(), strict=True):
        if key not in known:
            known[key] = _steady_part(short, *key)
        found = known[key]
        if found is None:
            return None
        steady.append(found)
    rows = [graph.flat_ops(graph.programs[program]).row for program in program_of]
    used = {
        (program, cut): _marked(rows[c][:cut], len(graph.ops))
        for c, (program, cut) in enumerate(zip(program_of, [one.cut for one in steady], strict=True))
    }
    parts = parts_of(ties, lambda c, tie: bool(used[program_of[c], steady[c].cut][tie.rows].any()))
    joined = _NEVER
    for c, of_class in enumerate(parts.joining):
        if of_class:
            joins = _marked(np.concatenate([tie.rows for tie in of_class]), len(graph.ops))
            joined = min(joined, int(result.times[c].ready_ps[joins[rows[c]]].min(initial=_NEVER)))
    period = np.array([one.period_ps for one in steady], dtype=np.int64)
    since, until = np.zeros_like(period), np.full_like(period, joined)
    np.maximum.at(since, parts.of_class, [one.since_ps for one in steady])
    np.minimum.at(until, parts.of_class, [one.until_ps for one in steady])
    since, until = since[parts.of_class], until[parts.of_class]
    if (period != period[parts.of_class]).any():
        return None
    if (until <= since).any():  # what is left out is behind that: it would only begin later
        return None
    on_gpu = {program: _on_gpu(graph, program) for program in set(program_of)}
    checked: set[tuple[RankTimes, int, int]] = set()
    for c, (program, times) in enumerate(zip(program_of, result.times, strict=True)):
        bounds = (times, int(until[c]), int(since[c]))
        if bounds in checked:
            continue
        checked.add(bounds)
        under_way = (times.ready_ps < until[c]) & (times.end_ps >= until[c]) & on_gpu[program]
        oldest = int(times.ready_ps[under_way].min(initial=_NEVER))
        if oldest < since[c]:
            return None
    return SteadyState(period, until, short.left_out, tuple(one.cut for one in steady), parts)


def _on_gpu(graph: Graph, program: int) -> BoolArray:
    return ~is_on_host(graph.ops.kind[graph.flat_ops(graph.programs[program]).row])


def _steady_part(short: Shortened, program: int, times: RankTimes, period: int) -> _Steady | None:
    """The longest stretch of ops ``period`` after those one repetition before, the latest of those."""
    begin, size, stop = short.repeated(program)
    on_gpu = _on_gpu(short.graph, program)
    ops = begin + size + np.flatnonzero(on_gpu[begin + size : stop])
    repeats = np.ones(len(ops), dtype=np.bool_)
    for column in (times.ready_ps, times.start_ps, times.end_ps):
        repeats &= column[ops] - column[ops - size] == period
    bounds = np.flatnonzero(np.concatenate([[True], repeats[1:] != repeats[:-1], [True]]))
    lengths = np.diff(bounds) * repeats[bounds[:-1]]
    longest = len(lengths) - 1 - int(lengths[::-1].argmax())
    if lengths[longest] < 1:
        return None
    first = int(ops[bounds[longest]])
    cut = int(ops[bounds[longest + 1] - 1]) + 1

    def ended(stop: int) -> int:
        return int(times.end_ps[:stop][on_gpu[:stop]].max(initial=0))

    def begun(begin: int, stop: int | None = None) -> int:
        return int(times.ready_ps[begin:stop][on_gpu[begin:stop]].min(initial=_NEVER - period))

    since = max(ended(first), ended(first - size) + period)
    return _Steady(period, cut, since, min(begun(cut), begun(cut - size, cut) + period))


def _marked(numbers: npt.NDArray[Any], size: int) -> BoolArray:
    marks = np.zeros(size, dtype=np.bool_)
    marks[numbers] = True
    return marks


def whole_result(
    short: Shortened,
    result: SimulationResult,
    steady: SteadyState,
    costs_of_class: Sequence[HostCosts],
    begin_ps: IntArray | None = None,
    ties: Sequence[Sequence[Tie]] = (),
) -> SimulationResult | None:
    """The result of the whole job from that of the shortened one; None where launches matter.

    ``costs_of_class``: what launches cost the host of each class, ``begin_ps``: when it began.
    """
    program_of = short.whole.program_of_rank[result.representatives].tolist()
    last = -1
    hosts: dict[HostCosts, tuple[HostSchedule, HostSchedule]] = {}  # of one program at a time: they are large
    made: dict[tuple[HostCosts, RankTimes], RepeatedRank] = {}
    ranks: dict[int, RepeatedRank] = {}
    for program, c in sorted(zip(program_of, range(len(program_of)), strict=True)):
        if program != last:
            last = program
            for of_program in (hosts, made):
                of_program.clear()
        times, costs = result.times[c], costs_of_class[c]
        key = (costs, times)  # of classes that began together, then
        if key not in made:
            if costs not in hosts:
                hosts[costs] = (
                    HostSchedule.of(short.graph, short.graph.programs[program], costs),
                    HostSchedule.of(short.whole, short.whole.programs[program], costs),
                )
            if began := 0 if begin_ps is None else int(begin_ps[c]):
                times = RankTimes(times.ready_ps - began, times.start_ps - began, times.end_ps - began)
            played = PlayedRank(short, program, steady.cut[c], int(steady.period_ps[c]), times)
            found = played.checked(*hosts[costs])
            if found is None:
                return None
            made[key] = found
        ranks[c] = made[key]
    by_class = tuple(ranks[c] for c in range(len(ranks)))
    return replace(
        result,
        times=RepeatedTimes(by_class),
        alone_ps=_of_whole(result.alone_ps, short.whole),
        plan_of=_of_whole(result.plan_of, short.whole),
        step_ps=max((rank.step_ps for rank in by_class), default=0),
        log=_whole_log(result.log, steady, begin_ps, ties) if result.log is not None else None,
        answered=_answered(result, [rank.num_ops for rank in by_class]),
    )


def _of_whole(columns: Sequence[npt.NDArray[_T]], whole: Graph) -> PlayedOut[_T]:
    assert isinstance(columns, PlayedOut), "a job with noise has no steady state"
    return replace(columns, graph=whole)


def _whole_log(
    log: LinkLog, steady: SteadyState, begin_ps: IntArray | None, ties: Sequence[Sequence[Tie]]
) -> LinkLog:
    """What happens on links in the whole job, part by part."""
    part_of = steady.parts.of_plans(ties)
    part = np.array([part_of.get(plan, -1) for plan in log.plans], dtype=np.int32)[log.plan]
    entries, times = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    for number in distinct(part).tolist():
        mine = np.flatnonzero(part == number).astype(np.int32)
        if number >= 0:
            began = 0 if begin_ps is None else int(begin_ps[number])
            entry, later = steady.repeated(number, log.time_ps[mine])
            # As 64 bits: numpy 1 multiplies 32 bits by a number in 32.
            shift = np.multiply(later, steady.period_ps[number], dtype=np.int64)
            time = log.time_ps[mine][entry] + shift - began
            mine = mine[entry]
        else:  # after all parts have gone through their periods
            time = log.time_ps[mine] + steady.times * int(steady.period_ps.min())
        entries.append(mine)
        times.append(time)
    is_one = len(times) <= 2
    entry, time = joined(entries), joined(times)
    if not is_one:
        order = np.lexsort((entry, time))
        entry, time = entry[order], time[order]
    return LinkLog(time, log.plan[entry], log.change[entry], log.plans)


def _answered(short: SimulationResult, num_ops: Sequence[int]) -> Answered:
    """Who answered for the op executions of the whole job, of which classes have ``num_ops``."""
    sizes = np.array(num_ops)
    total, simulated = int(sizes[short.class_of].sum()), int(sizes.sum())
    before = short.answered
    steady = simulated - (before.num_ops - before.folded)
    return replace(before, num_ops=total, folded=total - simulated, steady=steady)
