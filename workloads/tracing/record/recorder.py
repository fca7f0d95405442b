"""A dispatch mode that writes down every kernel, collective, transfer and synchronisation of one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from simcore.cost import classify
from simcore.graph.ops import OpKind
from workloads.tracing import kernels
from workloads.tracing.fake import (
    constructors,
    cuda,
    cuda_graphs,
    grouped_products,
    host_tensors,
    host_values,
    known_values,
    moved_shards,
    orders,
    parallel_patches,
    parameters,
    sparse_tensors,
    storages,
    streams,
    true_counts,
)
from workloads.tracing.fake.aten_ops import AtenOp, all_on_device, is_on_device, num_bytes, tensors_in
from workloads.tracing.fake.expert_load import ExpertLoad
from workloads.tracing.fake.expert_routing import ExpertRouting
from workloads.tracing.fake.known_values import KnownValues
from workloads.tracing.fake.shape_cache import ShapeCache, view
from workloads.tracing.fake.storages import StorageRecord, touched_bytes
from workloads.tracing.record.comm_calls import UnknownCallError
from workloads.tracing.record.communication import CommunicationRecorder
from workloads.tracing.record.op_log import HOST_STREAM, OpLog

_DEVICE_QUERY = torch.ops.prim.device.default
_PLAIN = (torch.Tensor, FakeTensor, torch.nn.Parameter)


class Recorder(OpLog, TorchDispatchMode):
    """Records one rank while active.  With ``recording`` off the program runs and nothing is written down.

    ``whole_life`` follows every storage from its first use, also before
    the recorded step: ``live_bytes`` then is what the rank holds.  ``load``: where mixtures of experts send
    their tokens.
    """

    def __init__(self, *, whole_life: bool = False, load: ExpertLoad | None = None) -> None:
        OpLog.__init__(self, whole_life=whole_life)
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self.num_calls = 0
        self.communication = CommunicationRecorder(self)
        self.known = KnownValues()
        self.routing = ExpertRouting(
            load or ExpertLoad(),
            host_values.routing_exponent,
            lambda: self.labels.current_module,
            self.known,
        )
        #: Whether large tensors that the host computes with are the program's work, too (offloaded states).
        self.host_counts = False
        #: Told of tensors of the device that are written in place, recorded or not.
        self.on_write: Callable[[Sequence[torch.Tensor]], None] | None = None
        self._operators: dict[Any, AtenOp] = {}
        self._shapes = ShapeCache()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while tracing: spares a wrapper around every dispatch."""
        return False

    def __enter__(self) -> Any:
        """Record from now on (as far as ``recording`` says)."""
        streams.listener = kernels.listener = cuda_graphs.listener = self
        cuda.fused_region = self.labels.fused_region
        self.labels.install()
        storages.on_resize = self._storages.resized
        host_values.on_host_read = self.host_reads
        host_tensors.mode = active_fake_mode()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        """Leave the program alone."""
        self.labels.remove()
        storages.on_resize = host_values.on_host_read = host_tensors.mode = None
        streams.listener = kernels.listener = cuda_graphs.listener = streams.on_ask = None
        cuda.fused_region = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` on shapes alone and write it down."""
        if func is _DEVICE_QUERY and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # most calls by far
        of_shapes = False
        for kind in types:
            if kind is FakeTensor:
                of_shapes = True
            elif issubclass(kind, FakeTensor):
                with parameters.as_plain_shapes((args, *(kwargs or {}).values())):
                    return self.__torch_dispatch__(func, (FakeTensor,), args, kwargs)
            elif kind not in _PLAIN and issubclass(kind, torch.Tensor):
                # DTensor and its like: let the wrapper run, its local ops come back here.
                return NotImplemented
        kwargs = kwargs or {}
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = AtenOp(func)
        self.num_calls += 1
        if operator.made_of is not None:
            called = self.num_calls
            _push_mode(self)
            try:
                made = operator.made_of(*args, **kwargs)
            finally:
                _pop_mode()
            if self.num_calls > called or operator.base.startswith("aten::"):
                return made
            # Code that calls nothing of torch works outside of it: then a custom operator is a kernel itself.
            return self._on_shapes(func, operator, args, kwargs)
        apart = sparse_tensors.takes_apart(operator.base, args, kwargs)
        apart = apart or moved_shards.takes_apart(operator.base)
        apart = apart or grouped_products.takes_apart(operator.base, args, kwargs)
        if apart is not None:
            _push_mode(self)
            try:
                return apart(*args, func=func, **kwargs)
            finally:
                _pop_mode()
        if operator.base == "aten::_sparse_coo_tensor_with_dims_and_tensors" and of_shapes:
            coalesced = bool(kwargs.get("is_coalesced"))
            return sparse_tensors.made(func(*args, **kwargs), *args[3:5], coalesced=coalesced)
        if operator.base.startswith("c10d::"):
            return self.communication.call(operator.base.removeprefix("c10d::"), args)
        if operator.base.startswith("_c10d_functional::"):
            return self.communication.functional(func, operator.base.partition("::")[2], args, kwargs)
        if operator.in_group and operator.cost is None:
            raise UnknownCallError(
                f"{operator.base} communicates within a process group in a way that cannot be traced; "
                f"register_cost (--setup) says what it costs if it is to count as a kernel of this rank"
            )
        if operator.base == "aten::_local_scalar_dense":
            return self._read_value(args[0])
        if operator.base == "aten::is_pinned":
            return not is_on_device(args[0])
        if not of_shapes:
            if operator.base == "aten::copy_":
                self._copies_integers(args[0], args[1])
            result: Any = host_tensors.run(func, operator, args, kwargs)
            if result is not NotImplemented:
                return result
        return self._on_shapes(func, operator, args, kwargs)

    def _copies_integers(self, to: Any, source: Any) -> None:
        """DDP's reducer tells its device which parameters were used, and waits to be told of all ranks."""
        if not self.recording or parallel_patches.of_device(to) == parallel_patches.of_device(source):
            return
        stream = streams.current_stream().stream_id
        if parallel_patches.of_device(source):
            self.host_waits("aten::copy_", stream)
        else:
            size = num_bytes(to)
            waits = self.order.take(stream)
            self.append(
                *("aten::copy_", OpKind.MEMCPY, stream),
                op_class="copy",
                outputs=[to],
                waits=waits,
                traffic=(size, size),
            )

    def _on_shapes(self, func: Any, operator: AtenOp, given: Any, named: dict[str, Any]) -> Any:
        """Run a call in which the device has a part: shapes and, where they are known, values."""
        args, kwargs = given, named
        of_host = [one for one in operator.inputs(given, named) if not isinstance(one, FakeTensor)]
        if of_host:
            args = host_tensors.shapes_in(given)
            kwargs = {name: host_tensors.shapes_in(value) for name, value in named.items()}
        real = self.known.sized_result(func, operator, args, kwargs) if operator.sized_by_values else None
        if real is not None:
            result: Any = known_values.shaped_like(real, args[0].fake_device)
            known_values.attach(result, real)
        else:
            result = self._shape_of(func, operator, args, kwargs)
            if not operator.is_view:
                most = true_counts.bound(operator.base, args)
                known = self.known.follow(func, operator, args, kwargs, result)
                if most is not None and not known:
                    true_counts.remember(operator.outputs(args, kwargs, result), most)
                if operator.finds_overflow and not known:
                    host_values.assume_no_overflow(args[1])
                if operator.chooses and not known:
                    routed = self.routing.choose(operator.base, args, kwargs, result)
                    if not routed:
                        orders.choose(operator.base, args, kwargs, result, self.known)
                if of_host and operator.writes:
                    result = host_tensors.written(operator, given, named, args, kwargs, result)
        self._note(operator, args, kwargs, result)
        return result if operator.is_view or operator.writes else host_tensors.real_result(result)

    def _shape_of(self, func: Any, operator: AtenOp, args: Any, kwargs: dict[str, Any]) -> Any:
        if operator.result_is_known and all_on_device(args[0]):
            return args[0] if func._schema.returns else None
        if operator.is_view:
            return view(func, args, kwargs)
        if not constructors.are_own():
            return constructors.with_own(lambda: func(*args, **kwargs))
        if operator.shapes_decide:
            return self._shapes.call(func, args, kwargs)
        return func(*args, **kwargs)

    def _note(self, operator: AtenOp, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Write down what has been run."""
        if operator.writes and self.on_write is not None:
            self.on_write([one for one in operator.outputs(args, kwargs, result) if is_on_device(one)])
        if not self.recording:
            if self._whole_life and not operator.writes:
                for tensor in tensors_in(result, []):
                    if is_on_device(tensor):
                        self.record_of(tensor).owner = StorageRecord.OLDER
        elif operator.has_kernel:
            self._record_kernel(operator, args, kwargs, result)
        else:
            self.backward_streams.note(args[:1] if args and isinstance(args[0], torch.Tensor) else ())
            self.labels.note_view()
            if operator.allocates and is_on_device(result):
                self._storages.record(result, newborn=True)

    def _record_kernel(self, operator: AtenOp, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        inputs = operator.inputs(args, kwargs)
        outputs = operator.outputs(args, kwargs, result)
        device_inputs = [tensor for tensor in inputs if is_on_device(tensor)]
        device_outputs = [tensor for tensor in outputs if is_on_device(tensor)]
        if not device_inputs and not any(one.numel() for one in device_outputs):
            if self.host_counts and outputs and not device_outputs:
                self.host_passes(operator.base, sum(operator.traffic(inputs, outputs, kwargs)))
            return  # of the host alone, or nothing is filled
        name = operator.kernel(args, kwargs)
        across = len(device_inputs) + len(device_outputs) < len(inputs) + len(outputs)
        if operator.base in ("aten::_to_copy", "aten::copy_") and across:
            kind, op_class, flops = OpKind.MEMCPY, "copy", 0
            traffic = (num_bytes(outputs[0]), num_bytes(outputs[0]))
        else:
            kind, op_class = OpKind.COMPUTE, classify(name)
            flops = operator.num_flops(args, kwargs, result)
            traffic = operator.traffic(device_inputs, device_outputs, kwargs)
            if operator.cost is not None:
                cost = operator.cost(*args, **kwargs)
                name, flops, traffic = cost.kernel or name, cost.flops, _traffic(cost, *traffic)
                op_class = cost.op_class or classify(name)
        current = streams.current_stream().stream_id
        added_on = self.backward_streams.adds_up(name, device_outputs)
        stream = current if added_on is None else added_on
        self.backward_streams.note(device_inputs)
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
        if kind is OpKind.MEMCPY and not _is_non_blocking(operator.base, args, kwargs):
            self.host_waits("cudaStreamSynchronize", stream)
        if operator.sized_by_values and operator.base != "aten::index":  # the host reads how many there are
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
        inputs, outputs = list(reads), list(writes)
        known_values.forget(outputs)
        if self.on_write is not None:
            self.on_write(outputs)
        if not self.recording:
            return
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

    def host_passes(self, name: str, num_bytes: int) -> None:
        """The host reads and writes ``num_bytes`` of its memory; nothing is issued meanwhile."""
        if self.recording:
            name = f"cpu_{name.rpartition('::')[2].strip('_')}"
            traffic = (num_bytes, num_bytes)  # as described jobs count it
            self.append(name, OpKind.MEMCPY, HOST_STREAM, op_class="copy", traffic=traffic)
            self.host_waits(name, HOST_STREAM)

    def is_unwritten(self, tensor: torch.Tensor) -> bool:
        """Whether nothing has touched the memory of ``tensor`` since it was allocated in the step."""
        return self.recording and self.record_of(tensor).owner == StorageRecord.UNTOUCHED

    def _read_value(self, tensor: torch.Tensor) -> bool | int | float:
        """``item()``: a copy to the host that the host waits for."""
        self.host_reads(tensor, "aten::item")
        return host_values.read_scalar(tensor)

    def host_reads(self, tensor: torch.Tensor, name: str) -> None:
        """The host copies ``tensor`` and waits for it."""
        if self.recording and is_on_device(tensor):
            stream = streams.current_stream().stream_id
            waits = self.order.take(stream)
            self.append(name, OpKind.SYNC, stream, inputs=[tensor], waits=waits, blocking=1)
            self.order.host_saw_end(stream)


def _is_non_blocking(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the host goes on at once behind a copy from or to its memory (``copy_kernel_cuda`` of
    Copy.cu: else the stream is synchronised).
    """
    given = kwargs.get("non_blocking", False)
    return bool(args[2] if name == "aten::copy_" and len(args) > 2 else given)


def _traffic(cost: kernels.KernelCost, read: int, written: int) -> tuple[int, int]:
    """Bytes read and written that ``cost`` says, else these."""
    return (
        read if cost.bytes_read < 0 else cost.bytes_read,
        written if cost.bytes_written < 0 else cost.bytes_written,
    )
