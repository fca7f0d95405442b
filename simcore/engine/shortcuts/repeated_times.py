"""Times of a whole job that repeats itself: made class by class when somebody looks at them.

A job of hundreds of microbatches has millions of op executions, whose times are the largest columns of a run;
those of the shortened job say all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from simcore.engine.launches import set_host_times
from simcore.engine.result import MadeAnew, RankTimes
from simcore.records import dataclass

if TYPE_CHECKING:
    from simcore.engine.shortcuts.host_times import HostSchedule
    from simcore.engine.shortcuts.repeats import Shortened
    from simcore.graph.ops import IntArray


@dataclass(frozen=True, eq=False, slots=True)
class PlayedRank:
    """One rank's times in a shortened job, ps since its host began: the repetition of its ``program`` that
    ends before flat op ``cut`` comes again and again in the whole job, each time ``period_ps`` later.
    """

    short: Shortened
    program: int
    cut: int
    period_ps: int
    times: RankTimes

    def played_on(self, column: IntArray) -> IntArray:
        """A column of times of ops in the whole job, from that in the shortened one."""
        return self.short.played_on(self.program, self.cut, column, self.period_ps)

    def repeated(self) -> RankTimes:
        """Times in the whole job, but for those of what the host does itself."""
        times = self.times
        columns = (times.ready_ps, times.start_ps, times.end_ps)
        return RankTimes(*(self.played_on(column) for column in columns))

    def checked(self, short_host: HostSchedule, whole_host: HostSchedule) -> RepeatedRank | None:
        """The rank in the whole job; None where a launch, there or here, holds up anything."""
        times = self.repeated()
        was, now = short_host.play(self.times.end_ps), whole_host.play(times.end_ps)
        # As late as in the shortened job, or there and here before the op is ready otherwise.
        arrived, arrives = self.played_on(was.launched_ps), now.launched_ps
        early = (arrived < times.ready_ps) & (arrives <= times.ready_ps)
        if not (early | (arrives == arrived))[whole_host.on_gpu].all():
            return None
        ops = whole_host.host_ops
        set_host_times(whole_host.launches, ops, whole_host.is_sync, now.begin_ps, now.base_ps, times)
        step_ps = int(times.end_ps.max()) if len(times.end_ps) else 0
        return RepeatedRank(self, ops, times.start_ps[ops], times.end_ps[ops], len(times.end_ps), step_ps)


@dataclass(frozen=True, eq=False, slots=True)
class RepeatedRank:
    """One rank's times in the whole job: of the flat ops ``host_ops``, which its host does (they start when
    they are ready), they are kept, of the others made from ``played``; all ``num_ops`` have ended at
    ``step_ps``.
    """

    played: PlayedRank
    host_ops: IntArray
    host_start_ps: IntArray
    host_end_ps: IntArray
    num_ops: int
    step_ps: int

    @property
    def ready_ps(self) -> IntArray:
        """As :class:`RankTimes` has it, as are the others: of all ops."""
        return self._whole(self.played.times.ready_ps, self.host_start_ps)

    @property
    def start_ps(self) -> IntArray:
        """When ops start."""
        return self._whole(self.played.times.start_ps, self.host_start_ps)

    @property
    def end_ps(self) -> IntArray:
        """When ops end."""
        return self._whole(self.played.times.end_ps, self.host_end_ps)

    def _whole(self, column: IntArray, of_host: IntArray) -> IntArray:
        found = self.played.played_on(column)
        found[self.host_ops] = of_host
        return found

    def times(self) -> RankTimes:
        """Of all ops."""
        return RankTimes(self.ready_ps, self.start_ps, self.end_ps)


@dataclass(frozen=True, eq=False, slots=True)
class RepeatedTimes(MadeAnew[RankTimes]):
    """Times by class of ranks."""

    ranks: tuple[RepeatedRank, ...]

    def __len__(self) -> int:
        return len(self.ranks)

    @overload
    def __getitem__(self, number: int) -> RankTimes: ...
    @overload
    def __getitem__(self, number: slice) -> list[RankTimes]: ...
    def __getitem__(self, number: int | slice) -> RankTimes | list[RankTimes]:
        if isinstance(number, slice):
            return [rank.times() for rank in self.ranks[number]]
        return self.ranks[number].times()

    def origin(self, number: int) -> RepeatedRank:
        """See :class:`MadeAnew`."""
        return self.ranks[number]

    def of(self, numbers: Sequence[int]) -> RepeatedTimes:
        """See :class:`MadeAnew`."""
        return RepeatedTimes(tuple(self.ranks[number] for number in numbers))
