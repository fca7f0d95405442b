"""A model under data parallelism, as torch's own documentation does it."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

PARALLEL = ("ddp", "fsdp1", "fsdp2", "hsdp")


def start() -> torch.device:
    """Join the job that torchrun started; this process's device."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    return torch.device("cuda", local_rank)


def mesh(tensor_parallel: int = 1, shard: int = 0) -> DeviceMesh:
    """Mesh (dp, tp), or (replicate, shard) with ``shard`` ranks to a replica; one axis when that is all."""
    world = dist.get_world_size()
    if shard:
        return init_device_mesh("cuda", (world // shard, shard), mesh_dim_names=("replicate", "shard"))
    if tensor_parallel == 1:
        return init_device_mesh("cuda", (world,), mesh_dim_names=("dp",))
    return init_device_mesh("cuda", (world // tensor_parallel, tensor_parallel), mesh_dim_names=("dp", "tp"))


def wrap(
    model: nn.Module, blocks: Iterable[nn.Module], how: str, over: DeviceMesh | None = None
) -> nn.Module:
    """``model`` under ``how``, one of :data:`PARALLEL`; its ``blocks`` are the units of FSDP.

    FSDP computes in bf16 and, FSDP2, reduces gradients in fp32; DDP leaves precision to autocast.
    """
    device = torch.cuda.current_device()
    units = list(blocks)
    if how == "ddp":
        return DistributedDataParallel(model, device_ids=[device])
    if how == "fsdp1":
        return FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({type(unit) for unit in units}),
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
            device_id=device,
            use_orig_params=True,
        )
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shards = over or mesh(shard=torch.cuda.device_count() if how == "hsdp" else 0)
    for unit in units:
        fully_shard(unit, mesh=shards, mp_policy=policy)
    fully_shard(model, mesh=shards, mp_policy=policy)
    return model
