"""A dispatch mode that writes down every kernel, collective, transfer and synchronisation of one rank.

Note [How ops are ordered]
    DATA edges come from storages: a reader follows the last writer of the bytes it reads, a writer too.
    WAIT edges come from CUDA's own means: events, stream waits, ``Work.wait()``, and the implicit wait of a
    communicator's stream for the stream that issued the call.  The order within a stream, and everything
    that a blocking synchronisation of the host covers, follows from positions and is not written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from simcore.cost import classify
from simcore.graph.ops import OpKind
from workloads.tracing import fake_cuda, kernels, storages, streams
from workloads.tracing.aten_ops import (
    AtenOp,
    all_on_device,
    dtype_name,
    is_on_device,
    num_bytes,
    shapes_json,
    tensors_in,
)
from workloads.tracing.communication import Communication
from workloads.tracing.fake_values import read_scalar
from workloads.tracing.group_names import group_symbol
from workloads.tracing.labels import Labels
from workloads.tracing.ordering import ALL_STREAMS, StreamKey, StreamWaits, stream_symbol
from workloads.tracing.recording import Free, RawOp, Recording, Segment
from workloads.tracing.shape_cache import ShapeCache, view
from workloads.tracing.sites import call_stack
from workloads.tracing.storages import StorageRecord, StorageTable, extent, touched_bytes

_DEVICE_QUERY = torch.ops.prim.device.default
_PLAIN = (torch.Tensor, FakeTensor, torch.nn.Parameter)
#: A block of a model is numbered by the first index in its module's name: "decoder.layers.3.mlp", "h.3".
_LAYER = re.compile(r"(?:^|\.)(\d+)\b")
#: Allocations whose call sites are kept, in bytes.
_LARGE = 1 << 20
_STACK = 3
#: Operators whose result has as many elements as the values say.
_SELECTING = frozenset({"aten::nonzero", "aten::masked_select"})


class Recorder(TorchDispatchMode):
    """Records one rank while active.  With ``recording`` off the program runs and nothing is written down.

    ``symbol_of`` names process groups.  ``whole_life`` follows every storage from its first use, also before
    the recorded step: ``live_bytes`` then is what the rank holds.
    """

    def __init__(self, symbol_of: Callable[[Any], str] | None = None, *, whole_life: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.symbol_of = symbol_of or (lambda group: group_symbol(group.group_desc))
        self.num_calls = 0
        self._whole_life = whole_life
        self.recording = False
        self.result = Recording()
        self.labels = Labels()
        self.order = StreamWaits()
        self.communication = Communication(self)
        self._storages = StorageTable(self._storage_died, whole_life=whole_life)
        self._operators: dict[Any, AtenOp] = {}
        self._shapes = ShapeCache()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while tracing: spares a wrapper around every dispatch."""
        return False

    @property
    def live_bytes(self) -> int:
        """Bytes of the storages that are alive now, as far as they were recorded."""
        return self._storages.live_bytes

    def begin_segment(
        self, kind: str, microbatch: int = -1, chunk: int = 0, phase: str | None = None
    ) -> None:
        """Ops from here on belong to a new template instance; ``phase`` defaults to the one before."""
        self.labels.enter_segment(phase)
        if self.recording:
            self.result.segments.append(Segment(kind, microbatch, chunk, len(self.result.ops)))

    def __enter__(self) -> Any:
        """Record from now on (as far as ``recording`` says)."""
        streams.listener = kernels.listener = self
        fake_cuda.fused_region = self.labels.fused_region
        self.labels.install()
        storages.on_resize = self._storages.resized
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        """Leave the program alone."""
        self.labels.remove()
        storages.on_resize = None
        streams.listener = kernels.listener = None
        fake_cuda.fused_region = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    # What streams and events tell: see :class:`workloads.tracing.streams.StreamListener`.

    def stream_frontier(self, stream: StreamKey) -> tuple[int, ...]:
        """Ops that an event recorded now on ``stream`` stands for."""
        return self.order.frontier(stream)

    def stream_waits(self, stream: StreamKey, ops: tuple[int, ...]) -> None:
        """The next op of ``stream`` starts after ``ops``."""
        if self.recording:
            self.order.add(stream, ops)

    def host_waits(self, name: str, stream: StreamKey | None, ops: tuple[int, ...] = ()) -> None:
        """The host waits for ``stream`` (None: every stream), or just for ``ops``."""
        if not self.recording:
            return
        key: StreamKey = ALL_STREAMS if stream is None else stream
        waits = ops if stream is None else (*ops, *self.order.take(stream))
        self.append(name, OpKind.SYNC, key, waits=waits, blocking=1)
        if not ops:
            self.order.host_saw_end(key)

    def append(
        self,
        name: str,
        kind: OpKind,
        stream: StreamKey,
        *,
        phase: str | None = None,
        op_class: str = "",
        inputs: list[torch.Tensor] | None = None,
        outputs: list[torch.Tensor] | None = None,
        waits: Iterable[int] = (),
        launch: int = -1,
        flops: int = 0,
        traffic: tuple[int, int] = (0, 0),
        group: str = "",
        collective: str = "",
        comm_bytes: int = 0,
        reduce_op: str = "",
        peer_delta: int = 0,
        blocking: int = 0,
    ) -> int:
        """Write one op down and return its number.  Keywords are columns, or as in :class:`RawOp`."""
        index = len(self.result.ops)
        inputs, outputs = inputs or [], outputs or []
        found_phase, module, forward = self.labels.where(index if kind is OpKind.COMPUTE else -1)
        data, alloc_bytes = self._touch(index, inputs, outputs)
        layer = _LAYER.search(module)
        typed = inputs or outputs
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
            comm_bytes,
            reduce_op,
            peer_delta,
            blocking,
        )
        if self._whole_life and alloc_bytes >= _LARGE:
            self.result.sites[index] = call_stack(_STACK)
        matter = self.order.issue(stream, waits)
        self.result.ops.append(RawOp(columns, data, matter, launch, forward, alloc_bytes))
        return index

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
        if not self.recording or not record.num_bytes or not (born_here or born_before):
            return
        if self.result.ops:
            self.result.frees.append(Free(len(self.result.ops) - 1, record.num_bytes, record.owner))
        else:
            self.result.freed_before += record.num_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` on shapes alone and write it down."""
        if func is _DEVICE_QUERY and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # most calls by far
        for kind in types:
            # DTensor and its like: let the wrapper run, its local ops come back here.
            if kind not in _PLAIN and issubclass(kind, torch.Tensor):
                return NotImplemented
        kwargs = kwargs or {}
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = AtenOp(func)
        self.num_calls += 1
        if operator.base.startswith("c10d::"):
            return self.communication.call(operator.base.removeprefix("c10d::"), args)
        if operator.base.startswith("_c10d_functional::"):
            return self.communication.functional(func, operator.base.partition("::")[2], args, kwargs)
        if operator.base == "aten::_local_scalar_dense":
            return self._read_value(args[0])
        if operator.result_is_known and all_on_device(args[0]):
            result: Any = args[0] if func._schema.returns else None
        elif operator.is_view:
            result = view(func, args, kwargs)
        elif operator.shapes_decide:
            result = self._shapes.call(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if not self.recording:
            if self._whole_life and not operator.writes:
                for tensor in tensors_in(result, []):
                    if is_on_device(tensor):
                        self.record_of(tensor).owner = StorageRecord.OLDER
            return result
        if operator.has_kernel:
            self._record_kernel(operator, args, kwargs, result)
        else:
            self.labels.note_view()
            if operator.allocates and is_on_device(result):
                self._storages.record(result, newborn=True)
        return result

    def _record_kernel(self, operator: AtenOp, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        inputs = tensors_in(list(kwargs.values()), tensors_in(args, []))
        outputs = operator.outputs(args, kwargs, result)
        device_inputs = [tensor for tensor in inputs if is_on_device(tensor)]
        device_outputs = [tensor for tensor in outputs if is_on_device(tensor)]
        if not device_inputs and not device_outputs:
            return
        name = operator.name
        across = len(device_inputs) + len(device_outputs) < len(inputs) + len(outputs)
        if operator.base in ("aten::_to_copy", "aten::copy_") and across:
            kind, op_class, flops = OpKind.MEMCPY, "copy", 0
            traffic = (num_bytes(outputs[0]), num_bytes(outputs[0]))
        else:
            kind, op_class = OpKind.COMPUTE, classify(name)
            formula = operator.flops
            flops = int(formula(*args, **kwargs, out_val=result)) if formula is not None else 0
            traffic = operator.traffic(device_inputs, device_outputs, kwargs)
            if operator.cost is not None:
                cost = operator.cost(*args, **kwargs)
                name, flops, traffic = cost.kernel or name, cost.flops, _traffic(cost, *traffic)
                op_class = cost.op_class or classify(name)
        stream = streams.current_stream().stream_id
        self.append(
            name,
            kind,
            stream,
            op_class=op_class,
            inputs=device_inputs,
            outputs=device_outputs,
            waits=(*self.order.take(stream), *self.communication.future_waits(device_inputs)),
            flops=flops,
            traffic=traffic,
        )
        if operator.base in _SELECTING:  # the host reads how many there are
            self.host_waits(operator.base, stream)

    def kernel_launched(
        self,
        name: str,
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
        cost: kernels.KernelCost,
    ) -> None:
        """A kernel that is no operator of torch's: see :func:`workloads.tracing.kernels.launch`."""
        self.num_calls += 1
        if not self.recording:
            return
        inputs, outputs = list(reads), list(writes)
        stream = streams.current_stream().stream_id
        self.append(
            cost.kernel or name,
            OpKind.COMPUTE,
            stream,
            op_class=cost.op_class or classify(cost.kernel or name),
            inputs=inputs,
            outputs=outputs,
            waits=(*self.order.take(stream), *self.communication.future_waits(inputs)),
            flops=cost.flops,
            traffic=_traffic(cost, sum(map(touched_bytes, inputs)), sum(map(touched_bytes, outputs))),
        )

    def _read_value(self, tensor: torch.Tensor) -> bool | int | float:
        """``item()``: a copy to the host that the host waits for."""
        if self.recording and is_on_device(tensor):
            stream = streams.current_stream().stream_id
            waits = self.order.take(stream)
            self.append("aten::item", OpKind.SYNC, stream, inputs=[tensor], waits=waits, blocking=1)
            self.order.host_saw_end(stream)
        return read_scalar(tensor)


def _traffic(cost: kernels.KernelCost, read: int, written: int) -> tuple[int, int]:
    """Bytes read and written that ``cost`` says, else these."""
    return (
        read if cost.bytes_read < 0 else cost.bytes_read,
        written if cost.bytes_written < 0 else cost.bytes_written,
    )
