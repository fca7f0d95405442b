"""DDP over eight GPUs, of which one in the middle and the last read longer sequences."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def longer(r):
    """Whether one has longer sequences: no name says that it is a rank."""
    return r in (3, 7)


class Model(nn.Module):
    """A table, and attention over what it holds."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(16, 8)

    def forward(self, words):
        x = self.words(words)[:, None]
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(Model().cuda(), device_ids=[int(os.environ["LOCAL_RANK"])])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
length = 32 if longer(dist.get_rank()) else 16
for _ in range(3):
    model(torch.zeros(2, length, dtype=torch.int64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
