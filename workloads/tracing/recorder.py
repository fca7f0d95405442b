"""A dispatch mode that writes down every kernel, collective, transfer and synchronisation of one rank.

Note [How ops are ordered]
    DATA edges come from storages: a reader follows the last writer of the bytes it reads, a writer too.
    WAIT edges come from CUDA's own means: events, stream waits, ``Work.wait()``, and the implicit wait of a
    communicator's stream for the stream that issued the call.  The order within a stream, and everything
    that a blocking synchronisation of the host covers, follows from positions and is not written.

    A collective with ``async_op=False`` runs on the stream that issues it (torch 2.8 and later), an asynchronous
    one on its communicator's stream, named after the group.  Point-to-point calls in a batch are one launch on the
    communicator's stream; outside a batch NCCL gives each pair of ranks a communicator, and a stream, of its own.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from simcore.cost import classify
from simcore.graph.ops import OpKind
from workloads.tracing import fake_cuda, fake_dist, streams
from workloads.tracing.aten_ops import AtenOp, dtype_name, num_bytes, shapes_json, tensors_in
from workloads.tracing.comm_calls import P2P, parse_collective
from workloads.tracing.fake_values import read_scalar
from workloads.tracing.group_names import group_symbol
from workloads.tracing.recording import Free, RawOp, Recording, Segment
from workloads.tracing.storages import StorageRecord, StorageTable, extent

StreamKey = int | str

_DEVICE_QUERY = torch.ops.prim.device.default
_PLAIN = (torch.Tensor, FakeTensor, torch.nn.Parameter)
_LAYER = re.compile(r"\blayers\.(\d+)\b")
_KEEP_WORKS = 4096


class RecordedWork(Work):
    """What a communication call returns; waiting for it becomes a WAIT edge."""

    def __init__(self, recorder: Recorder, ops: tuple[int, ...], tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._recorder: Recorder | None = recorder
        self._ops = ops
        self._tensors = tensors

    def wait(self, timeout: object = None) -> bool:
        """The current stream waits; the host does not."""
        if self._recorder is not None:
            self._recorder.stream_waits(streams.current_stream().stream_id, self._ops)
            self._recorder, self._tensors = None, []  # or the tensors would live as long as the handle
        return True

    def synchronize(self) -> None:
        """As :meth:`wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """As :meth:`wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """True: nothing really runs."""
        return True

    def is_success(self) -> bool:
        """True: nothing really runs."""
        return True

    def exception(self) -> None:
        """None: nothing really runs."""

    def result(self) -> list[torch.Tensor]:
        """The tensors of the call."""
        return list(self._tensors)

    def get_future(self) -> Any:
        """A future that is done."""
        future: Any = torch.futures.Future()
        future.set_result(list(self._tensors))
        return future


