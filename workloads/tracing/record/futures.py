"""Futures of communication calls, and what is to be done when they are complete.

Note [Callbacks of futures]
    NCCL's futures are complete as soon as the call is issued.  What ``then`` is given runs at once on the
    host, and on the device on a stream of torch's pool, which waits for the call; the stream that issued the
    call goes on.  Who waits for the future's result waits for that stream.  Here each callback of a backward
    pass has a stream of its own, by its number, so that equal passes record equal ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from workloads.tracing.fake import streams
from workloads.tracing.fake.aten_ops import tensors_in

if TYPE_CHECKING:
    from workloads.tracing.record.communication import CommunicationRecorder


class CallbackStreams:
    """Streams on which callbacks run, in turn."""

    def __init__(self) -> None:
        self._made: list[streams.Stream] = []
        self._next = 0

    def next(self) -> streams.Stream:
        """The next one of the pool."""
        number, self._next = self._next, (self._next + 1) % streams.POOL
        if number == len(self._made):
            self._made.append(streams.Stream())
        return self._made[number]

    def rewind(self) -> None:
        """The first one is next."""
        self._next = 0


class RecordedFuture(torch.futures.Future[Any]):
    """A complete future of ``value``, which ``ops`` write."""

    def __init__(self, communication: CommunicationRecorder, value: Any, ops: tuple[int, ...]) -> None:
        super().__init__()
        self._communication, self._ops = communication, ops
        self.set_result(value)
        communication.note_future(tensors_in(value, []), ops)

    def wait(self) -> Any:
        """The value; the current stream waits for it."""
        self._communication.stream_waits(streams.current_stream().stream_id, self._ops)
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> RecordedFuture:
        """A future of what ``callback`` returns."""
        value, ops = self._behind(callback)
        return RecordedFuture(self._communication, value, ops)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Run ``callback``."""
        self._behind(callback)

    def _behind(self, callback: Callable[[Any], Any]) -> tuple[Any, tuple[int, ...]]:
        """What the callback returns, and the ops that it ends with."""
        stream = self._communication.callback_streams.next()
        self._communication.stream_waits(stream.stream_id, self._ops)
        with stream:
            value = callback(self)
        return value, self._communication.stream_frontier(stream.stream_id)
