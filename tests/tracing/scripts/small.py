"""A small model under one kind of parallelism, on GPUs with NCCL where there are any, else on CPUs with gloo.

``small.py MODE``: ddp, accumulate, checkpoint, lora, unused (a block is), fsdp1, fsdp1_kept
(gathered through two microbatches), fsdp2, fsdp2_near (gathered again from one other), tp, fsdp2_tp, hsdp,
beside (a gather that the model does not use).
"""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH, BATCH, BLOCKS, MICROBATCHES, LORA_RANK = 64, 8, 3, 2, 4


class LowRank(nn.Module):
    """A frozen linear layer and a trained product of two thin ones."""

    def __init__(self, frozen):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, LORA_RANK, bias=False)
        self.up = nn.Linear(LORA_RANK, frozen.out_features, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


class Block(nn.Module):
    """Two linear layers and a norm: 4 * WIDTH wide inside."""

    def __init__(self, recompute):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.recompute = recompute

    def forward(self, x):
        if self.recompute:
            return checkpoint(self.body, x, use_reentrant=False)
        return self.body(x)

    def body(self, x):
        return self.norm(x + self.down(nn.functional.gelu(self.up(x))))


class Skipping(nn.Sequential):
    """The second block is not used."""

    def forward(self, x):
        return self[2](self[0](x))


def wrap(model, mode, device):
    kind, world = device.type, dist.get_world_size()
    if mode in ("ddp", "accumulate", "checkpoint", "lora", "unused"):
        return DistributedDataParallel(model, bucket_cap_mb=0.2, find_unused_parameters=mode == "unused")
    if mode in ("fsdp1", "fsdp1_kept"):
        policy = ModuleWrapPolicy({Block})
        sharded = ShardingStrategy.FULL_SHARD if mode == "fsdp1" else ShardingStrategy.SHARD_GRAD_OP
        return FullyShardedDataParallel(
            *(model, None, sharded), auto_wrap_policy=policy, device_id=device, use_orig_params=True
        )
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if mode == "tp":
        mesh = init_device_mesh(kind, (world,), mesh_dim_names=("tp",))
        for block in model:
            parallelize_module(block, mesh, plan)
        return model
    if mode in ("fsdp2", "fsdp2_near"):
        shards = init_device_mesh(kind, (world,))
    elif mode == "hsdp":
        shards = init_device_mesh(kind, (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh(kind, (world // 2, 2), mesh_dim_names=("dp", "tp"))
        for block in model:
            parallelize_module(block, mesh["tp"], plan)
        shards = mesh["dp"]
    kept = 2 if mode == "fsdp2_near" else None
    for block in model:
        fully_shard(block, mesh=shards, reshard_after_forward=kept)
    return fully_shard(model, mesh=shards)


def main(mode, steps=3):
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cpu")
    if on_gpu:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    blocks = (Block(mode == "checkpoint") for _ in range(BLOCKS))
    model = (Skipping if mode == "unused" else nn.Sequential)(*blocks).to(device)
    if mode == "lora":
        model.requires_grad_(False)
        for block in model:
            block.up, block.down = LowRank(block.up), LowRank(block.down)
        model.to(device)
    if mode != "beside":
        model = wrap(model, mode, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(steps):
        microbatches = MICROBATCHES if mode in ("accumulate", "fsdp1_kept") else 1
        for index in range(microbatches):
            last = index == microbatches - 1
            with contextlib.nullcontext() if last else model.no_sync():
                batch = torch.zeros(BATCH, WIDTH, device=device)
                gathered = all_gather_tensor(batch, 0, dist.group.WORLD) if mode == "beside" else None
                loss = model(batch).sum()
                (loss if gathered is None else loss + gathered.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