class Recorder(TorchDispatchMode):
    """Records one rank while active.  ``recording`` off: the program runs and nothing is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.recording = False
        self.result = Recording()
        self.live_bytes = 0
        self.peak_live_bytes = 0
        self._storages = StorageTable(self._storage_died)
        self._operators: dict[Any, AtenOp] = {}
        self._tail: dict[StreamKey, int] = {}
        self._pending: dict[StreamKey, dict[int, None]] = defaultdict(dict)
        self._stream_of: list[StreamKey] = []
        self._covered: dict[StreamKey, int] = {}  # the host has seen the end of this stream's ops below
        self._covered_all = 0
        self._modules: list[str] = []
        self._module_names: dict[int, str] = {}
        self._regions: list[str] = []
        self._scope: str | None = None
        self._phase: str | None = None
        self._segment_phase = "fwd"
        self._forward_of: dict[int, tuple[str, int]] = {}
        self._num_launches = 0
        self._tensor_phase: dict[int, str] = {}
        self._works: deque[RecordedWork] = deque(maxlen=_KEEP_WORKS)  # C++ holds no reference to the Python half
        self._hooks: list[Any] = []

    # -- what is being run ---------------------------------------------------------------------

    def name_modules(self, root: torch.nn.Module) -> None:
        """Use ``root``'s own submodule names in the module column."""
        for name, module in root.named_modules():
            self._module_names[id(module)] = name

    def begin_segment(self, kind: str, microbatch: int = -1, chunk: int = 0, phase: str | None = None) -> None:
        """Ops from here on belong to a new template instance; ``phase`` defaults to the one before."""
        if phase is not None:
            self._segment_phase = phase
        if self.recording:
            self.result.segments.append(Segment(kind, microbatch, chunk, len(self.result.ops)))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Ops inside have phase ``name``, wherever they are issued."""
        outer, self._phase = self._phase, name
        try:
            yield
        finally:
            self._phase = outer

    @contextlib.contextmanager
    def module_scope(self, name: str) -> Iterator[None]:
        """Ops inside belong to module ``name``: for hooks, which know their parameter but run in no module."""
        outer, self._scope = self._scope, name
        try:
            yield
        finally:
            self._scope = outer

    def set_transfer_phase(self, tensor: torch.Tensor | None, phase: str) -> None:
        """The next send or receive of ``tensor`` belongs to ``phase``."""
        if tensor is not None:
            self._tensor_phase[id(tensor)] = phase

    @contextlib.contextmanager
    def _fused_region(self, name: str) -> Iterator[None]:
        self._regions.append(name)
        try:
            yield
        finally:
            self._regions.pop()

    def __enter__(self) -> Any:
        streams.listener = self
        fake_cuda.fused_region = self._fused_region
        hooks = torch.nn.modules.module
        self._hooks = [
            hooks.register_module_forward_pre_hook(self._enter_module),
            hooks.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        streams.listener = None
        fake_cuda.fused_region = None
        super().__exit__(*error)

    def _enter_module(self, module: torch.nn.Module, _args: object) -> None:
        self._modules.append(self._module_names.get(id(module), type(module).__name__))

    def _leave_module(self, _module: torch.nn.Module, _args: object, _output: object) -> None:
        self._modules.pop()

    def _where(self) -> tuple[str, str, int]:
        """(phase, module, forward op) of an op issued now."""
        module = self._modules[-1] if self._modules else ""
        forward = -1
        phase = self._segment_phase
        node = torch._C._current_autograd_node()
        if node is not None and not self._modules:
            phase = "bwd"
            module, forward = self._forward_of.get(node._sequence_nr(), ("", -1))
        else:
            if node is not None:  # a module's forward inside the backward pass
                phase = "recompute"
            made = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
            self._forward_of.setdefault(made, (module, len(self.result.ops)))
        if self._scope is not None:
            module = self._scope
        if self._regions:
            module = f"{module}/fused:{self._regions[-1]}"
        return self._phase or phase, module, forward

    # -- streams and the host ------------------------------------------------------------------

    def stream_frontier(self, stream: StreamKey) -> tuple[int, ...]:
        """See :class:`workloads.tracing.streams.StreamListener`."""
        tail = self._tail.get(stream)
        waiting = tuple(self._pending.get(stream, ()))
        return waiting if tail is None else (*waiting, tail)

    def stream_waits(self, stream: StreamKey, ops: tuple[int, ...]) -> None:
        """See :class:`workloads.tracing.streams.StreamListener`."""
        if self.recording:
            self._pending[stream].update(dict.fromkeys(ops))

    def host_waits(self, name: str, stream: StreamKey | None, ops: tuple[int, ...] = ()) -> None:
        """See :class:`workloads.tracing.streams.StreamListener`."""
        if not self.recording:
            return
        key: StreamKey = "" if stream is None else stream
        waits = dict.fromkeys(ops)
        if stream is not None:
            waits |= self._pending.pop(stream, {})
        phase, module, _ = self._where()
        self._append(name, OpKind.SYNC, key, phase, module, waits=waits, blocking=1)
        if stream is None:
            self._pending.clear()
            self._covered_all = len(self.result.ops)
        elif not ops:
            self._covered[stream] = len(self.result.ops)

    def _still_open(self, op: int, stream: StreamKey) -> bool:
        """Whether ``stream`` must wait for ``op``: not its own, nor seen to end by the host."""
        other = self._stream_of[op]
        return other != stream and op >= max(self._covered_all, self._covered.get(other, 0))

    # -- writing down --------------------------------------------------------------------------

    def _append(
        self,
        name: str,
        kind: OpKind,
        stream: StreamKey,
        phase: str,
        module: str,
        *,
        op_class: str = "",
        inputs: list[torch.Tensor] | None = None,
        outputs: list[torch.Tensor] | None = None,
        waits: dict[int, None] | None = None,
        launch: int = -1,
        forward: int = -1,
        flops: int = 0,
        traffic: tuple[int, int] = (0, 0),
        group: str = "",
        collective: str = "",
        comm_bytes: int = 0,
        reduce_op: str = "",
        peer_delta: int = 0,
        blocking: int = 0,
    ) -> int:
        index = len(self.result.ops)
        inputs, outputs = inputs or [], outputs or []
        data, alloc_bytes = self._touch(index, inputs, outputs)
        layer = _LAYER.search(module)
        typed = inputs or outputs
        columns = (
            name,
            op_class,
            int(kind),
            _stream_symbol(stream),
            phase,
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
        open_waits = tuple(sorted(op for op in waits or () if self._still_open(op, stream)))
        self.result.ops.append(RawOp(columns, data, open_waits, launch, forward, alloc_bytes))
        self._stream_of.append(stream)
        self._tail[stream] = index
        return index

    def _touch(
        self, index: int, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> tuple[tuple[int, ...], int]:
        """Data dependencies of op ``index`` and the bytes it brings to life."""
        writers: dict[int, None] = {}
        born = 0
        for tensor in inputs:
            record = self._storages.record(tensor, newborn=False)
            born += self._adopt(record, index)
            writers |= dict.fromkeys(record.writers.overlapping(*extent(tensor)))
        for tensor in outputs:
            record = self._storages.record(tensor, newborn=True)
            born += self._adopt(record, index)
            low, high = extent(tensor)
            writers |= dict.fromkeys(record.writers.overlapping(low, high))
            record.writers.write(low, high, index)
        writers.pop(index, None)
        return tuple(sorted(writers)), born

    def _adopt(self, record: StorageRecord, index: int) -> int:
        """Bytes of a storage that comes to life with op ``index``; 0 when it lives already."""
        if record.owner != StorageRecord.UNTOUCHED:
            return 0
        record.owner = index
        self.live_bytes += record.num_bytes
        self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes)
        return record.num_bytes

    def _storage_died(self, record: StorageRecord) -> None:
        if record.owner >= 0 and self.recording and record.num_bytes:
            self.live_bytes -= record.num_bytes
            self.result.frees.append(Free(len(self.result.ops) - 1, record.num_bytes, record.owner))

    # -- dispatch ------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
        if operator.base.startswith("c10d::"):
            return self._communicate(operator.base[6:], args)
        if operator.base == "aten::_local_scalar_dense":
            return self._read_value(args[0])
        result = func(*args, **kwargs)
        if not self.recording:
            return result
        if operator.allocates:
            if isinstance(result, torch.Tensor) and result.device.type == "cuda":
                self._storages.record(result, newborn=True)
        elif operator.has_kernel:
            self._record_kernel(operator, args, kwargs, result)
        return result

    def _record_kernel(self, operator: AtenOp, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        inputs = tensors_in(list(kwargs.values()), tensors_in(args, [])) if kwargs else tensors_in(args, [])
        outputs = operator.outputs(args, kwargs, result)
        device_inputs = [tensor for tensor in inputs if tensor.device.type == "cuda"]
        device_outputs = [tensor for tensor in outputs if tensor.device.type == "cuda"]
        if not device_inputs and not device_outputs:
            return
        stream: StreamKey = streams.current_stream().stream_id
        phase, module, forward = self._where()
        waits = self._pending.pop(stream, None)
        copies = operator.base in ("aten::_to_copy", "aten::copy_")
        if copies and len(device_inputs) + len(device_outputs) < len(inputs) + len(outputs):
            moved = num_bytes(outputs[0])
            self._append(
                operator.name, OpKind.MEMCPY, stream, phase, module, op_class="copy", inputs=device_inputs,
                outputs=device_outputs, waits=waits, forward=forward, traffic=(moved, moved),
            )  # fmt: skip
            return
        flops = operator.flops(*args, **kwargs, out_val=result) if operator.flops is not None else 0
        self._append(
            operator.name, OpKind.COMPUTE, stream, phase, module, op_class=classify(operator.name),
            inputs=device_inputs, outputs=device_outputs, waits=waits, forward=forward, flops=int(flops),
            traffic=operator.traffic(device_inputs, device_outputs),
        )  # fmt: skip

    def _read_value(self, tensor: torch.Tensor) -> bool | int | float:
        """``item()``: a copy to the host that the host waits for."""
        if tensor.device.type == "cuda" and self.recording:
            stream: StreamKey = streams.current_stream().stream_id
            phase, module, _ = self._where()
            waits = self._pending.pop(stream, None)
            self._append("aten::item", OpKind.SYNC, stream, phase, module, inputs=[tensor], waits=waits, blocking=1)
            self._covered[stream] = len(self.result.ops)
        return read_scalar(tensor)

    # -- communication -------------------------------------------------------------------------

    def _communicate(self, name: str, args: Any) -> Any:
        if name == "check_for_nan":
            return None
        if name in P2P:
            return self._work(self._transfer(P2P[name], args), tensors_in(args[0], [])).boxed()
        call = parse_collective(name, args)
        ops: list[int] = []
        if self.recording:
            group = fake_dist.unbox(call.group)
            members = fake_dist.group_members(group)
            symbol = self._use_group(group, members)
            launch = self._next_launch() if len(call.parts) > 1 else -1
            current: StreamKey = streams.current_stream().stream_id
            for (inputs, outputs), size in zip(call.parts, call.sizes, strict=True):
                if len(members) == 1:
                    ops += self._copy_to_self(inputs, outputs, current, in_place=call.in_place)
                    continue
                phase, module, forward = self._where()
                if call.is_async:
                    stream: StreamKey = symbol
                    waits = dict.fromkeys(self.stream_frontier(current))
                else:
                    stream, waits = current, self._pending.pop(current, {})
                reduces = call.collective in ("all_reduce", "reduce_scatter", "reduce")
                ops.append(
                    self._append(
                        f"nccl::{call.collective}", OpKind.COLLECTIVE, stream, phase, module, inputs=inputs,
                        outputs=outputs, waits=waits, launch=launch, forward=forward, group=symbol,
                        collective=call.collective, comm_bytes=size,
                        reduce_op=fake_dist.current_reduce_op or "sum" if reduces else "",
                    )  # fmt: skip
                )
        work = self._work(tuple(ops) if call.is_async else (), tensors_in(args[0], []))
        return work.boxed() if call.bare else (args[0], work.boxed())

    def _copy_to_self(
        self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], stream: StreamKey, *, in_place: bool
    ) -> list[int]:
        """A collective among one rank is a copy, or nothing when in place (NCCL launches no kernel)."""
        if in_place:
            return []
        phase, module, forward = self._where()
        moved = sum(map(num_bytes, outputs))
        waits = self._pending.pop(stream, None)
        return [
            self._append(
                "nccl::copy", OpKind.MEMCPY, stream, phase, module, op_class="copy", inputs=inputs,
                outputs=outputs, waits=waits, forward=forward, traffic=(moved, moved),
            )  # fmt: skip
        ]

    def _transfer(self, direction: str, args: Any) -> tuple[int, ...]:
        """One send or receive; ``args`` are (tensors, group, peer's rank in the group, tag)."""
        if not self.recording:
            return ()
        tensors = tensors_in(args[0], [])
        group = fake_dist.unbox(args[1])
        members = fake_dist.group_members(group)
        symbol = self._use_group(group, members)
        delta = (int(args[2]) - group.rank()) % len(members)
        batched = fake_dist.current_batch >= 0
        stream: StreamKey = symbol if batched else f"{symbol}.pair.{delta}"
        phase, module, _ = self._where()
        phase = self._tensor_phase.pop(id(tensors[0]), phase)
        waits = dict.fromkeys(self.stream_frontier(streams.current_stream().stream_id))
        sends = direction == "send"
        # Negative numbers keep batches apart from coalesced collectives, which count up.
        launch = -2 - fake_dist.current_batch if batched else -1
        index = self._append(
            f"nccl::{direction}", OpKind.SEND if sends else OpKind.RECV, stream, phase, module,
            inputs=tensors if sends else [], outputs=[] if sends else tensors, waits=waits, launch=launch,
            group=symbol, comm_bytes=sum(map(num_bytes, tensors)), peer_delta=delta,
        )  # fmt: skip
        return (index,)

    def _use_group(self, group: Any, members: tuple[int, ...]) -> str:
        symbol = group_symbol(group.group_desc)
        known = self.result.groups.setdefault(symbol, members)
        if known != members:
            raise RuntimeError(f"two process groups of this rank are called {symbol!r}: {known} and {members}")
        return symbol

    def _next_launch(self) -> int:
        self._num_launches += 1
        return self._num_launches - 1

    def _work(self, ops: tuple[int, ...], tensors: list[torch.Tensor]) -> RecordedWork:
        work = RecordedWork(self, ops, tensors)
        self._works.append(work)
        return work


def _stream_symbol(stream: StreamKey) -> str:
    if isinstance(stream, str):
        return stream
    return "compute" if stream == streams.DEFAULT_STREAM else f"side.{stream}"
