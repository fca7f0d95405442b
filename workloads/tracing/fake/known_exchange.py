"""Collectives of known values: what a rank gets is known where what every rank gives is.

Every rank runs the same program: the others are taken to give what this one gives.  A broadcast of few
elements brings what its root has (Note [Mail between runs]); what a scatter brings is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from workloads.tracing.fake import object_exchange
from workloads.tracing.fake.aten_ops import tensors_in
from workloads.tracing.fake.known_values import forget, remember, values_of

#: Elements of a broadcast whose values travel.
_MOST_SENT = 1 << 12

_REDUCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda given: given.sum(0).to(given.dtype),
    "avg": lambda given: given.double().mean(0).to(given.dtype),
    "product": lambda given: given.prod(0).to(given.dtype),
    "min": lambda given: given.amin(0),
    "max": lambda given: given.amax(0),
}


def exchange(name: str, args: Any, outputs: Sequence[torch.Tensor], group: Any, reduce_op: str) -> None:
    """``c10d::<name>`` has been called with ``args`` in ``group`` and wrote ``outputs``: known values arrive
    there, or what was there is forgotten.
    """
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        arrived = _arrived(name, args, group.size(), group.rank(), reduce_op)
        if name == "broadcast_":
            arrived = _broadcast(args[0], group, args[2])
        if arrived is None:
            forget(list(outputs))
            return
        for output, values in zip(outputs, arrived, strict=True):
            _write(output, values)


def _arrived(name: str, args: Any, ranks: int, rank: int, reduce_op: str) -> list[torch.Tensor] | None:
    """Values of each output; None when they are not known."""
    if name in ("allreduce_", "allreduce_coalesced_", "all_reduce"):
        reduce = _REDUCE.get(reduce_op)
        given = _known(args[0])
        if reduce is None or given is None:
            return None
        return [reduce(torch.stack([values] * ranks)) for values in given]
    if name in ("_allgather_base_", "allgather_into_tensor_coalesced_", "all_gather_into_tensor"):
        given = _known(args[1])
        return None if given is None else [torch.cat([values.reshape(-1)] * ranks) for values in given]
    if name in ("allgather_", "gather_"):
        given = _known(args[1])
        if given is None:
            return None
        return [values for outputs, values in zip(args[0], given, strict=False) for _ in outputs]
    if name == "alltoall_base_":
        given, splits = _known(args[1]), args[4] or None
        if given is None or (splits is None and given[0].shape[0] % ranks):
            return None
        parts = torch.split(given[0], splits or given[0].shape[0] // ranks)
        return [torch.cat([parts[rank]] * ranks)]
    return None


def _broadcast(tensors: Sequence[torch.Tensor], group: Any, root: int) -> list[torch.Tensor] | None:
    """What the rank at place ``root`` has; of many elements only that rank knows it."""
    known = _known(tensors) if group.rank() == root else None
    box = object_exchange.mailbox
    if box is None or group.size() == 1 or sum(tensor.numel() for tensor in tensors) > _MOST_SENT:
        return known
    if group.rank() == root:
        box.send_values(None if known is None else [_array(values) for values in known], group)
        return known
    sent = box.receive_values(group, root)
    return None if sent is None else [torch.from_numpy(values) for values in sent]


def _array(values: torch.Tensor) -> Any:
    """Doubles for floats: there is no bfloat16 in numpy."""
    return (values.double() if values.dtype.is_floating_point else values).numpy()


def _known(value: Any) -> list[torch.Tensor] | None:
    found = [values_of(tensor) for tensor in tensors_in(value, [])]
    known = [one for one in found if one is not None]
    return known if known and len(known) == len(found) else None


def _write(output: torch.Tensor, values: torch.Tensor) -> None:
    if values.numel() != output.numel():
        forget([output])
        return
    values = values.reshape(output.shape).to(output.dtype)
    held = values_of(output)
    if held is not None:
        held.copy_(values)
    elif isinstance(output, FakeTensor):
        if output.numel() * output.element_size() == output.untyped_storage().nbytes():
            remember(output, values)
        else:
            forget([output])
