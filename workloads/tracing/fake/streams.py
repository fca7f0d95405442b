"""CUDA streams and events as plain Python objects that report ordering to whoever listens."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import torch

from workloads.tracing.fake import cuda_graphs, visible_devices

DEFAULT_STREAM = 0


class StreamListener(Protocol):
    """What the recorder wants to know.  An op is identified by the recorder's own number."""

    def stream_frontier(self, stream: int) -> tuple[int, ...]:
        """Ops that an event recorded now on ``stream`` stands for."""
        ...

    def stream_waits(self, stream: int, ops: tuple[int, ...]) -> None:
        """The next op of ``stream`` starts after ``ops``."""
        ...

    def host_waits(self, name: str, stream: int | None) -> None:
        """The host waits for ``stream`` (None: every stream)."""
        ...

    def host_waits_for(self, name: str, ops: tuple[int, ...]) -> None:
        """The host waits for ``ops``, and for nothing that was issued behind them."""
        ...


listener: StreamListener | None = None
#: Told of the current stream whenever somebody asks for it: a backward pass may have come to another.
on_ask: Callable[[Stream], None] | None = None

#: Streams of torch's pool for a device and priority (``kStreamsPerPool`` of CUDAStream.cpp): who asks for
#: one more gets the first one again.
POOL = 32
_pools: dict[int, list[int]] = defaultdict(list)
_num_asked: dict[int, int] = defaultdict(int)


def _from_pool(priority: int) -> int:
    """Number of the next stream of a pool."""
    pool, asked = _pools[priority], _num_asked[priority]
    _num_asked[priority] += 1
    if len(pool) < POOL:
        pool.append(1 + sum(map(len, _pools.values())))
    return pool[asked % POOL]


class Stream:
    """Stands in for ``torch.cuda.Stream``; numbered in order of creation, 0 is the default stream."""

    def __init__(
        self, _device: object = None, priority: int = 0, stream_id: int | None = None, **_: object
    ) -> None:
        if stream_id is None:
            stream_id = _from_pool(min(priority, 0))
        self.stream_id = self.cuda_stream = stream_id
        self.device_type, self.priority = 1, priority
        self._outer: list[Stream] = []

    @property
    def device_index(self) -> int:
        """Streams follow the current device: a process uses one."""
        return visible_devices.current()

    @property
    def device(self) -> torch.device:
        """The current device."""
        return torch.device("cuda", self.device_index)

    def wait_stream(self, stream: Stream) -> None:
        """Later work of this stream waits for what ``stream`` holds now."""
        if listener is not None:
            listener.stream_waits(self.stream_id, listener.stream_frontier(stream.stream_id))

    def wait_event(self, event: Event) -> None:
        """Later work of this stream waits for ``event``."""
        if listener is not None:
            listener.stream_waits(self.stream_id, event.ops)

    def record_event(self, event: Event | None = None) -> Event:
        """Record ``event`` (or a new one) behind the work issued so far."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits for this stream."""
        if listener is not None:
            listener.host_waits("cudaStreamSynchronize", self.stream_id)

    def query(self) -> bool:
        """Everything is done already, as far as the host can see."""
        return True

    def is_capturing(self) -> bool:
        """Whether a graph is being captured, on whatever stream."""
        return cuda_graphs.is_capturing()

    def __enter__(self) -> Stream:
        self._outer.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_stream(self._outer.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class Event:
    """Stands in for ``torch.cuda.Event``: remembers the ops it was recorded behind."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        self.ops: tuple[int, ...] = ()
        self.cuda_event = self.event_id = 0

    def record(self, stream: Stream | None = None) -> None:
        """Stand behind the work issued so far on ``stream`` (default: the current one)."""
        where = stream or current_stream()
        self.ops = listener.stream_frontier(where.stream_id) if listener is not None else ()

    def wait(self, stream: Stream | None = None) -> None:
        """Later work of ``stream`` (default: the current one) waits for this event."""
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        """Everything is done already, as far as the host can see."""
        return True

    def synchronize(self) -> None:
        """The host waits for this event."""
        if listener is not None and self.ops:
            listener.host_waits_for("cudaEventSynchronize", self.ops)

    def elapsed_time(self, _other: Event) -> float:
        """Milliseconds; nothing is timed while tracing."""
        return 1.0


class StreamContext:
    """Stands in for ``torch.cuda.StreamContext``."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._outer = current_stream()

    def __enter__(self) -> None:
        self._outer = current_stream()
        set_stream(self.stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        set_stream(self._outer)


_default = Stream(stream_id=DEFAULT_STREAM)


class _Current(threading.local):
    """The current stream of each thread, the default one at first; autograd runs in its caller's thread."""

    stream = _default


_here = _Current()


class ExternalStream(Stream):
    """Stands in for ``torch.cuda.ExternalStream``: the stream whose ``cuda_stream`` that is."""

    def __init__(self, stream_ptr: int, device: object = None, **_: object) -> None:
        super().__init__(device, stream_id=stream_ptr)


def current_stream(device: Any = None) -> Stream:  # noqa: ARG001
    """The stream that receives work now."""
    if on_ask is not None:
        on_ask(_here.stream)
    return _here.stream


def beside() -> Stream | None:
    """The stream that receives work now, where it is not the default one."""
    stream = _here.stream
    return None if stream.stream_id == DEFAULT_STREAM else stream


def default_stream(device: Any = None) -> Stream:  # noqa: ARG001
    """Stream 0."""
    return _default


def set_stream(stream: Stream | None) -> None:
    """Make ``stream`` current; None changes nothing, as in torch."""
    if stream is not None:
        current_stream()  # a backward pass comes to its node's before the node chooses another
        _here.stream = stream
