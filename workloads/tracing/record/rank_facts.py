"""What a rank of a script holds beside its ops: parameters and states of optimizers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from simcore.graph.graph import MemoryProfile
from simcore.records import dataclass
from workloads.tracing.fake.aten_ops import is_on_device
from workloads.tracing.fake.storages import new_bytes
from workloads.tracing.record.cut_shards import CutTensors, cut_tensors


@dataclass(frozen=True)
class RankFacts:
    """What is known of a rank beside its ops: ``memory`` that it holds through the step, elements of its
    parameters and of those that it trains, the first layer of each model chunk (() where none is known),
    versions beside torch's; ``sizes``: bytes of each storage of what ``memory`` has, by category;
    ``cut``: tensors whose shards are cut across them.
    """

    memory: MemoryProfile
    num_parameters: int = 0
    num_trained: int = 0
    layer_offset: tuple[int, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    cut: tuple[CutTensors, ...] = ()


def held(roots: Collection[torch.nn.Module], optimizers: Collection[Any]) -> RankFacts:
    """Parameters and optimizer states on this rank; storages count once.  What an optimizer updates that no
    module has (the main copies of mixed precision) is state, unless no module was seen.  A model that stays
    on the host, where another is on the device, was only asked (for its strides).
    """
    models = [list(root.parameters()) for root in roots]
    moved = [model for model in models if any(map(is_on_device, map(_local, model)))]
    of_modules = {id(one): one for model in moved or models for one in model}
    updated = {id(one): one for optimizer in optimizers for one in _all_parameters(optimizer)}
    parameters = of_modules or updated
    local = [_local(parameter) for parameter in parameters.values()]
    states = [_local(one) for key, one in updated.items() if key not in parameters]
    states += [
        _local(value)
        for optimizer in optimizers
        for state in optimizer.state.values()
        for value in (state.values() if isinstance(state, dict) else ())
        if isinstance(value, torch.Tensor)
    ]
    seen: set[int] = set()
    own, state = (
        new_bytes([part for one in tensors for part in _parts(one) if is_on_device(part)], seen)
        for tensors in (local, states)
    )
    return RankFacts(
        MemoryProfile(sum(own), 0, sum(state)),
        sum(tensor.numel() for tensor in local),
        sum(_local(one).numel() for one in parameters.values() if one.requires_grad),
        sizes={"parameters": own, "optimizer states": state},
        cut=cut_tensors(roots),
    )


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor; ZeRO-3 and Transformer Engine hang it on the parameter."""
    if isinstance(tensor, DTensor):
        return tensor._local_tensor
    held: torch.Tensor = getattr(tensor, "ds_tensor", getattr(tensor, "_rowwise_data", tensor))
    return held


def _parts(tensor: Any) -> list[torch.Tensor]:
    """The tensors that have memory: those within one that only shows what they say (torchao's weights)."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in _parts(getattr(tensor, name))]


def unstepped(made: Collection[Any], stepped: Collection[Any]) -> bool:
    """Whether one of the optimizers ``made`` is of trained parameters on the device that none of those that
    have ``stepped`` has.
    """
    known = {id(one) for optimizer in stepped for one in _all_parameters(optimizer)}
    return any(
        any(one.requires_grad and is_on_device(_local(one)) for one in _all_parameters(optimizer))
        and not any(id(one) in known for one in _all_parameters(optimizer))
        for optimizer in made
    )


def _all_parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    return (one for group in optimizer.param_groups for one in group["params"])
