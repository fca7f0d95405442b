"""Collectives of known values: what a rank gets is known where what every rank gives is.

What others give: Note [What other ranks give].  A broadcast or a scatter of few elements brings what its root
has (Note [Mail between runs]).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from workloads.tracing.fake import object_exchange, peers
from workloads.tracing.fake.aten_ops import tensors_in
from workloads.tracing.fake.host_tensors import assume
from workloads.tracing.fake.known_values import MOST_INTEGERS, forget, remember, values_of
from workloads.tracing.fake.mail import VALUES_TO

#: Elements of a broadcast whose values travel: the state of a generator of random numbers (5,056 bytes) fits.
_MOST_SENT = 1 << 13

_REDUCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda given: given.sum(0).to(given.dtype),
    "avg": lambda given: given.double().mean(0).to(given.dtype),
    "product": lambda given: given.prod(0).to(given.dtype),
    "min": lambda given: given.amin(0),
    "max": lambda given: given.amax(0),
    "band": lambda given: _folded(torch.bitwise_and, given),
    "bor": lambda given: _folded(torch.bitwise_or, given),
    "bxor": lambda given: _folded(torch.bitwise_xor, given),
}

#: What the places of a group give, each a list of tensors.
Given = list[list[torch.Tensor]]


def exchange(
    name: str, args: Any, outputs: Sequence[torch.Tensor], group: Any, reduce_op: str, *, alike: bool
) -> None:
    """``c10d::<name>`` has been called with ``args`` in ``group`` and wrote ``outputs``: known values arrive
    there, or what was there is forgotten.  ``alike``: every rank gives what this one gives.
    """
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        arrived = _arrived(name, args, group, reduce_op, alike)
        if arrived is None and name == "broadcast_":  # a tensor of the host keeps what this rank would give
            forget(list(outputs))
            return
        if arrived is None:
            for output in outputs:
                assume(output)
            return
        if not outputs:  # what is gathered arrives elsewhere
            return
        for output, values in zip(outputs, arrived, strict=True):
            _write(output, values)


def _arrived(name: str, args: Any, group: Any, reduce_op: str, alike: bool) -> list[torch.Tensor] | None:
    """Values of each output; None when they are not known."""
    size, mine = dist.get_world_size(group), dist.get_rank(group)
    if name == "broadcast_":
        return _broadcast(args[0], group, int(args[2]))
    if name == "scatter_":
        return _scatter(args[0][0], args[1], group, int(args[3]))
    if name in ("allreduce_", "allreduce_coalesced_", "all_reduce"):
        reduce, given = _REDUCE.get(reduce_op), _of_all(args[0], group, alike)
        if reduce is None or given is None:
            return None
        return [reduce(torch.stack(values)) for values in zip(*given, strict=True)]
    if name == "reduce_":
        given = _of_all(args[0], group, alike)
        if given is None or reduce_op not in _REDUCE or int(args[3]) != mine:
            return _known(args[0])
        return [_REDUCE[reduce_op](torch.stack(values)) for values in zip(*given, strict=True)]
    if name in ("_allgather_base_", "allgather_into_tensor_coalesced_", "all_gather_into_tensor"):
        given = _of_all(args[1], group, alike)
        if given is None:
            return None
        return [torch.cat([one.reshape(-1) for one in values]) for values in zip(*given, strict=True)]
    if name in ("allgather_", "gather_"):
        given = _of_all(args[1], group, alike)
        return None if given is None else [one for values in zip(*given, strict=True) for one in values]
    if name == "alltoall_":
        given = _of_all(args[1], group, alike)
        return None if given is None else [values[mine] for values in given]
    if name == "reduce_scatter_":
        given = _of_all(args[1], group, alike)
        if given is None or reduce_op not in _REDUCE:
            return None
        return [_REDUCE[reduce_op](torch.stack([values[mine] for values in given]))]
    if name in ("_reduce_scatter_base_", "reduce_scatter_tensor"):
        given = _of_all(args[1], group, alike)
        if given is None or reduce_op not in _REDUCE:
            return None
        reduced = _REDUCE[reduce_op](torch.stack([values[0] for values in given]))
        return [reduced.reshape(size, -1)[mine]]
    if name == "alltoall_base_":
        # What is split evenly here is everywhere: functional collectives always say how.
        given, splits = _of_all(args[1], group, alike), args[4] if _differ(args[3], args[4]) else None
        if given is None or (splits and not alike) or (splits is None and given[0][0].shape[0] % size):
            return None
        return [torch.cat([torch.split(one, splits or one.shape[0] // size)[mine] for (one,) in given])]
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
    sent = box.receive_values(group, root)()
    return None if sent is None else [torch.from_numpy(values) for values in sent]


def _scatter(part: torch.Tensor, parts: Any, group: Any, root: int) -> list[torch.Tensor] | None:
    """This rank's part of what the rank at place ``root`` has."""
    box, mine = object_exchange.mailbox, group.rank()
    known = _known(parts) if mine == root else None
    if box is not None and group.size() > 1 and part.numel() * group.size() <= MOST_INTEGERS:
        if mine == root:
            box.send_values(None if known is None else [_array(values) for values in known], group)
        else:
            sent = box.receive_values(group, root)()
            return None if sent is None else [torch.from_numpy(sent[mine])]
    return None if known is None else [known[mine]]


