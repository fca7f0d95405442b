"""Simulated time on SimPy: an environment with an agenda of its own, signals and movable timers.

Three small things on top of SimPy that its stock events do not offer: time is whole picoseconds and the
agenda is drained in one loop that counts events; a :class:`Signal` resumes its waiters at once instead of
scheduling another event at the same time; a :class:`Movable` event has a due time that can be moved, as a
completion must be when the rate of what it waits for changes.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final

from simpy import Environment
from simpy.core import EmptySchedule, StopSimulation
from simpy.events import NORMAL, URGENT, Event, EventPriority

from simcore.errors import InputError

#: End of time, 53 days: twice as much still fits in int64, so that sums of two times never wrap.
LAST_PS = 1 << 62

_LAST: Final = EventPriority(NORMAL + 1)

Progress = Callable[[int], None]
_REPORT_EVERY = 1 << 12  # events between two progress reports


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


def give_back_memory() -> None:
    """What is no longer used goes back to the system, free pages between what is still used included.

    glibc keeps those until it is asked: a long job's result, and its page, would take as much again as what
    the job was played with.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


#: A process without SimPy's: it is sent its own ``send``, has what it waits for call that, and yields.  It
#: never returns.
Coroutine = Generator[None, Any, None]

#: Due time, priority, order of scheduling, and what happens then; it is told that order.
Entry = tuple[int, int, int, Callable[[int], None]]
_NO_ENTRY: Final = -1


class Clock(Environment):
    """A SimPy environment whose time is an int in picoseconds, starting at 0.

    It keeps what is scheduled itself (``schedule``, ``peek`` and ``step`` are what SimPy asks of an
    environment), so that a part of it can be played on an agenda of its own: :meth:`catching_up`.
    ``now`` is the current simulated time, ps, ``agenda`` a heap of what is due.
    """

    now: int = 0  # SimPy's is a property, which is asked for everywhere

    def __init__(self) -> None:
        super().__init__(0)
        self.num_events = 0
        self.agenda: list[Entry] = []
        self._numbers = count()

    def schedule(self, event: Event, priority: EventPriority = NORMAL, delay: float = 0) -> None:
        """Have ``event`` processed ``delay`` ps from now."""
        self._note(int(self.now + delay), priority, partial(_process, event))

    def schedule_at(self, event: Event, time_ps: int) -> None:
        """Have ``event`` processed at ``time_ps``."""
        self._note(time_ps, NORMAL, partial(_process, event))

    def start(self, coroutine: Coroutine) -> None:
        """Begin a coroutine now, as SimPy does a process."""
        next(coroutine)
        self._note(self.now, URGENT, lambda _: coroutine.send(coroutine.send))

    def at_the_end(self, call: Callable[[], None]) -> None:
        """Have ``call`` made when all that is due now has happened, and nothing before it."""
        self._note(self.now, _LAST, lambda _: call())

    def _note(self, time_ps: int, priority: int, happens: Callable[[int], None]) -> None:
        heappush(self.agenda, (time_ps, priority, next(self._numbers), happens))

    def peek(self) -> float:
        """Time of the next event, infinity without any."""
        return self.agenda[0][0] if self.agenda else float("inf")

    def step(self) -> None:
        """Process the next event.  EmptySchedule without any."""
        if not self.agenda:
            raise EmptySchedule
        self.now, _, number, happens = heappop(self.agenda)
        happens(number)
        self.num_events += 1

    def drain(self, progress: Progress | None = None) -> int:
        """Process events until none is left; returns how many were processed in all.

        The body is :meth:`step` written out, since it runs once per event.  ``progress`` is called with the
        event count from time to time.
        """
        agenda, done = self.agenda, 0
        try:
            with uncollected():  # nothing here makes cycles, and millions of young objects would be scanned
                while agenda:
                    self.now, _, number, happens = heappop(agenda)
                    happens(number)
                    done += 1
                    if progress is not None and not done % _REPORT_EVERY:
                        progress(done)
        finally:
            self.num_events += done
        return self.num_events

    def play_until(self, time_ps: int) -> None:
        """Process what is due before ``time_ps``, and be there."""
        agenda = self.agenda
        while agenda and agenda[0][0] < time_ps:
            self.now, _, number, happens = heappop(agenda)
            happens(number)
            self.num_events += 1
        self.now = time_ps

    @contextmanager
    def catching_up(self, since_ps: int) -> Iterator[None]:
        """What the block starts at ``since_ps``, and what follows from it, happens up to now.

        For what has had nothing to do with anything else since then: it has an agenda of its own until it has
        caught up.  What it has due now or later joins the others' agenda.
        """
        others, now = self.agenda, self.now
        own = self.agenda = []
        self.now = since_ps
        yield
        self.play_until(now)
        self.agenda = others
        for entry in own:
            heappush(others, entry)


def _process(event: Event, number: int) -> None:  # noqa: ARG001
    """Run the callbacks of an event of SimPy's."""
    callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
    for place, callback in enumerate(callbacks):
        try:
            callback(event)
        except StopSimulation:  # who waits for the same event goes on when the simulation does
            event.callbacks = callbacks[place + 1 :]
            event.env.schedule(event, EventPriority(-1))
            raise
    if not event._ok and not hasattr(event, "_defused"):
        raise event._value


class Signal(Event):
    """An event that happens when it is fired: its waiters run at once, in the order they came."""

    env: Clock

    def fire(self) -> None:
        """Resume everybody who waits.  Firing twice is an error of the caller."""
        assert self.callbacks is not None, "signal fired twice"
        self._ok = True
        self._value = None
        callbacks, self.callbacks = self.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(self)


class Movable(Signal):
    """A signal with a due time that can be moved: only the latest :meth:`set` counts.

    ``due_ps`` is that time.  Subclasses say in :meth:`due` what happens then; they may set another one or
    fire.
    """

    _due_entry = _NO_ENTRY
    due_ps = 0
    _queued_entry = _NO_ENTRY  # on the agenda, not after the due one
    _queued_ps = 0

    def set(self, time_ps: int) -> None:
        """Become due at ``time_ps`` (not before now), instead of at any time set before.

        InputError beyond :data:`LAST_PS`.
        """
        if time_ps > LAST_PS:
            raise InputError("the step takes more than 53 days, which 64 bits of ps cannot tell; check rates")
        clock = self.env
        number = self._due_entry = next(clock._numbers)
        self.due_ps = time_ps
        if self._queued_entry == _NO_ENTRY or time_ps < self._queued_ps:
            self._queued_entry, self._queued_ps = number, time_ps
            heappush(clock.agenda, (time_ps, NORMAL, number, self._woken))

    def unset(self) -> None:
        """Do not become due until set again."""
        self._due_entry = _NO_ENTRY

    def due(self) -> None:
        """The time has come."""
        self.fire()

    def _woken(self, number: int) -> None:
        if number != self._queued_entry:
            return
        self._queued_entry = _NO_ENTRY
        if number == self._due_entry:
            self._due_entry = _NO_ENTRY
            self.due()
        elif self._due_entry != _NO_ENTRY:  # moved back since: its turn is that of the latest set
            self._queued_entry, self._queued_ps = self._due_entry, self.due_ps
            heappush(self.env.agenda, (self.due_ps, NORMAL, self._due_entry, self._woken))
