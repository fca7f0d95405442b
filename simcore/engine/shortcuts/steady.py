"""Steady states: what repeats to the picosecond is simulated a few times and then said, not simulated.

Note [Steady state]
    A pipeline repeats the same instances of templates from microbatch to microbatch.  The job is simulated
    with most of these repetitions left out (:mod:`.repeats`).  If at some instant ``until``, on all ranks,
    everything under way is what was under way one period before and has been so since it began, then what
    follows next is what followed then: the whole job repeats that period as often as repetitions were left
    out, and goes on as the shortened one did.

    The host runs ahead by a bounded number of launches, whatever a microbatch is.  When it launches in the
    whole job is worked out afterwards; where that is not when it did, shifted, the launch must have
    held up nothing, neither in the shortened job nor in the whole one.

    Without a steady state, or with launches that matter, there is no result, and the whole job has to be
    simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from simcore.engine.launches import set_host_times
from simcore.engine.result import Answered, LinkLog, RankTimes
from simcore.engine.shortcuts.host_times import HostSchedule
from simcore.engine.shortcuts.repeats import shortened
from simcore.errors import SimcoreError
from simcore.graph.kinds import is_on_host

if TYPE_CHECKING:
    from simcore.engine.launches import HostCosts
    from simcore.engine.result import SimulationResult
    from simcore.engine.shortcuts.repeats import Repeats, Shortened
    from simcore.graph import Graph
    from simcore.graph.kinds import BoolArray
    from simcore.graph.ops import IntArray

_T = TypeVar("_T")
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class SteadyState:
    """From ``until_ps - period_ps`` to ``until_ps`` is one period, which the whole job goes through ``times``
    more.  ``copy[c]`` is a repetition of class ``c`` within the steady part.
    """

    period_ps: int
    until_ps: int
    times: int
    copy: tuple[int, ...]

    def repeated(self, time_ps: IntArray) -> tuple[IntArray, IntArray]:
        """What happens at ``time_ps`` (ascending), played through the periods: which, and how many later."""
        begin, end = np.searchsorted(time_ps, [self.until_ps - self.period_ps, self.until_ps]).tolist()
        period = np.arange(begin, end)
        entry = np.concatenate([np.arange(end), np.tile(period, self.times), np.arange(end, len(time_ps))])
        later = np.repeat(np.arange(self.times + 2), [end, *[len(period)] * self.times, len(time_ps) - end])
        return entry, np.minimum(later, self.times)


@dataclass(frozen=True, slots=True)
class _Steady:
    """Part of one rank's step: repetitions ``first`` to ``last`` are each ``period`` after the one before,
    but for ``first``; nothing else is under way from ``since`` to ``until``.
    """

    first: int
    last: int
    since_ps: int
    until_ps: int


def repeated(
    graph: Graph,
    play: Callable[[Graph], SimulationResult],
    host_costs_of: Callable[[IntArray], Sequence[HostCosts]],
) -> SimulationResult | None:
    """The result of ``graph`` from that of a shorter job, as ``play`` finds it; None without a steady state.

    ``host_costs_of``: what launches cost the hosts of some ranks.
    """
    short = shortened(graph)
    if short is None:
        return None
    try:
        played = [play(short.graph)]
    except SimcoreError:  # the whole job says it in its own words
        return None
    steady = steady_state(short, played[0])
    if steady is None:
        return None
    costs = host_costs_of(played[0].representatives)
    return whole_result(short, played.pop(), steady, costs)  # who uses it up holds it alone


def steady_state(short: Shortened, result: SimulationResult) -> SteadyState | None:
    """The steady state of a shortened job, None where there is none."""
    graph = short.graph
    program_of = graph.program_of_rank[result.representatives].tolist()
    period = 0
    parts: dict[tuple[int, RankTimes], _Steady] = {}
    for program, times in zip(program_of, result.times, strict=True):
        if (program, times) in parts:
            continue
        shifts = _shifts(short, program, times)
        period = period or int(shifts[len(shifts) // 2])
        if period <= 0:
            return None
        found = _steady_part(short, program, times, shifts, period)
        if found is None:
            return None
        parts[program, times] = found
    since = max((part.since_ps for part in parts.values()), default=_NEVER)
    until = min((part.until_ps for part in parts.values()), default=0)
    before = until - period
    if before <= since:
        return None
    for program, times in zip(program_of, result.times, strict=True):
        under_way = (times.ready_ps < before) & (times.end_ps >= before) & _on_gpu(graph, program)
        if (times.ready_ps[under_way] < since).any():
            return None
    copies = [parts[program, times].last for program, times in zip(program_of, result.times, strict=True)]
    return SteadyState(period, until, short.left_out, tuple(copies))


def _copies(short: Shortened, program: int) -> tuple[Repeats, int, int, int]:
    """Repetitions of a program of the shortened job: how many, the first one's first op, ops of each."""
    repeats = short.repeats[program]
    first = short.graph.flat_ops(short.graph.programs[program]).first
    begin = int(first[repeats.first])
    return repeats, repeats.copies - short.left_out, begin, int(first[repeats.first + repeats.size]) - begin


def _on_gpu(graph: Graph, program: int) -> BoolArray:
    return ~is_on_host(graph.ops.kind[graph.flat_ops(graph.programs[program]).row])


