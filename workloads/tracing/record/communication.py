"""Communication calls become ops; nothing is sent.

Note [Streams of communication]
    A collective with ``async_op=False`` runs on the stream that issues it (torch 2.8 and later), an
    asynchronous one on its communicator's stream, which is named after the group.  Point-to-point calls in
    a batch are one launch on the communicator's stream; outside a batch torch gives each pair of ranks a
    communicator, and a stream, of its own, unless the group has made its own at once (a ``device_id``).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import Work
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from simcore.collectives.kinds import kind_of
from simcore.graph.ops import OpKind
from workloads.tracing.fake import object_exchange, process_groups, streams
from workloads.tracing.fake.aten_ops import is_on_device, num_bytes, tensors_in
from workloads.tracing.fake.known_exchange import exchange, transfer
from workloads.tracing.fake.parallel_patches import of_device
from workloads.tracing.record.comm_calls import (
    P2P,
    CollectiveCall,
    check_call,
    check_place,
    is_out_of_place_copy,
    is_scattered,
    parse_collective,
    parse_functional,
)
from workloads.tracing.record.futures import CallbackStreams, RecordedFuture
from workloads.tracing.record.op_log import StreamKey
from workloads.tracing.record.uneven import UNEVEN_EXCHANGE

if TYPE_CHECKING:
    from workloads.tracing.record.recorder import Recorder

_KEEP_WORKS = 4096


#: With which torch's NCCL groups let the host wait wherever a program waits for a call (the older name, too).
_BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")

_LATE = (
    "communication that the step before issued is waited for: it is written down at the end of a step, "
    "beside nothing of the next one"
)


class RecordedWork(Work):
    """What a communication call returns; waiting for it becomes a WAIT edge.

    The host waits for a barrier, and where the program says how long it would wait (``WorkNCCL::wait``).
    """

    def __init__(
        self,
        recorder: Recorder,
        ops: tuple[int, ...],
        tensors: list[torch.Tensor],
        arrive: Callable[[], None] | None = None,
        *,
        is_barrier: bool = False,
    ) -> None:
        super().__init__()
        self._arrive, self._is_barrier = arrive, is_barrier
        self._recorder: Recorder | None = recorder
        self._ops = ops
        self._tensors = tensors
        #: Issued before the step that is recorded, by what its ranks send one another on GPUs.
        self._before = not (recorder.recording or is_barrier) and any(map(is_on_device, tensors))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """The current stream waits, and the host where it does so for real."""
        if self._recorder is not None and self._is_barrier:
            self._recorder.stream_waits(streams.current_stream().stream_id, self._ops)
            self._recorder.host_waits("cudaStreamSynchronize", streams.current_stream().stream_id)
        elif self._recorder is not None and self._ops and (timeout or _host_waits()):
            self._recorder.host_waits_for("cudaEventQuery", self._ops)
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """The current stream waits."""
        if self._arrive is not None:
            self._arrive()
            self._arrive = None
        if self._recorder is not None:
            on_late = self._recorder.communication.on_late
            if self._before and self._recorder.recording and on_late is not None:
                on_late(_LATE)
            self._recorder.stream_waits(streams.current_stream().stream_id, self._ops)
            self._recorder, self._tensors = None, []  # or the tensors would live as long as the handle

    def block_current_stream(self) -> None:
        """As :meth:`synchronize`."""
        self.synchronize()

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
        """A future that is done.  Who waits for it is C++ code (DDP's reducer): see
        :meth:`CommunicationRecorder.future_waits`.
        """
        if self._recorder is None:
            future: Any = torch.futures.Future()
            future.set_result([])
            return future
        made = RecordedFuture(self._recorder.communication, list(self._tensors), self._ops)
        self._recorder, self._tensors = None, []
        return made


class CommunicationRecorder:
    """Answers the dispatcher's ``c10d`` operators on behalf of a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._num_launches = 0
        # The C++ half of a Work holds no reference to the Python half.
        self._futures: dict[Any, tuple[int, ...]] = {}
        self._unfinished: dict[Any, tuple[int, ...]] = {}
        self.callback_streams = CallbackStreams()
        self._works: deque[RecordedWork] = deque(maxlen=_KEEP_WORKS)
        #: Told what NCCL would say of a call, if strides are what they are on shapes.
        self.on_refused: Callable[[str], None] | None = None
        #: Told that what the step before issued is waited for.
        self.on_late: Callable[[str], None] | None = None
        #: Told of every send and receive outside of modules.
        self.on_transfer: Callable[[], None] | None = None

    def call(self, name: str, args: Any) -> Any:
        """Record ``c10d::<name>`` and return what the operator would return."""
        if name == "check_for_nan":
            return None
        if name in ("barrier", "monitored_barrier_") and object_exchange.mailbox is not None:
            object_exchange.mailbox.meet(process_groups.unbox(args[1]))
        if name == "monitored_barrier_":  # of the host
            return None
        if name in P2P:
            group = process_groups.unbox(args[1])
            check_place(name, args, group.size())
            arrive = transfer(P2P[name] == "send", tensors_in(args[0], []), group, int(args[2]))
            return self._work(self._transfer(P2P[name], args), args, arrive)
        call = parse_collective(name, args)
        check_place(name, args, process_groups.unbox(call.group).size())
        self._check(name, args, call)
        recorded = self._recorder.recording and not _stays_on_host(call)
        if self._recorder.on_write is not None:
            self._recorder.on_write([one for _, outputs in call.parts for one in outputs])
        ops = self._collective(call) if recorded else ()
        self._exchange_known(name, args, call, process_groups.current_reduce_op or "sum")
        is_barrier = recorded and name == "barrier"
        work = self._work(ops if call.is_async else (), args, is_barrier=is_barrier)
        return work if call.bare else (args[0], work)

    def functional(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Record ``_c10d_functional::<name>``, of which DTensor is made; returns its (fake) result."""
        recorder = self._recorder
        if name == "wait_tensor":
            waits = self._unfinished.pop(recorder.record_of(args[0]), ()) if recorder.recording else ()
            recorder.stream_waits(streams.current_stream().stream_id, waits)
            return args[0]
        if name == "_wrap_tensor_autograd":  # waits where it is used first
            return AsyncCollectiveTensor(args[0])
        if any(isinstance(tensor, FakeTensor) for tensor in tensors_in(args[0], [])):
            result = func(*args, **kwargs)
        else:
            with torch._C._DisableTorchDispatch():
                result = func(*args, **kwargs)
        call, reduce_op = parse_functional(name, args, result)
        self._check(name, args, call)
        if name == "all_to_all_single":  # (tensor, splits of the result, splits of the tensor, group)
            self._exchange_known("alltoall_base_", (result, args[0], None, *args[1:3]), call, reduce_op)
        elif name in ("all_gather_into_tensor", "all_reduce", "all_reduce_", "reduce_scatter_tensor"):
            source = args[0] if name.startswith("all_reduce") else result
            self._exchange_known(name.removesuffix("_"), (source, args[0]), call, reduce_op)
        elif name in ("broadcast", "broadcast_"):
            self._exchange_known("broadcast_", (tensors_in(args[0], []), None, args[1]), call, reduce_op)
        else:
            self._exchange_known("", args, call, reduce_op)
        if not recorder.recording or _stays_on_host(call):
            return result
        stream: StreamKey = streams.current_stream().stream_id
        if is_out_of_place_copy(name):  # torch clones the input and works in place
            for inputs, outputs in call.parts:
                recorder.append(
                    "aten::clone",
                    OpKind.COMPUTE,
                    stream,
                    op_class="copy",
                    inputs=inputs,
                    outputs=outputs,
                    waits=recorder.order.take(stream),
                    traffic=(sum(map(num_bytes, inputs)), sum(map(num_bytes, outputs))),
                )
            call = call.in_place_on_outputs()
        ops = self._collective(call, reduce_op)
        for tensor in tensors_in(result, []):
            self._unfinished[recorder.record_of(tensor)] = ops
        return result

    def _check(self, name: str, args: Any, call: CollectiveCall) -> None:
        group = process_groups.unbox(call.group)
        backend = process_groups.get_backend(group)
        check_call(name, args, call, group.size(), backend)
        if self.on_refused is not None and backend == "nccl" and is_scattered(name, call):
            self.on_refused(f"NCCL refuses {call.collective} of tensors that are not contiguous")

    def _exchange_known(self, name: str, args: Any, call: CollectiveCall, reduce_op: str) -> None:
        """Known values travel with ``c10d::<name>``."""
        outputs = [tensor for _, written in call.parts for tensor in written]
        if outputs or name == "gather_":
            group = process_groups.unbox(call.group)
            exchange(name, args, outputs, group, reduce_op, alike=self._recorder.known.routed)

    def note_future(self, tensors: list[torch.Tensor], ops: tuple[int, ...]) -> None:
        """Somebody got a future for ``ops``, which write ``tensors``."""
        if ops and self._recorder.recording:
            for tensor in tensors:
                self._futures[self._recorder.record_of(tensor)] = ops

    def future_waits(self, tensors: list[torch.Tensor]) -> tuple[int, ...]:
        """Waits that an op on ``tensors`` follows.  DDP's reducer waits for a bucket's future right before it
        touches the bucket, and for all of them before the backward pass returns.
        """
        if not self._futures:
            return ()
        records = [self._recorder.record_of(tensor) for tensor in tensors]
        return tuple(op for record in records for op in self._futures.pop(record, ()))

    def finish_futures(self) -> None:
        """The current stream waits for every future that nobody has waited for."""
        for ops in self._futures.values():
            self._recorder.stream_waits(streams.current_stream().stream_id, ops)
        self._futures.clear()
        self.callback_streams.rewind()

    def stream_waits(self, stream: StreamKey, ops: tuple[int, ...]) -> None:
        """The next op of ``stream`` starts after ``ops``."""
        self._recorder.stream_waits(stream, ops)

    def stream_frontier(self, stream: StreamKey) -> tuple[int, ...]:
        """Ops that an event recorded now on ``stream`` stands for."""
        return self._recorder.stream_frontier(stream)

    def _work(
        self,
        ops: tuple[int, ...],
        args: Any,
        arrive: Callable[[], None] | None = None,
        *,
        is_barrier: bool = False,
    ) -> Any:
        work = RecordedWork(self._recorder, ops, tensors_in(args[0], []), arrive, is_barrier=is_barrier)
        self._works.append(work)
        return work.boxed()

    def _collective(self, call: CollectiveCall, functional_op: str = "") -> tuple[int, ...]:
        """One op per collective of the call."""
        group = process_groups.unbox(call.group)
        members = process_groups.group_members(group)
        issuing: StreamKey = streams.current_stream().stream_id
        if len(members) == 1:
            return self._copy_to_self(call, issuing)
        symbol = self._use_group(group, members)
        launch = self._next_launch() if len(call.parts) > 1 else -1
        waits = self._recorder.order
        reduce_op = functional_op or process_groups.current_reduce_op or "sum"
        phase = "grad_sync" if self._recorder.labels.sharing_gradients else None
        kind = call.kind(len(members))
        return tuple(
            self._recorder.append(
                UNEVEN_EXCHANGE if call.uneven else f"nccl::{call.collective}",
                OpKind.COLLECTIVE,
                symbol if call.is_async else issuing,
                phase=phase,
                inputs=inputs,
                outputs=outputs,
                waits=waits.frontier(issuing) if call.is_async else waits.take(issuing),
                launch=launch,
                group=symbol,
                collective=kind,
                num_bytes=size,
                reduce_op=reduce_op if kind_of(kind).reduces else "",
            )
            for (inputs, outputs), size in zip(call.parts, call.sizes, strict=True)
        )

    def _copy_to_self(self, call: CollectiveCall, stream: StreamKey) -> tuple[int, ...]:
        """A collective among one rank is a copy, or nothing when in place (NCCL launches no kernel)."""
        if call.in_place:
            return ()
        return tuple(
            self._recorder.append(
                "nccl::copy",
                OpKind.MEMCPY,
                stream,
                op_class="copy",
                inputs=inputs,
                outputs=outputs,
                waits=self._recorder.order.take(stream),
                traffic=(size, size),
            )
            for (inputs, outputs), size in zip(call.parts, call.sizes, strict=True)
        )

    def _transfer(self, direction: str, args: Any) -> tuple[int, ...]:
        """One send or receive; ``args`` are (tensors, group, peer's rank in the group, tag)."""
        recorder = self._recorder
        tensors = tensors_in(args[0], [])
        if not any(map(is_on_device, tensors)):
            return ()
        if self.on_transfer is not None and not recorder.labels.in_module:
            self.on_transfer()
        if not recorder.recording:
            return ()
        group = process_groups.unbox(args[1])
        members = process_groups.group_members(group)
        symbol = self._use_group(group, members)
        delta = (int(args[2]) - group.rank()) % len(members)
        batched = process_groups.current_batch >= 0
        in_turn = batched or process_groups.is_eager(group)
        sends = direction == "send"
        phase, _, _ = recorder.labels.where(-1)
        index = recorder.append(
            f"nccl::{direction}",
            OpKind.SEND if sends else OpKind.RECV,
            symbol if in_turn else f"{symbol}.pair.{delta}",
            phase=recorder.labels.transfer_phase(tensors[0], phase),
            inputs=tensors if sends else [],
            outputs=[] if sends else tensors,
            waits=recorder.order.frontier(streams.current_stream().stream_id),
            # Negative numbers keep batches apart from coalesced collectives, which count up.
            launch=-2 - process_groups.current_batch if batched else -1,
            group=symbol,
            num_bytes=sum(map(num_bytes, tensors)),
            peer_delta=delta,
        )
        return (index,)

    def _use_group(self, group: Any, members: tuple[int, ...]) -> str:
        symbol = process_groups.symbol_of(group)
        known = self._recorder.result.groups.setdefault(symbol, members)
        if known != members:
            raise RuntimeError(f"two process groups of this rank are called {symbol!r}: {known}, {members}")
        return symbol

    def _next_launch(self) -> int:
        self._num_launches += 1
        return self._num_launches - 1


def _host_waits() -> bool:
    return any(os.environ.get(name, "0") == "1" for name in _BLOCKING)


def _stays_on_host(call: CollectiveCall) -> bool:
    """Tensors of the host travel by gloo; a barrier goes where its group's backend says."""
    tensors = [tensor for inputs, outputs in call.parts for tensor in (*inputs, *outputs)]
    return (
        not any(is_on_device(one) or of_device(one) for one in tensors)
        if tensors
        else process_groups.on_host(process_groups.unbox(call.group))
    )
