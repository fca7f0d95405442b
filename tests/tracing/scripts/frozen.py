"""Two GPUs train the head of a model whose body, the larger part, is frozen.

``frozen.py ddp``: under DDP, its norms synchronised; ``frozen.py fsdp2``: sharded.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.Linear(256, 64), nn.Linear(64, 4)).to(
    device
)
model[0].requires_grad_(False)
model[2].requires_grad_(False)
if sys.argv[1] == "ddp":
    model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model), device_ids=[device.index])
else:
    for part in model:
        fully_shard(part)
    fully_shard(model)
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
for _ in range(3):
    model(torch.randn(8, 64, device=device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