def _shifts(short: Shortened, program: int, times: RankTimes) -> IntArray:
    """How much later each repetition is than the one before, -1 where not everything is equally so."""
    _, copies, begin, size = _copies(short, program)
    mine = slice(begin, begin + copies * size)
    counts = _on_gpu(short.graph, program)[mine].reshape(copies, size)[0]
    low, high = np.full(copies - 1, _NEVER), np.zeros(copies - 1, dtype=np.int64)
    for column in (times.ready_ps, times.start_ps, times.end_ps):
        later = np.diff(column[mine].reshape(copies, size)[:, counts], axis=0)
        low = np.minimum(low, later.min(axis=1, initial=_NEVER))
        high = np.maximum(high, later.max(axis=1, initial=0))
    return np.where(low == high, low, -1)


def _steady_part(
    short: Shortened, program: int, times: RankTimes, shifts: IntArray, period: int
) -> _Steady | None:
    """The longest stretch of repetitions that are ``period`` apart."""
    bounds = np.flatnonzero(np.concatenate([[True], shifts != period, [True]]))
    lengths = np.diff(bounds) - 1
    longest = int(lengths.argmax())
    if lengths[longest] < 1:
        return None
    first, last = int(bounds[longest]), int(bounds[longest] + lengths[longest])
    _, _, begin, size = _copies(short, program)
    on_gpu = _on_gpu(short.graph, program)
    before, after = begin + (first + 1) * size, begin + (last + 1) * size
    since = int(times.end_ps[:before][on_gpu[:before]].max(initial=0))
    later = times.ready_ps[after:][on_gpu[after:]]
    return _Steady(first, last, since, int(later.min(initial=_NEVER)))


def whole_result(
    short: Shortened,
    result: SimulationResult,
    steady: SteadyState,
    costs_of_class: Sequence[HostCosts],
) -> SimulationResult | None:
    """The result of the whole job from that of the shortened one; None where launches matter.

    ``costs_of_class``: what launches cost the host of each class.  What ``result`` tells of a class is let go
    of when that of the whole job is there, if nobody else holds it: they are the largest columns of a run.
    """
    program_of = short.whole.program_of_rank[result.representatives].tolist()
    given = dict(enumerate(zip(result.times, result.alone_ps, result.plan_of, strict=True)))
    result = replace(result, times=(), alone_ps=(), plan_of=())
    last = -1
    hosts: dict[HostCosts, tuple[HostSchedule, HostSchedule]] = {}  # of one program at a time, as the next
    made: dict[tuple[HostCosts, RankTimes], RankTimes] = {}
    columns: dict[tuple[int, bytes], npt.NDArray[Any]] = {}
    times: dict[int, RankTimes] = {}
    alone: dict[int, npt.NDArray[Any]] = {}
    plans: dict[int, npt.NDArray[Any]] = {}
    for program, c in sorted(zip(program_of, range(len(program_of)), strict=True)):
        if program != last:
            last = program
            for of_program in (hosts, made, columns):
                of_program.clear()
        copy, costs = steady.copy[c], costs_of_class[c]
        its_times, its_alone, its_plans = given.pop(c)
        origin, later = short.origin(program, copy)
        key = (costs, its_times)
        if key not in made:
            if costs not in hosts:
                hosts[costs] = (
                    HostSchedule.of(short.graph, short.graph.programs[program], costs),
                    HostSchedule.of(short.whole, short.whole.programs[program], costs),
                )
            found = _whole_times(*hosts[costs], its_times, origin, later * steady.period_ps)
            if found is None:
                return None
            made[key] = found
        times[c] = made[key]
        for column, by_class in ((its_alone, alone), (its_plans, plans)):
            of = (copy, blake2b(column.data).digest())
            by_class[c] = columns[of] if of in columns else columns.setdefault(of, column[origin])
    return replace(
        result,
        times=_by_class(times),
        alone_ps=_by_class(alone),
        plan_of=_by_class(plans),
        step_ps=max((int(t.end_ps.max()) for t in times.values() if len(t.end_ps)), default=0),
        log=_whole_log(result.log, steady) if result.log is not None else None,
        answered=_answered(result, _by_class(times)),
    )


def _by_class(found: Mapping[int, _T]) -> tuple[_T, ...]:
    return tuple(found[c] for c in range(len(found)))


def _whole_log(log: LinkLog, steady: SteadyState) -> LinkLog:
    entry, later = steady.repeated(log.time_ps)
    return LinkLog(
        log.time_ps[entry] + later * steady.period_ps, log.plan[entry], log.change[entry], log.plans
    )


def _answered(short: SimulationResult, times: Sequence[RankTimes]) -> Answered:
    """Who answered for the op executions of the whole job, whose classes have ``times``."""
    sizes = np.array([len(one.end_ps) for one in times])
    total, simulated = int(sizes[short.class_of].sum()), int(sizes.sum())
    before = short.answered
    steady = simulated - (before.num_ops - before.folded)
    return replace(before, num_ops=total, folded=total - simulated, steady=steady)


def _whole_times(
    short_host: HostSchedule,
    whole_host: HostSchedule,
    short: RankTimes,
    origin: IntArray,
    shift: IntArray,
) -> RankTimes | None:
    times = RankTimes(
        short.ready_ps[origin] + shift, short.start_ps[origin] + shift, short.end_ps[origin] + shift
    )
    was, now = short_host.play(short.end_ps), whole_host.play(times.end_ps)
    arrived, arrives = was.launched_ps[origin], now.launched_ps
    early = (arrived < short.ready_ps[origin]) & (arrives <= times.ready_ps)
    same = arrives == arrived + shift
    if not (early | same)[whole_host.on_gpu].all():
        return None
    set_host_times(
        whole_host.launches, whole_host.host_ops, whole_host.is_sync, now.begin_ps, now.base_ps, times
    )
    return times
