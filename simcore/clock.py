"""Simulated time on SimPy: an environment that counts events, signals and movable timers.

Three small things on top of SimPy that its stock events do not offer: time is whole picoseconds and the
queue is drained in one loop that counts events; a :class:`Signal` resumes its waiters at once instead of
queueing another event at the same time; a :class:`Movable` event has a due time that can be moved, as a
completion must be when the rate of what it waits for changes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any

from simpy import Environment
from simpy.events import NORMAL, PENDING, Event

from simcore.errors import InputError

#: End of time, 53 days: twice as much still fits in int64, so that sums of two times never wrap.
LAST_PS = 1 << 62

Progress = Callable[[int], None]
_REPORT_EVERY = 1 << 14  # events between two progress reports


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection inside."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Clock(Environment):
    """A SimPy environment whose time is an int in picoseconds, starting at 0."""

    def __init__(self) -> None:
        super().__init__(0)
        self.num_events = 0
        self._caught_up = 0  # events processed while the clock was set back

    @property
    def now(self) -> int:
        """Current simulated time, ps."""
        return self._now  # type: ignore[return-value]

    def drain(self, progress: Progress | None = None) -> int:
        """Process events until none is left; returns how many were processed in all.

        The body is SimPy's own ``step`` written out, since it runs once per event.  ``progress`` is
        called with the event count from time to time.
        """
        queue = self._queue
        count = self.num_events
        with uncollected():  # nothing here makes cycles, and millions of young objects would be scanned
            count = self._process_all(queue, count, progress)
        self.num_events = count + self._caught_up
        self._caught_up = 0
        return self.num_events

    @contextmanager
    def back_to(self, time_ps: int) -> Iterator[None]:
        """Set the clock back: what the block starts, and what follows from it, happens up to now.

        For what has had nothing to do with anything else since ``time_ps``.  Events due now or later join
        the queue.
        """
        queue, now = self._queue, self._now
        self._queue, self._now = [], time_ps
        yield
        own = self._queue
        while own and own[0][0] < now:
            self._now, _, _, event = heappop(own)
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
            for callback in callbacks:
                callback(event)
            self._caught_up += 1
        self._queue, self._now = queue, now
        for entry in own:
            heappush(queue, entry)

    def _process_all(self, queue: list[Any], count: int, progress: Progress | None) -> int:
        while queue:
            self._now, _, _, event = heappop(queue)
            callbacks, event.callbacks = event.callbacks, None
            for callback in callbacks:
                callback(event)
            if not event._ok and not hasattr(event, "_defused"):
                raise event._value
            count += 1
            if progress is not None and not count % _REPORT_EVERY:
                progress(count)
        return count


class Signal(Event):
    """An event that happens when it is fired: its waiters run at once, in the order they came."""

    env: Clock

    def __init__(self, clock: Clock) -> None:
        self.env = clock
        self.callbacks = []
        self._value = PENDING

    def fire(self) -> None:
        """Resume everybody who waits.  Firing twice is an error of the caller."""
        assert self.callbacks is not None, "signal fired twice"
        self._ok = True
        self._value = None
        callbacks, self.callbacks = self.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(self)


class _Wake(Event):
    """One entry of a movable event in SimPy's queue; stale when the event has been moved since."""

    def __init__(self, event: Movable) -> None:
        self.callbacks = [event._woken]
        self._ok = True
        self._value = None


class Movable(Signal):
    """A signal with a due time that can be moved: only the latest :meth:`set` counts.

    Subclasses say in :meth:`due` what happens at that time; they may set another one or fire.
    """

    def __init__(self, clock: Clock) -> None:
        self.env = clock
        self.callbacks = []
        self._value = PENDING
        self._wake: _Wake | None = None

    def set(self, time_ps: int) -> None:
        """Become due at ``time_ps`` (not before now), instead of at any time set before.

        InputError beyond :data:`LAST_PS`.
        """
        if time_ps > LAST_PS:
            raise InputError("the step takes more than 53 days, which 64 bits of ps cannot tell; check rates")
        wake = self._wake = _Wake(self)
        clock = self.env
        heappush(clock._queue, (time_ps, NORMAL, next(clock._eid), wake))

    def unset(self) -> None:
        """Do not become due until set again."""
        self._wake = None

    def due(self) -> None:
        """The time has come."""
        self.fire()

    def _woken(self, wake: Event) -> None:
        if wake is self._wake:
            self._wake = None
            self.due()
