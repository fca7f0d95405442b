"""Windows of a large trace read on all cores: by this process, and by forks beside it.

A window is text of an array of events, some thousand of them.  What a fork makes of one is a reader's
columns, which are appended in the order of the file, so that the result is what one process makes of it
(Note [Windows]).  Whatever goes wrong is left to one process, which says what it is and where.

Note [Windows]
    A batch of events becomes columns at once, and names, threads and descriptions of communication are
    numbered in the order of batches.  A window is a batch, whoever reads it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError
from simcore.outside import limits
from simcore.units import MIB
from workloads.imports.files import TraceFile, is_packed
from workloads.imports.json_events import Piece, read_batches
from workloads.imports.kineto.events import TraceEvent, decode, events_of
from workloads.imports.kineto.read import KinetoReader, read_kineto
from workloads.imports.recording.columns import GpuRecording

#: Bytes on the disk, plain and packed, from which on forks are worth their start.
_LARGE: Final = 48 * MIB
_LARGE_PACKED: Final = 4 * MIB
_MOST_FORKS: Final = 7  # more wait for the one process that finds windows and joins columns
_AHEAD: Final = 3  # windows that wait for a fork


class LeftToOneError(Exception):
    """A trace that one process must read."""


def read_on_all_cores(source: TraceFile) -> GpuRecording:
    """:func:`~workloads.imports.kineto.read.read_kineto`, in forks of this process too where it is large."""
    num_forks = _cores_beside(source)
    if num_forks:
        with suppress(LeftToOneError):
            return _read_beside(source, num_forks)
    return read_kineto(source)


def _cores_beside(source: TraceFile) -> int:
    """How many forks may help to read ``source``; 0 for a small one."""
    small = source.num_bytes < (_LARGE_PACKED if is_packed(source) else _LARGE)
    if small or multiprocessing.current_process().daemon or not sys.platform.startswith("linux"):
        return 0  # elsewhere a fork of a process with threads is not safe
    return min(_MOST_FORKS, len(os.sched_getaffinity(0)) - 1)


def _read_beside(source: TraceFile, num_forks: int) -> GpuRecording:
    """As :func:`read_on_all_cores`.  LeftToOneError where it is not so simple."""
    header: dict[str, Any] = {}
    reader = KinetoReader(source.label)
    with _Forks(source, reader, num_forks) as forks:
        try:
            for _, found in read_batches(source, header, forks.read, reader.event, last=decode):
                forks.take(found)
            forks.join()
            return reader.finish(header)
        except (InputError, BrokenProcessPool) as error:
            raise LeftToOneError(str(error)) from None


class _Forks:
    """Forks of this process, which begin when the reader's clock has begun."""

    def __init__(self, source: TraceFile, reader: KinetoReader, count: int) -> None:
        self._path = None if source.info is not None or is_packed(source) else source.path
        self._reader, self._count = reader, count
        self._waiting: deque[Future[KinetoReader] | KinetoReader] = deque()
        self._pool: ProcessPoolExecutor | None = None
        self._num_events = 0

    def __enter__(self) -> _Forks:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def read(self, piece: Piece) -> list[Any]:
        """Let the events of a window be read, by whoever has time first."""
        if not self._reader.has_begun:
            return decode(piece)
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._count, multiprocessing.get_context("fork"), _begin, (self._reader.successor(),)
            )
        if sum(isinstance(one, Future) and not one.done() for one in self._waiting) < _AHEAD * self._count:
            if self._path is None or piece.inside is None:
                return [self._pool.submit(_window, piece.text)]
            return [self._pool.submit(_window_of, self._path, *piece.inside)]
        return [_read(self._reader.successor(), piece.text)]

    def take(self, found: list[Any]) -> None:
        """Take what :meth:`read` gave, or single events."""
        if isinstance(found[0], TraceEvent):
            self.join()
            self._reader.take(self._num_events, found)
            self._count_events(len(found))
        else:
            self._waiting.extend(found)
        while self._waiting and (not isinstance(self._waiting[0], Future) or self._waiting[0].done()):
            self._append(self._waiting.popleft())

    def join(self) -> None:
        """Wait for all windows."""
        while self._waiting:
            self._append(self._waiting.popleft())

    def _append(self, one: Future[KinetoReader] | KinetoReader) -> None:
        window = one.result() if isinstance(one, Future) else one
        self._reader.append(window, self._num_events)
        self._count_events(window.num_events)

    def _count_events(self, count: int) -> None:
        self._num_events += count
        if self._num_events > limits().events:
            raise LeftToOneError("more events than may be")


_reader: list[KinetoReader] = []  # of a fork: what each window begins as


def _begin(reader: KinetoReader) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the process that forked
    _reader.append(reader)


def _window(text: str) -> KinetoReader:
    return _read(_reader[0].successor(), text)


def _window_of(path: Path, first: int, size: int) -> KinetoReader:
    """A window that a fork reads from the file: sooner than it is handed it."""
    with path.open("rb") as file:
        file.seek(first)
        return _window(f"[{file.read(size).decode(errors='replace')}]")


def _read(reader: KinetoReader, text: str) -> KinetoReader:
    """The events of a window in a reader.  LeftToOneError where they are not all plain."""
    try:
        events = events_of(text)
        reader.take(0, events)
        reader.flush()
    except (ValueError, RecursionError, MemoryError, InputError) as error:
        raise LeftToOneError(str(error)) from None
    return reader
