"""What a rank holds through a step: parameters and optimizer states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from simcore.graph.graph import MemoryProfile
from workloads.tracing.aten_ops import is_on_device


def measure(roots: Sequence[torch.nn.Module], optimizers: Sequence[Any]) -> tuple[MemoryProfile, int]:
    """(bytes, elements of the parameters on this rank); storages count once."""
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
    return MemoryProfile(own, 0, state), sum(tensor.numel() for tensor in local)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor; DeepSpeed's ZeRO-3 hangs it on the parameter."""
    held: torch.Tensor = (
        tensor._local_tensor if isinstance(tensor, DTensor) else getattr(tensor, "ds_tensor", tensor)
    )
    return held


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
