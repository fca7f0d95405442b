"""Attention of grouped heads over a sequence that all ranks share, by torch's ring: ``context.py``."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional

SEQ, HIDDEN, HEADS, KV_HEADS = 4096, 512, 8, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = HIDDEN // HEADS
        self.wq = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.wk = nn.Linear(HIDDEN, KV_HEADS * size, bias=False)
        self.wv = nn.Linear(HIDDEN, KV_HEADS * size, bias=False)
        self.wo = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, HIDDEN // HEADS)) for w in (self.wq, self.wk, self.wv))
        k, v = (one.repeat_interleave(HEADS // KV_HEADS, 2) for one in (k, v))
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).flatten(2))


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("cp",))
    model = Attention().to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.zeros(1, SEQ, HIDDEN, device=device, dtype=torch.bfloat16)
        with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
            model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
