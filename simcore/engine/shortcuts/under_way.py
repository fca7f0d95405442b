"""Kernels of one item of a cell under way, while others change its GPU, as time goes by.

Note [As time goes by]
    What is left of an item's kernels at a change, and in what share of the GPU they go on, is kept.  The next
    change goes on from there; where another one came next the last time, too: each has a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcore.clock import Clock
from simcore.engine.execution import NEVER
from simcore.engine.gpu import DRAWN, ENDED, GIVEN_BACK, RERATED, TAKEN
from simcore.engine.left import Whole
from simcore.engine.shortcuts.apart import DisturbedError
from simcore.engine.shortcuts.runs import Run, Runs

if TYPE_CHECKING:
    from simcore.engine.execution import Execution
    from simcore.engine.left import Left
    from simcore.engine.sequence import Environment, KernelSequence
    from simcore.engine.shortcuts.apart import Changes, Disturbance, GpuKind, Share


class Bench:
    """A GPU of a kind on which nothing but one sequence of kernels is under way, and ``left`` is what others
    leave; see :class:`simcore.engine.execution.Processor`.
    """

    def __init__(self, kind: GpuKind) -> None:
        self.clock = Clock()
        self.num_sms = kind.num_sms
        self.whole = Whole.of(*kind)
        self.alone = self.whole.alone
        self.left = self.whole.left(0, ())
        self.executions: list[Execution] = []
        self.book = Runs()

    def environment(self) -> Environment | None:
        """See the class."""
        return self.left.environment

    def stretch(self, execution: Execution) -> float:  # noqa: ARG002
        """See the class."""
        return 1.0

    def settle(self) -> None:
        """See the class."""
        self.executions[0].settle()

    def rerate(self) -> None:
        """See the class.  Errors: DisturbedError where a flow would be held up."""
        only = self.executions[0]
        if only.kernel is not None:
            left = self.left
            wishes = left.place(self.executions)
            if left.slows(left.level(wishes)):
                raise DisturbedError
            only.set_speed(left.shares(wishes)[0], retirements=False)

    def sms_fell_free(self) -> None:
        """Nobody waits for them."""

    def finished(self, execution: Execution) -> None:
        """Nobody waits for it."""


class _Kernels(Run):
    """Kernels that are due when they are asked to be."""

    is_over = False

    def set(self, time_ps: int) -> None:
        """See :class:`simcore.clock.Movable`."""
        self.due_ps = time_ps

    def unset(self) -> None:
        """See :class:`simcore.clock.Movable`."""
        self.due_ps = NEVER

    def fire(self) -> None:
        """Nobody waits for it."""
        self.is_over, self.due_ps = True, NEVER

    def copy(self) -> _Kernels:
        """The same, to go on in another way."""
        new = object.__new__(_Kernels)
        new.__dict__.update(self.__dict__)
        new.starts, new.ends = self.starts.copy(), self.ends.copy()
        if self.kernel is not None:
            new.kernel = self.kernel.copy()
        return new


class UnderWay:
    """Item ``number`` of a cell, whose kernels begin at ``begin_ps``, up to what changed last.

    ``share``: what others had of the GPU when the cell began; ``calls``: what communication of its own does
    to the GPU.  Times are ps after the cell's begin.
    """

    __slots__ = (
        "_begin_ps", "_bench", "_calls", "_draws", "_has_begun", "_held", "_is_stale", "_kernels", "_made",
        "number",
    )  # fmt: skip

    def __init__(
        self, bench: Bench, number: int, kernels: KernelSequence, launch_ps: int, begin_ps: int, share: Share,
        calls: Changes,
    ) -> None:  # fmt: skip
        self.number = number
        self._bench = bench
        self._begin_ps = begin_ps
        self._held, draws = share
        self._draws = dict(enumerate(draws))  # by flow; those of its own are negative
        self._calls, self._made = calls, 0
        self._is_stale = self._has_begun = False
        self._kernels = _Kernels(bench, kernels, launch_ps)
        self._kernels.book = bench.book

    def copy(self) -> UnderWay:
        """The same, to go on in another way."""
        new = object.__new__(UnderWay)
        new.number, new._bench, new._begin_ps = self.number, self._bench, self._begin_ps
        new._held, new._draws = self._held, self._draws.copy()
        new._calls, new._made = self._calls, self._made
        new._is_stale, new._has_begun = self._is_stale, self._has_begun
        new._kernels = self._kernels.copy()
        return new

    def calls_at(self, time_ps: int) -> bool:
        """Whether communication of its own changes the GPU then."""
        return any(since == time_ps for since, _ in self._calls)

    def make(self, changes: Changes) -> None:
        """Have others make ``changes``, the next ones.  Errors: DisturbedError where they are concerned."""
        self._bench.executions = [self._kernels]
        stop = len(changes)
        for place, (since, change) in enumerate(changes, 1):
            if self._made < len(self._calls):
                self._make_calls(since)
            is_last = place == stop or changes[place][0] > since or changes[place][1].kind != DRAWN
            self._make(since, change, change.number, is_last=is_last)

    def undisturbed(self) -> UnderWay:
        """Where nothing of the cell is still to change its GPU: this one, or another when that has been."""
        if self._made == len(self._calls):
            return self
        later = self.copy()
        later._bench.executions = [later._kernels]
        later._make_calls(NEVER)
        return later

    @property
    def share(self) -> Share:
        """What others, and communication of its own, have of the GPU."""
        return self._held, tuple(self._draws.values())

    def end_ps(self) -> int:
        """When the last kernel ends if nothing changes any more.  Errors: DisturbedError if that is not
        known.
        """
        if self._is_stale:
            raise DisturbedError
        self._bench.left = self._left()
        end_ps = self._kernels.end_ps()
        if end_ps >= NEVER:
            raise DisturbedError
        return end_ps

    def play(self) -> Execution:
        """Play its kernels to their end; returns them."""
        self._bench.executions = [self._kernels]
        self._play_until(NEVER)
        return self._kernels

    def _left(self) -> Left:
        return self._bench.whole.left(self._held, tuple(self._draws.values()))

    def _make_calls(self, before_ps: int) -> None:
        calls = self._calls
        while self._made < len(calls) and calls[self._made][0] < before_ps:
            since, change = calls[self._made]
            self._made += 1
            self._make(since, change, -1 - change.number)

    def _play_until(self, time_ps: int) -> bool:
        """Play what is due before a time, and be there; returns whether kernels are under way then."""
        kernels, bench = self._kernels, self._bench
        clock = bench.clock
        if not self._has_begun and time_ps > self._begin_ps:
            self._has_begun = True
            clock.now, bench.left = self._begin_ps, self._left()
            kernels.next_kernel()
        if self._has_begun and kernels.due_ps < time_ps:
            bench.left = self._left()
            while kernels.due_ps < time_ps:
                clock.now = kernels.due_ps
                kernels.due()
        clock.now = time_ps
        return self._has_begun and not kernels.is_over

    def _make(self, since_ps: int, change: Disturbance, flow: int, *, is_last: bool = True) -> None:
        """As :class:`simcore.engine.gpu.Gpu` has it; kernels need not be rated again for a flow that is not
        the ``is_last`` of several that come at once.
        """
        kernels, kind = self._kernels, change.kind
        is_busy = self._play_until(since_ps)
        if is_busy:
            kernels.settle()
        if kind == TAKEN:
            used = kernels.sms_in_use if is_busy else 0
            if change.number > self._bench.num_sms - self._held - used:
                raise DisturbedError
            self._held += change.number
        elif kind == GIVEN_BACK:
            self._held -= change.number
        elif kind == DRAWN:
            self._draws[flow] = change.actual, change.desired
        elif kind == ENDED:
            self._draws.pop(flow, None)
        if kind == ENDED:
            self._is_stale = is_busy
        elif is_last and is_busy and (kind != RERATED or self._is_stale):
            self._is_stale = False
            self._bench.left = self._left()
            self._bench.rerate()
