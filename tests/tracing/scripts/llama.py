"""A Llama in plain PyTorch under DDP, FSDP2, HSDP or tensor parallelism; ``llama.py HOW``."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, BATCH, SEQ = 3, 256, 8, 4, 512, 1024, 2, 128


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = HIDDEN // HEADS
        self.attention_norm, self.ffn_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.wq = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.wk = nn.Linear(HIDDEN, KV_HEADS * size, bias=False)
        self.wv = nn.Linear(HIDDEN, KV_HEADS * size, bias=False)
        self.wo = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.w1 = nn.Linear(HIDDEN, FFN, bias=False)
        self.w3 = nn.Linear(HIDDEN, FFN, bias=False)
        self.w2 = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.attention_norm(x)
        size = HIDDEN // HEADS
        q, k, v = (w(h).unflatten(-1, (-1, size)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(out.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.w2(functional.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.output = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def main(how: str) -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    world = dist.get_world_size()
    wide = how in ("ddp", "tp")
    model = Llama().to("cuda", torch.bfloat16 if wide else torch.float32)
    trained: nn.Module = model
    if how == "ddp":
        trained = DistributedDataParallel(model, device_ids=[local_rank])
    elif how == "tp":
        tp = init_device_mesh("cuda", (world,), mesh_dim_names=("tp",))
        styles = {name: ColwiseParallel() for name in ("wq", "wk", "wv", "w1", "w3")}
        for layer in model.layers:
            parallelize_module(layer, tp, {**styles, "wo": RowwiseParallel(), "w2": RowwiseParallel()})
    else:
        sizes = (world,) if how == "fsdp2" else (world // 4, 4)
        names = ("dp",) if how == "fsdp2" else ("replicate", "shard")
        mesh = init_device_mesh("cuda", sizes, mesh_dim_names=names)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.SGD(trained.parameters(), lr=1e-4)
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.long, device="cuda")
    for _ in range(3):
        logits = trained(tokens)
        functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


main(sys.argv[1])
