"""Part of a run's work done by a fork of this process, on another core, while this one goes on."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from simcore.errors import SimcoreError

Found = TypeVar("Found")


class Aside(Generic[Found]):
    """Work that a fork does, or, where there is none, this process when it is waited for.

    What it finds may be several things, one after the other.
    """

    def __init__(self, work: Callable[[], Iterator[Found]], *, forked: bool) -> None:
        self._work: Iterator[Found] | None = None if forked else work()
        self._found: list[Found] = []
        self._child = 0
        if not forked:
            return
        reading, writing = os.pipe()
        self._begins, ends = os.pipe()
        self._child = os.fork()
        if not self._child:
            os.close(reading)
            _do(work, writing, ends)
        os.close(writing)
        os.close(ends)
        self._pipe = os.fdopen(reading, "rb")

    @property
    def is_forked(self) -> bool:
        """Whether a fork is doing it."""
        return self._child != 0

    def check(self) -> None:
        """Raise what the work has raised by now; where no fork does it, do it now."""
        if self._work is not None or (self.is_forked and select.select([self._pipe], [], [], 0)[0]):
            self.result()

    def result(self, number: int = 0) -> Found:
        """The first thing that the work finds, or another, which is waited for.

        Errors: those of the work; MemoryError where the system ended the fork.
        """
        while len(self._found) <= number:
            self._found.append(self._received() if self._work is None else next(self._work))
        return self._found[number]

    def wait(self) -> None:
        """Wait until the first thing is found or the fork has ended, in this process or a later fork."""
        if self._child:
            os.read(self._begins, 1)  # nothing comes but the end
        else:
            self.result()

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
            os.close(self._begins)
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
            self._child = 0


def once(work: Callable[[], Found]) -> Iterator[Found]:
    """Work that finds one thing, for :func:`aside`."""
    yield work()


@contextmanager
def aside(work: Callable[[], Iterator[Found]], *, forked: bool = True) -> Iterator[Aside[Found]]:
    """Have ``work`` done while the block goes on, which may wait for what it finds.

    Of what ``work`` does only files remain, and what it yields or raises, which has to be picklable.  A fork
    has what this process has, and shares its memory as long as neither writes to it.  It is ended with the
    block.  Where a second core or forks are missing, where other threads might hold what a fork would wait
    for, and without ``forked``, this process does the work when it is waited for, with the same result.
    """
    begun = Aside(work, forked=forked and _may_fork())
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


def _do(work: Callable[[], Iterator[object]], writing: int, waited_for: int) -> None:
    """Be the fork: work, tell what comes of it, and end without a word.

    With the first thing it closes ``waited_for``, which other forks may wait for.
    """
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
        gc.freeze()  # what it shares with its parent is not looked through
        with os.fdopen(writing, "wb") as pipe:
            try:
                for number, found in enumerate(work()):
                    pickle.dump((found, None), pipe)
                    pipe.flush()
                    if not number:
                        os.close(waited_for)
            except (SimcoreError, OSError, MemoryError) as told:
                pickle.dump((None, told), pipe)
            except Exception as told:
                pickle.dump((None, RuntimeError(f"{type(told).__name__}: {told}")), pipe)
    finally:
        os._exit(0)
