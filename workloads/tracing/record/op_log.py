"""The ops of one rank in issue order, with what each waits for and which storages it touches.

Note [How ops are ordered]
    DATA edges come from storages: a reader follows the last writer of the bytes it reads, a writer too.
    WAIT edges come from CUDA's own means: events, stream waits, ``Work.wait()``, and the implicit wait of a
    communicator's stream for the stream that issued the call.  The order within a stream, and everything
    that a blocking synchronisation of the host covers, follows from positions and is not written.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import torch

from simcore.graph.ops import OpKind
from workloads.tracing.fake import known_values, streams
from workloads.tracing.fake.aten_ops import dtype_name, shapes_json
from workloads.tracing.fake.storages import StorageRecord, StorageTable, extent
from workloads.tracing.record.backward_streams import BackwardStreams
from workloads.tracing.record.captured import CapturedGraph, CapturedOp
from workloads.tracing.record.labels import Labels
from workloads.tracing.record.recording import Free, RawOp, RecordedSegment, Recording
from workloads.tracing.sites import call_stack

#: A block of a model is numbered by the first index in its module's name: "decoder.layers.3.mlp", "h.3".
_LAYER = re.compile(r"(?:^|\.)(\d+)\b")
#: Allocations whose call sites are kept, in bytes; those of communication are, too.
_LARGE = 1 << 20
_STACK = 3


#: A stream of the program by number, or a communicator's by symbol.
StreamKey = int | str

#: The host waits for every stream.
ALL_STREAMS = ""
#: What the host does itself; a wait of its that is for no stream stands here.
HOST_STREAM = "host"


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


class OpLog:
    """Writes ops down while ``recording``; ``whole_life`` as for the recorder."""

    def __init__(self, *, whole_life: bool = False) -> None:
        self.recording = False
        self.result = Recording()
        self.labels = Labels(regions_have_backward=whole_life)
        self.order = StreamWaits()
        self.backward_streams = BackwardStreams(self)
        self.capture: CapturedGraph | None = None
        self._whole_life = whole_life
        self._storages = StorageTable(self._storage_died, whole_life=whole_life)

    @property
    def live_bytes(self) -> int:
        """Bytes of the storages that are alive now, as far as they were recorded."""
        return self._storages.live_bytes

    def begin_segment(
        self, kind: str, microbatch: int = -1, chunk: int = 0, phase: str | None = None
    ) -> None:
        """Ops from here on belong to a new template instance; ``phase`` defaults to the one before."""
        self.labels.enter_segment(phase)
        if self.recording and self.capture is None:
            self.result.segments.append(RecordedSegment(kind, microbatch, chunk, len(self.result.ops)))

    def number_backward(self) -> None:
        """The backward pass that began last is of the microbatch and chunk whose forward ops it follows."""
        last = self.result.segments[-1] if self.recording and self.result.segments else None
        if last is None or last.kind != "bwd":
            return
        followed = next((op.forward for op in self.result.ops[last.first :] if op.forward >= 0), None)
        if followed is None:
            return
        index = bisect_right(self.result.segments, followed, key=lambda segment: segment.first) - 1
        forward = self.result.segments[index]
        self.result.segments[-1] = replace(last, microbatch=forward.microbatch, chunk=forward.chunk)

    # What streams and events tell: see :class:`workloads.tracing.fake.streams.StreamListener`.

    def stream_frontier(self, stream: StreamKey) -> tuple[int, ...]:
        """Ops that an event recorded now on ``stream`` stands for."""
        return self.order.frontier(stream)

    def stream_waits(self, stream: StreamKey, ops: tuple[int, ...]) -> None:
        """The next op of ``stream`` starts after ``ops``."""
        if self.recording:
            self.order.add(stream, ops)

    def host_waits(self, name: str, stream: StreamKey | None) -> None:
        """The host waits for ``stream`` (None: every stream)."""
        if not self.recording:
            return
        key: StreamKey = ALL_STREAMS if stream is None else stream
        waits = () if stream is None else self.order.take(stream)
        self.append(name, OpKind.SYNC, key, waits=waits, blocking=1)
        self.order.host_saw_end(key)

    def host_waits_for(self, name: str, ops: tuple[int, ...]) -> None:
        """The host waits for ``ops``, and for nothing that was issued behind them."""
        if self.recording:
            self.append(name, OpKind.SYNC, HOST_STREAM, waits=ops, blocking=1)

    def append(
        self,
        name: str,
        kind: OpKind,
        stream: StreamKey,
        *,
        phase: str | None = None,
        module: str | None = None,
        op_class: str = "",
        inputs: list[torch.Tensor] | None = None,
        outputs: list[torch.Tensor] | None = None,
        waits: Iterable[int] = (),
        launch: int = -1,
        flops: int = 0,
        traffic: tuple[int, int] = (0, 0),
        group: str = "",
        collective: str = "",
        num_bytes: int = 0,
        reduce_op: str = "",
        peer_delta: int = 0,
        blocking: int = 0,
    ) -> int:
        """Write one op down and return its number.  Keywords are columns, or as in :class:`RawOp`."""
        index = len(self.result.ops)
        inputs, outputs = inputs or [], outputs or []
        if self.capture is not None:
            columns_of_call = {
                "phase": phase,
                "op_class": op_class,
                "launch": launch,
                "flops": flops,
                "traffic": traffic,
                "group": group,
                "collective": collective,
                "num_bytes": num_bytes,
                "reduce_op": reduce_op,
                "peer_delta": peer_delta,
                "blocking": blocking,
            }
            return self._keep(
                CapturedOp(name, kind, stream, "", columns_of_call, inputs, outputs, tuple(waits))
            )
        found_phase, found_module, forward = self.labels.where(index if kind is OpKind.COMPUTE else -1)
        module = found_module if module is None else module
        data, alloc_bytes = self._touch(index, inputs, outputs)
        if self.backward_streams.running:
            waits = (*waits, *self.backward_streams.behind(data))
        layer = _LAYER.search(module)
        # What a product is added to may have more bits than its factors.
        typed = inputs[1:] if name.startswith(("aten::addmm", "aten::baddbmm")) else inputs or outputs
        columns = (
            name,
            op_class,
            int(kind),
            stream_symbol(stream),
            phase or found_phase,
            module,
            int(layer.group(1)) if layer else -1,
            dtype_name(typed[0]) if typed else "",
            shapes_json(inputs) if inputs else "",
            shapes_json(outputs) if outputs else "",
            flops,
            *traffic,
            group,
            collective,
            num_bytes,
            reduce_op,
            peer_delta,
            blocking,
        )
        if self._whole_life and (alloc_bytes >= _LARGE or group):
            self.result.sites[index] = call_stack(_STACK)
        matter = self.order.issue(stream, waits)
        self.result.ops.append(RawOp(columns, data, matter, launch, forward, alloc_bytes))
        return index

    def _keep(self, op: CapturedOp) -> int:
        """Keep one op of a graph that is being captured; its number among those."""
        assert self.capture is not None
        _, module, _ = self.labels.where(-1)
        waits = self.order.issue(op.stream, op.waits)
        self.capture.ops.append(replace(op, module=module, waits=waits))
        for tensor in op.outputs:
            record = self.record_of(tensor)
            if record.owner == StorageRecord.UNTOUCHED:
                record.owner = StorageRecord.OLDER
        return len(self.capture.ops) - 1

    # What graphs tell: see :class:`workloads.tracing.fake.cuda_graphs.CaptureListener`.

    def capture_begins(self) -> None:
        """Keep ops from now on: see Note [Captured graphs]."""
        self._outside = (self.recording, self.order)
        self.recording, self.order = True, StreamWaits()
        self.capture = CapturedGraph(streams.current_stream().stream_id)

    def capture_ends(self) -> CapturedGraph | None:
        """What was kept."""
        captured, self.capture = self.capture, None
        self.recording, self.order = self._outside
        return captured

    def capture_replayed(self, captured: CapturedGraph) -> None:
        """Write down what was kept."""
        current = streams.current_stream().stream_id
        numbers: dict[int, int] = {}
        last: dict[StreamKey, int] = {}
        before = self.order.frontier(current) if self.recording else ()
        for at, op in enumerate(captured.ops):
            captured.happen(at)
            known_values.forget(op.outputs)
            if not self.recording:
                continue
            stream = current if op.stream == captured.stream else op.stream
            waits = [numbers[wait] for wait in op.waits if wait in numbers]
            if not waits and stream not in last:  # it begins with the graph
                waits = [*before, *self.order.take(stream)]
            numbers[at] = last[stream] = self.append(
                op.name, op.kind, stream, module=op.module, inputs=op.inputs, outputs=op.outputs,
                waits=waits, **op.columns,
            )  # fmt: skip
        self.order.add(current, (number for stream, number in last.items() if stream != current))
        captured.happen(len(captured.ops))

    def _touch(
        self, index: int, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> tuple[tuple[int, ...], int]:
        """Data dependencies of op ``index`` and the bytes it brings to life."""
        writers: set[int] = set()
        born = 0
        for tensor in inputs:
            record = self._storages.record(tensor, newborn=False)
            born += self._adopt(record, index)
            writers.update(record.writers.overlapping(*extent(tensor)))
        for tensor in outputs:
            record = self._storages.record(tensor, newborn=True)
            born += self._adopt(record, index)
            low, high = extent(tensor)
            writers.update(record.writers.overlapping(low, high))
            record.writers.write(low, high, index)
        writers.discard(index)
        return tuple(sorted(writers)), born

    def record_of(self, tensor: torch.Tensor) -> StorageRecord:
        """The record of a tensor's storage."""
        return self._storages.record(tensor, newborn=False)

    def _adopt(self, record: StorageRecord, index: int) -> int:
        """Bytes of a storage that comes to life with op ``index``; 0 when it lives already."""
        if record.owner != StorageRecord.UNTOUCHED:
            return 0
        record.owner = index
        return record.num_bytes

    def _storage_died(self, record: StorageRecord) -> None:
        born_here = record.owner >= 0
        born_before = self._whole_life and record.owner == StorageRecord.OLDER
        if not self.recording or self.capture is not None:
            return
        if not record.num_bytes or not (born_here or born_before):
            return
        if self.result.ops:
            self.result.frees.append(Free(len(self.result.ops) - 1, record.num_bytes, record.owner))
        else:
            self.result.freed_before += record.num_bytes
