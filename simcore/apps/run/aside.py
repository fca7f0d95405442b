"""Part of a run's work done by a fork of this process, on another core, while this one goes on."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

from simcore.errors import SimcoreError

Found = TypeVar("Found")


#: Work that finds several things, one after the other.  Where it yields None it goes on with what it is told.
Work = Callable[[], Generator[Found | None, Any, None]]


class Aside(Generic[Found]):
    """Work that a fork does, or, where there is none, this process when it is waited for."""

    def __init__(self, work: Work[Found], *, forked: bool, awaited: int = 1) -> None:
        self._work = None if forked else _steps(work, self._next_told)
        self._awaited = awaited
        self._found: list[Found] = []
        self._told: list[object] = []
        self._child = 0
        if not forked:
            return
        reading, writing = os.pipe()
        hearing, telling = os.pipe()
        self._begins, ends = os.pipe()
        self._child = os.fork()
        if not self._child:
            os.close(reading)
            os.close(telling)
            _do(work, hearing, writing, ends, awaited)
        os.close(writing)
        os.close(hearing)
        os.close(ends)
        self._pipe, self._telling = os.fdopen(reading, "rb"), os.fdopen(telling, "wb")

    @property
    def is_forked(self) -> bool:
        """Whether a fork is doing it."""
        return self._child != 0

    def check(self) -> None:
        """Raise what the work has raised by now; where no fork does it, do it now."""
        if self._work is not None or (self.is_forked and select.select([self._pipe], [], [], 0)[0]):
            self.result()

    def tell(self, told: object) -> None:
        """Tell the work what it goes on with.  A fork that has ended by itself says why when it is asked."""
        if not self.is_forked:
            self._told.append(told)
            return
        with suppress(BrokenPipeError):
            pickle.dump(told, self._telling)
            self._telling.flush()

    def result(self, number: int = 0) -> Found:
        """The first thing that the work finds, or another, which is waited for.

        Errors: those of the work; MemoryError where the system ended the fork.
        """
        while len(self._found) <= number:
            self._found.append(self._received() if self._work is None else next(self._work))
        return self._found[number]

    def wait(self) -> None:
        """Wait until as many things as are ``awaited`` are found or the fork has ended, in this process or a
        later fork.
        """
        if self._child:
            os.read(self._begins, 1)  # nothing comes but the end
        else:
            self.result(self._awaited - 1)

    def _next_told(self) -> object:
        return self._told.pop(0)

    def _received(self) -> Found:
        try:
            found, error = pickle.load(self._pipe)  # by our own fork
        except EOFError:
            self.end()
            raise MemoryError("a process that did part of the work was ended") from None
        if error is not None:
            self.end()
            raise error
        answer: Found = found
        return answer

    def end(self) -> None:
        """No more is wanted of it."""
        if self._child:
            self._pipe.close()
            with suppress(BrokenPipeError):
                self._telling.close()
            os.close(self._begins)
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
            self._child = 0


def once(work: Callable[[], Found]) -> Generator[Found, Any, None]:
    """Work that finds one thing, for :func:`aside`."""
    yield work()


@contextmanager
def aside(work: Work[Found], *, forked: bool = True, awaited: int = 1) -> Iterator[Aside[Found]]:
    """Have ``work`` done while the block goes on, which may wait for what it finds.

    Of what ``work`` does only files remain, and what it yields or raises, which has to be picklable, as has
    what it is told.  A fork has what this process has, and shares its memory as long as neither writes to it.
    It is ended with the block.  Where a second core or forks are missing, where other threads might hold what
    a fork would wait for, and without ``forked``, this process does the work when it is waited for, with the
    same result.
    """
    begun = Aside(work, forked=forked and _may_fork(), awaited=awaited)
    try:
        yield begun
    finally:
        begun.end()


def _may_fork() -> bool:
    return (
        hasattr(os, "fork")
        and hasattr(os, "sched_getaffinity")
        and len(os.sched_getaffinity(0)) > 1
        and threading.active_count() == 1
    )


def _steps(work: Work[Found], hear: Callable[[], object]) -> Iterator[Found]:
    """What ``work`` finds, which goes on with what is heard where it asks for that."""
    steps = work()
    told: object = None
    while True:
        try:
            found = steps.send(told)
        except StopIteration:
            return
        told = None
        if found is None:
            told = hear()
        else:
            yield found


def _do(work: Work[Any], hearing: int, writing: int, waited_for: int, awaited: int) -> None:
    """Be the fork: work, tell what comes of it, and end without a word.

    With the last of what is ``awaited`` it closes ``waited_for``, which other forks may wait for.
    """
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
        gc.freeze()  # what it shares with its parent is not looked through
        with os.fdopen(hearing, "rb") as heard, os.fdopen(writing, "wb") as pipe:
            try:
                for number, found in enumerate(_steps(work, partial(pickle.load, heard)), start=1):
                    pickle.dump((found, None), pipe)
                    pipe.flush()
                    if number == awaited:
                        os.close(waited_for)
            except (SimcoreError, OSError, MemoryError) as told:
                pickle.dump((None, told), pipe)
            except Exception as told:
                pickle.dump((None, RuntimeError(f"{type(told).__name__}: {told}")), pipe)
    finally:
        os._exit(0)
