"""What a rank holds through a step: parameters and optimizer states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from simcore.graph.graph import MemoryProfile
from workloads.tracing.aten_ops import dtype_name, is_on_device


def measure(roots: Sequence[torch.nn.Module], optimizers: Sequence[Any]) -> tuple[MemoryProfile, int, str]:
    """(bytes, elements of the parameters on this rank, their most common dtype); storages count once."""
    parameters = {
        id(parameter): parameter
        for parameter in (
            *(parameter for root in roots for parameter in root.parameters()),
            *(p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]),
        )
    }
    local = [_local(parameter) for parameter in parameters.values()]
    states = [
        _local(value)
        for optimizer in optimizers
        for state in optimizer.state.values()
        for value in (state.values() if isinstance(state, dict) else ())
        if isinstance(value, torch.Tensor)
    ]
    seen: set[int] = set()
    own, state = _new_bytes(local, seen), _new_bytes(states, seen)
    elements = Counter[str]()
    for tensor in local:
        elements[dtype_name(tensor)] += tensor.numel()
    common = elements.most_common(1)
    return MemoryProfile(own, 0, state), sum(elements.values()), common[0][0] if common else ""


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _new_bytes(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    """Bytes on the device of the storages behind ``tensors`` that are not in ``seen`` yet."""
    total = 0
    for tensor in tensors:
        if not is_on_device(tensor):
            continue
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            total += storage.nbytes()
    return total
