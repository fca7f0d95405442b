"""Shards that live on the host, where the optimizer steps: ``offloaded.py``."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

dist.init_process_group("cpu:gloo,cuda:nccl")
torch.cuda.set_device(dist.get_rank())
model = nn.Linear(512, 512, bias=False)
fully_shard(model, offload_policy=CPUOffloadPolicy())
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(3):
    model(torch.zeros(2, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.zeros(1 << 17).mul_(2)  # no part of an update
