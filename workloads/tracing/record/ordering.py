"""Which earlier ops a CUDA stream waits for, as the program asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from workloads.tracing.fake import streams

#: A stream of the program by number, or a communicator's by symbol.
StreamKey = int | str

#: The host waits for every stream.
ALL_STREAMS = ""


def stream_symbol(stream: StreamKey) -> str:
    """Name of a stream, equal on every rank."""
    if isinstance(stream, str):
        return stream
    return "compute" if stream == streams.DEFAULT_STREAM else f"side.{stream}"


class StreamWaits:
    """Tails of streams, waits that the next op of a stream will carry, and what the host has seen to end."""

    def __init__(self) -> None:
        self._tail: dict[StreamKey, int] = {}
        self._pending: dict[StreamKey, dict[int, None]] = defaultdict(dict)
        self._stream_of: list[StreamKey] = []
        self._ended_before: dict[StreamKey, int] = {}
        self._all_ended_before = 0

    def frontier(self, stream: StreamKey) -> tuple[int, ...]:
        """Ops that an event recorded now on ``stream`` stands for."""
        tail = self._tail.get(stream)
        waiting = tuple(self._pending.get(stream, ()))
        return waiting if tail is None else (*waiting, tail)

    def add(self, stream: StreamKey, ops: Iterable[int]) -> None:
        """The next op of ``stream`` waits for ``ops``."""
        self._pending[stream].update(dict.fromkeys(ops))

    def take(self, stream: StreamKey) -> tuple[int, ...]:
        """Waits of the op that is issued on ``stream`` now."""
        return tuple(self._pending.pop(stream, ()))

    def issue(self, stream: StreamKey, waits: Iterable[int]) -> tuple[int, ...]:
        """Number the next op, on ``stream``; returns those of ``waits`` that matter, ascending.

        A stream need not wait for itself, nor for what the host has seen to end before it issued the op.
        """
        matter = sorted({op for op in waits if self._matters(op, stream)})
        self._tail[stream] = len(self._stream_of)
        self._stream_of.append(stream)
        return tuple(matter)

    def host_saw_end(self, stream: StreamKey) -> None:
        """The host has waited for ``stream`` (:data:`ALL_STREAMS`: for every stream)."""
        if stream == ALL_STREAMS:
            self._all_ended_before = len(self._stream_of)
            self._pending.clear()
        else:
            self._ended_before[stream] = len(self._stream_of)

    def _matters(self, op: int, stream: StreamKey) -> bool:
        other = self._stream_of[op]
        return other != stream and op >= max(self._all_ended_before, self._ended_before.get(other, 0))