def transfer(sends: bool, tensors: Sequence[torch.Tensor], group: Any, peer: int) -> Callable[[], None]:
    """``tensors`` are sent to the rank at place ``peer`` of ``group``, or received from there.

    Few integers travel, since sizes may follow from them.  Returns what is to be done when the call has been
    waited for: values arrive, or what was there is forgotten.
    """
    box = object_exchange.mailbox
    few = sum(tensor.numel() for tensor in tensors) <= _MOST_SENT
    travels = box is not None and few and not any(tensor.dtype.is_floating_point for tensor in tensors)
    told: Callable[[], Sequence[Any] | None] | None = None
    if travels and box is not None:
        if sends:
            with torch._C._DisableTorchDispatch():
                known = _known(tensors)
                values = None if known is None else [_array(one) for one in known]
            box.send_values(values, group, VALUES_TO - peer)
        else:
            told = box.receive_values(group, peer, VALUES_TO - dist.get_rank(group))

    def arrive() -> None:
        sent = None if sends or told is None else told()
        for number, tensor in enumerate(() if sends else tensors):
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                if sent is not None:
                    _write(tensor, torch.from_numpy(sent[number]))
                else:
                    assume(tensor)

    return arrive


def _differ(*splits: Sequence[int]) -> bool:
    return any(len(set(rows or ())) > 1 for rows in splits)


def _array(values: torch.Tensor) -> Any:
    """Doubles for floats: there is no bfloat16 in numpy."""
    return (values.double() if values.dtype.is_floating_point else values).numpy()


def _of_all(value: Any, group: Any, alike: bool) -> Given | None:
    own = _known(value)
    if own is None:
        return None
    if alike or sum(tensor.numel() for tensor in own) > MOST_INTEGERS:
        return [own] * dist.get_world_size(group)
    found: Given = peers.objects_of_all(own, group)
    sizes = [one.numel() for one in own]
    if any([one.numel() for one in given] != sizes for given in found):
        return [own] * dist.get_world_size(group)
    # A collective knows elements and no dimensions: a rank may give () where another gives (1,).
    return [[one.reshape(mine.shape) for one, mine in zip(given, own, strict=True)] for given in found]


def _known(value: Any) -> list[torch.Tensor] | None:
    found = [values_of(tensor) for tensor in tensors_in(value, [])]
    known = [one.detach().clone() for one in found if one is not None]
    return known if known and len(known) == len(found) else None


def _folded(operator: Callable[..., torch.Tensor], given: torch.Tensor) -> torch.Tensor:
    result = given[0]
    for one in given[1:]:
        result = operator(result, one)
    return result


def _write(output: torch.Tensor, values: torch.Tensor) -> None:
    if values.numel() != output.numel():
        assume(output)
        return
    values = values.reshape(output.shape).to(output.dtype)
    held = values_of(output)
    if held is not None:
        held.copy_(values)
    elif isinstance(output, FakeTensor):
        if output.numel() * output.element_size() == output.untyped_storage().nbytes():
            remember(output, values)
        else:
            assume(output)
