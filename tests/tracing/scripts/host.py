"""Programs that live by what the host knows: ``host.py gpt | large | nothing | part | rows``."""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

LAYERS, WIDTH, HEADS, VOCAB, BATCH, SEQ = 2, 64, 4, 96, 3, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        parts = self.qkv(self.norm_1(x)).split(WIDTH, -1)
        query, key, value = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in parts)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm_2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(SEQ, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, ids, targets):
        places = torch.arange(ids.shape[1], device=ids.device)
        scores = self.head(self.blocks(self.tokens(ids) + self.places(places)))
        return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=-1)


def gpt(rank):
    """Batches come from a file by random places, losses are averaged on the host and printed."""
    torch.manual_seed(1337 + rank)
    path = Path(tempfile.mkdtemp()) / "train.bin"
    (np.arange(4096) % VOCAB).astype(np.uint16).tofile(path)

    def batch():
        data = np.memmap(path, dtype=np.uint16, mode="r")
        starts = torch.randint(len(data) - SEQ, (BATCH,))
        pieces = [data[i : i + SEQ + 1].astype(np.int64) for i in starts]
        x = torch.stack([torch.from_numpy(one[:-1]) for one in pieces])
        y = torch.stack([torch.from_numpy(one[1:]) for one in pieces])
        assert x.shape == (BATCH, SEQ) and (x[:, 1:] == y[:, :-1]).all()
        return x.pin_memory().to("cuda", non_blocking=True), y.pin_memory().to("cuda", non_blocking=True)

    model = Gpt().to(torch.bfloat16).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    best = 1e9
    for step in range(3):
        losses = torch.zeros(2)
        with torch.no_grad():
            for k in range(2):
                losses[k] = model(*batch()).item()
        if losses.mean() < best:
            best = losses.mean()
            torch.save({"model": model.state_dict(), "best": best}, "/nowhere/is/ckpt.pt")
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 + torch.cos(torch.tensor(step / 3)).item())
        loss = model(*batch())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step}: loss {loss:.4f}, best {best:.4f}")
    assert torch.load("/nowhere/is/ckpt.pt", map_location="cuda")["model"]["head.weight"].is_cuda


def large(_rank):
    """Ten billion parameters, a mask and pictures that no host holds twice."""
    model = nn.Sequential(*(nn.Linear(50_000, 50_000, bias=False) for _ in range(4)))
    nn.init.normal_(model[0].weight, std=0.02)
    mask = torch.tril(torch.ones(200_000, 200_000))[None]
    pictures = torch.randn(100_000, 3, 224, 224)
    model.bfloat16().cuda()
    assert mask.cuda().shape[-1] == len(pictures) * 2 and len(torch.arange(1 << 40)) == 1 << 40
    train(model, lambda: torch.randn(2, 50_000, device="cuda", dtype=torch.bfloat16))


def nothing(_rank):
    """How many rows there are depends on what is not known."""
    model = nn.Linear(4, 4).cuda()

    def rows():
        count = int((torch.randn(8, device="cuda") > 0).sum())  # asked here
        return torch.randn(count, 4, device="cuda")

    train(model, rows)


def part(_rank):
    """Some of the rows depend on what is not known."""
    model = nn.Linear(4, 4).cuda()

    def rows():
        count = int((torch.randn(8, device="cuda") > 0).sum())  # asked here, too
        return model(torch.randn(count, 4, device="cuda")).sum() + torch.randn(8, 4, device="cuda")

    train(model, rows)


def rows(_rank):
    """A parameter of fewer rows than ranks, changed after each step, and a loss that is read."""
    model = nn.Module()
    model.scale, model.linear = nn.Parameter(torch.ones(1)), nn.Linear(4, 4)
    model.forward = lambda x: model.linear(x) * model.scale
    fully_shard(model.cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.randn(2, 4, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.scale.clamp_(0, 4.6)
        print(loss.item())


def train(model, batch):
    """Three steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(batch()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    named = {"gpt": gpt, "large": large, "nothing": nothing, "part": part, "rows": rows}
    named[sys.argv[1]](dist.get_rank())
