"""Shards that are cut across tensors: which pieces of tensors each place has follows from their sizes alone.

FSDP1 joins tensors to one, fills it up and deals out equal parts; with ``use_orig_params`` an optimizer gets
the pieces.  DeepSpeed's ZeRO-1 and 2 do so with all tensors of an optimizer's group.  Places with pieces of
the same sizes, in order, are taken to do the same, which those that are run show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from simcore.records import dataclass

if TYPE_CHECKING:  # reports of ranks are read where torch is not installed
    import torch


@dataclass(frozen=True)
class CutTensors:
    """Tensors of ``numels`` elements, one behind the other, cut into ``places`` parts of ``part`` elements;
    ``filled``: numbers of those that only fill up.
    """

    numels: tuple[int, ...]
    filled: tuple[int, ...]
    part: int
    places: int

    def pieces(self, place: int) -> tuple[int, ...]:
        """Elements of the pieces at ``place``, but for what fills up."""
        low, high = place * self.part, (place + 1) * self.part
        bounds = pairwise(accumulate(self.numels, initial=0))
        sizes = [min(high, end) - max(low, begin) for begin, end in bounds]
        return tuple(size for number, size in enumerate(sizes) if size > 0 and number not in self.filled)


def cut_tensors(roots: Collection[torch.nn.Module]) -> tuple[CutTensors, ...]:
    """Of every FSDP1 module that shows its tensors to the optimizer, and of DeepSpeed's engines."""
    handles: dict[int, Any] = {}
    for root in roots:
        for module in root.modules():
            handle: Any = getattr(module, "_handle", None)
            if getattr(handle, "_use_orig_params", False) and hasattr(handle.flat_param, "_sharded_size"):
                handles[id(handle)] = handle
    found = [one for root in roots for one in _flat_groups(getattr(root, "optimizer", None))]
    for handle in handles.values():
        flat = handle.flat_param
        filled = tuple(number for number, fills in enumerate(flat._is_padding_mask) if fills)
        found.append(
            CutTensors(
                tuple(flat._numels_with_padding), filled, int(flat._sharded_size[0]), handle.world_size
            )
        )
    return tuple(found)


def _flat_groups(optimizer: Any) -> Iterator[CutTensors]:
    """Of the ZeRO-1 or 2 optimizer of an engine of DeepSpeed (0.19), group by group; else none."""
    for number, tensors in enumerate(getattr(optimizer, "round_robin_bit16_meta", ())):
        padding = optimizer.round_robin_bit16_padding[number]
        numels = [size for one, fill in zip(tensors, padding, strict=True) for size in (one.numel(), fill)]
        part = optimizer.partition_size[number]
        places = optimizer.bit16_groups_flat[number].numel() // part
        numels.append(part * places - sum(numels))
        yield CutTensors(tuple(numels), (*range(1, len(numels), 2), len(numels) - 1), part, places)
