"""A DTensor is sharded along another dimension: what torch's own operator of C++ does on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from workloads.tracing.fake import process_groups


def takes_apart(base: str) -> Callable[..., Any] | None:
    """What runs operator ``base`` in pieces."""
    return _moved if base == "_dtensor::shard_dim_alltoall" else None


def _moved(shard: torch.Tensor, gather_dim: int, shard_dim: int, group: Any, **_: Any) -> torch.Tensor:
    """A piece for each rank of the group, exchanged behind one another and joined (torch's Functional.cpp:
    an all_to_all of lists, which is waited for at once).
    """
    members = process_groups.unbox(group)
    pieces = shard.shape[shard_dim] // members.size()
    given = [one.contiguous() for one in torch.split(shard, pieces, shard_dim)[: members.size()]]
    arrived = [torch.empty_like(one) for one in given]
    work = dist.all_to_all(arrived, given, group=members, async_op=True)
    assert work is not None
    work.wait()
    return torch.cat(arrived, gather_dim)
